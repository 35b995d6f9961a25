package wire

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Types of resources that a relay treats differently from others.
const (
	Cluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Route    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	Secret   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Names of the secrets that a supervisor has itself, and no control plane: the proxy's certificate and key, and, behind the
// prefix, the roots of a trust domain.
const (
	IdentitySecret = "identity"
	RootsPrefix    = "roots|"
)

// OwnSecret reports whether a secret is the supervisor's own.
func OwnSecret(name string) bool {
	return name == IdentitySecret || strings.HasPrefix(name, RootsPrefix)
}

// Wildcard subscribes to all resources of a type.
const Wildcard = "*"

// Request is a DeltaDiscoveryRequest.
type Request struct {
	// Node as bytes; nil: not in this request.
	Node        []byte
	TypeURL     string
	Subscribe   []string
	Unsubscribe []string
	// Versions that the client has: only in the first request of a type on a stream.
	Versions map[string]string
	// Nonce of the response that is answered; "": none.
	Nonce string
	// Error refuses that response; nil: it is accepted.
	Error *Status
}

// Status is a google.rpc.Status without details.
type Status struct {
	Code    int32
	Message string
}

// Response is a DeltaDiscoveryResponse.
type Response struct {
	SystemVersion string
	TypeURL       string
	Nonce         string
	Resources     []Resource
	Removed       []string
}

// Resource is a resource as it is in a response.
type Resource struct {
	Name, Version string
	// Raw is the whole message Resource.
	Raw []byte
}

// ParseRequest reads a request. It keeps data.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	err := fields(data, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		switch num {
		case 1:
			r.Node = value
		case 2:
			r.TypeURL = string(value)
		case 3:
			r.Subscribe = append(r.Subscribe, string(value))
		case 4:
			r.Unsubscribe = append(r.Unsubscribe, string(value))
		case 5:
			name, version, err := pair(value)
			if err != nil {
				return err
			}
			if r.Versions == nil {
				r.Versions = map[string]string{}
			}
			r.Versions[name] = version
		case 6:
			r.Nonce = string(value)
		case 7:
			r.Error = &Status{}
			return r.Error.parse(value)
		}
		return nil
	})
	return r, err
}

// pair reads an entry of a map from string to string.
func pair(entry []byte) (key, value string, err error) {
	err = fields(entry, func(num protowire.Number, v []byte, _ uint64, _ []byte) error {
		switch num {
		case 1:
			key = string(v)
		case 2:
			value = string(v)
		}
		return nil
	})
	return key, value, err
}

func (s *Status) parse(data []byte) error {
	return fields(data, func(num protowire.Number, value []byte, number uint64, _ []byte) error {
		switch num {
		case 1:
			s.Code = int32(number)
		case 2:
			s.Message = string(value)
		}
		return nil
	})
}

// Append the request to b.
func (r Request) Append(b []byte) []byte {
	if r.Node != nil {
		b = appendBytes(b, 1, r.Node)
	}
	b = appendString(b, 2, r.TypeURL)
	for _, n := range r.Subscribe {
		b = appendString(b, 3, n)
	}
	for _, n := range r.Unsubscribe {
		b = appendString(b, 4, n)
	}
	for _, n := range slices.Sorted(maps.Keys(r.Versions)) {
		b = appendBytes(b, 5, appendString(appendString(nil, 1, n), 2, r.Versions[n]))
	}
	b = appendString(b, 6, r.Nonce)
	if r.Error != nil {
		status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(r.Error.Code))
		b = appendBytes(b, 7, appendString(status, 2, r.Error.Message))
	}
	return b
}

// ParseResponse reads a response. It keeps nothing of data.
func ParseResponse(data []byte) (Response, error) {
	var r Response
	err := fields(data, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		switch num {
		case 1:
			r.SystemVersion = string(value)
		case 2:
			resource, err := ParseResource(slices.Clone(value))
			if err != nil {
				return err
			}
			r.Resources = append(r.Resources, resource)
		case 4:
			r.TypeURL = string(value)
		case 5:
			r.Nonce = string(value)
		case 6:
			r.Removed = append(r.Removed, string(value))
		}
		return nil
	})
	return r, err
}

// ParseResource reads name and version of a Resource, and keeps raw.
func ParseResource(raw []byte) (Resource, error) {
	r := Resource{Raw: raw}
	err := fields(raw, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		switch num {
		case 1:
			r.Version = string(value)
		case 3:
			r.Name = string(value)
		}
		return nil
	})
	return r, err
}

// NewResource makes a Resource of a body.
func NewResource(typeURL, name, version string, body []byte) Resource {
	packed := appendBytes(appendString(nil, 1, typeURL), 2, body)
	raw := appendString(appendBytes(appendString(nil, 1, version), 2, packed), 3, name)
	return Resource{Name: name, Version: version, Raw: raw}
}

// Body is what is in the Any of the resource; nil if it has none.
func (r Resource) Body() ([]byte, error) {
	var body []byte
	err := fields(r.Raw, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		if num != 2 {
			return nil
		}
		return fields(value, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
			if num == 2 {
				body = value
			}
			return nil
		})
	})
	return body, err
}

// Append the response to b.
func (r Response) Append(b []byte) []byte {
	b = appendString(b, 1, r.SystemVersion)
	for _, resource := range r.Resources {
		b = appendBytes(b, 2, resource.Raw)
	}
	b = appendString(b, 4, r.TypeURL)
	b = appendString(b, 5, r.Nonce)
	for _, n := range r.Removed {
		b = appendString(b, 6, n)
	}
	return b
}

// ServiceOf is the EDS service name of a resource that is a Cluster, which its endpoints are
// asked for by: eds_cluster_config.service_name, else the cluster's own name. ok is false for a
// cluster without EDS.
func ServiceOf(r Resource) (service string, ok bool, err error) {
	const typeEDS = 3 // DiscoveryType.EDS
	body, err := r.Body()
	if err != nil {
		return "", false, err
	}
	name := ""
	err = fields(body, func(num protowire.Number, value []byte, number uint64, _ []byte) error {
		switch num {
		case 1:
			name = string(value)
		case 2:
			ok = number == typeEDS
		case 3: // eds_cluster_config
			return fields(value, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
				if num == 2 {
					service = string(value)
				}
				return nil
			})
		}
		return nil
	})
	if service == "" {
		service = name
	}
	return service, ok, err
}

// WithoutExtensions is a Node without its list of extensions, which has 60 kB.
func WithoutExtensions(node []byte) ([]byte, error) {
	const extensions = 9
	return without(node, extensions)
}

// NodeID is the ID in a Node.
func NodeID(node []byte) (string, error) {
	id := ""
	err := fields(node, func(num protowire.Number, value []byte, _ uint64, _ []byte) error {
		if num == 1 {
			id = string(value)
		}
		return nil
	})
	return id, err
}

// LoadReport is a LoadStatsRequest: with a Node without extensions, or without Node. had: the
// report had one.
func LoadReport(data []byte, withNode bool) (report []byte, had bool, err error) {
	report = make([]byte, 0, 1024)
	err = fields(data, func(num protowire.Number, value []byte, _ uint64, raw []byte) error {
		if num != 1 {
			report = append(report, raw...)
			return nil
		}
		had = true
		if !withNode {
			return nil
		}
		node, err := WithoutExtensions(value)
		if err == nil {
			report = appendBytes(report, 1, node)
		}
		return err
	})
	return report, had, err
}

package zookeeper

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// detail is what the protocol alone knows of an instance that a client of it registered.
type detail struct {
	// Data of the node as it was written.
	Data []byte `json:"data"`
	// Session that keeps it alive, and Proof of it (session.proof); 0: none, it is persistent.
	Session int64  `json:"session,omitempty"`
	Proof   string `json:"proof,omitempty"`
	// Version is how often it was written since it was created, Created the transaction that created it;
	// 0: that of its object's version.
	Version int32 `json:"version,omitempty"`
	Created int64 `json:"created,omitempty"`
}

func detailOf(in *registry.Instance) (detail, bool) {
	var d detail
	if in.Protocol != registry.ZooKeeper || json.Unmarshal(in.Detail, &d) != nil {
		return d, false
	}
	return d, true
}

// foreignOwner is the owner of ephemeral instances that came by another protocol. No session has this id.
const foreignOwner = 1

// curator is the JSON of Apache Curator for an instance (org.apache.curator.x.discovery.ServiceInstance).
type curator struct {
	Name    string          `json:"name"`
	ID      string          `json:"id"`
	Address string          `json:"address"`
	Port    *int            `json:"port"`
	SSLPort *int            `json:"sslPort"`
	Payload *curatorPayload `json:"payload"`
	Time    int64           `json:"registrationTimeUTC"`
	Type    string          `json:"serviceType"`
	URISpec json.RawMessage `json:"uriSpec"`
	Enabled *bool           `json:"enabled"`
}

type curatorPayload struct {
	Class    string            `json:"@class"`
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata"`
}

// Classes of payloads, by which the clients of Java read them.
const (
	classDubbo  = "org.apache.dubbo.registry.zookeeper.ZookeeperInstance"
	classSpring = "org.springframework.cloud.zookeeper.discovery.ZookeeperInstance"
)

func addressOf(in *registry.Instance) string { return netip.AddrPortFrom(in.Address, in.Port).String() }

// ofDubbo reports whether the metadata of an instance are of an application of Dubbo.
func ofDubbo(in *registry.Instance) bool {
	for key := range in.Metadata {
		if strings.HasPrefix(key, "dubbo.") {
			return true
		}
	}
	return false
}

// dataOf an instance that came by another protocol. Its metadata are a payload of Dubbo's where they are
// Dubbo's, and of Spring Cloud's where other instances of the service have those (spring). Else there is
// none: a client that does not have the class of a payload cannot read the instance.
func dataOf(in *registry.Instance, rpc, spring bool) []byte {
	if rpc {
		return []byte(in.Address.String())
	}
	port, enabled := int(in.Port), in.Enabled
	c := curator{
		Name: in.Service.Grouped(), ID: addressOf(in), Address: in.Address.String(), Port: &port, Time: in.Created.UnixMilli(), Type: "DYNAMIC", Enabled: &enabled,
	}
	if in.SecurePort != 0 {
		secure := int(in.SecurePort)
		c.SSLPort = &secure
	}
	class := ""
	switch {
	case ofDubbo(in):
		class = classDubbo
	case spring:
		class = classSpring
	}
	if class != "" && len(in.Metadata) > 0 {
		c.Payload = &curatorPayload{Class: class, ID: c.ID, Name: c.Name, Metadata: in.Metadata}
	}
	out, _ := json.Marshal(c) // all of it is strings and numbers
	return out
}

// urlOf a provider or consumer that came by another protocol, escaped as the name of a node. Clients of
// Nacos add protocol and path of the URL to its parameters.
func urlOf(in *registry.Instance, iface string) string {
	var query []string
	for _, key := range slices.Sorted(maps.Keys(in.Metadata)) {
		if key != "protocol" && key != "path" && key != "" {
			query = append(query, key+"="+in.Metadata[key])
		}
	}
	text := cmp.Or(in.Metadata["protocol"], "dubbo") + "://" + addressOf(in) + "/" + cmp.Or(in.Metadata["path"], iface)
	if len(query) > 0 {
		text += "?" + strings.Join(query, "&")
	}
	return url.QueryEscape(text)
}

// hostPort splits an address whose port may be missing.
func hostPort(text string) (host string, port uint16, err error) {
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		return strings.Trim(text, "[]"), 0, nil //nolint:nilerr // there is no port
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %.20q is none", number)
	}
	return host, uint16(n), nil
}

const defaultWeight = 100

// instance that a client writes as a node, for a client at an address.
func (s *Server) instance(t *target, data []byte, from netip.Addr) (*registry.Instance, error) {
	in := &registry.Instance{
		Service: t.service, ID: t.id, Weight: defaultWeight, Enabled: true, Healthy: true, Protocol: registry.ZooKeeper,
	}
	var err error
	if t.service.RPC() && t.service.Group == "" && strings.Count(t.service.Name, ":") == 3 {
		err = fromURL(in, t.id, from)
	} else {
		err = fromCurator(in, t.id, data, from)
	}
	if err != nil {
		return nil, err
	}
	s.core.Place(in, "zone")
	return in, nil
}

// fromURL fills an instance from the URL that its node is named by.
func fromURL(in *registry.Instance, id string, from netip.Addr) error {
	u, err := parseURL(id)
	if err != nil {
		return err
	}
	in.Address, in.Port, in.Metadata = addressOr(u.host, from), u.port, u.params
	if w, err := strconv.Atoi(u.params["weight"]); err == nil {
		in.Weight = int32(min(max(w, 0), 1000))
	}
	in.Enabled = u.params["disabled"] != "true" && u.params["enabled"] != "false"
	// As clients of Nacos register it.
	in.Metadata["protocol"], in.Metadata["path"] = u.protocol, u.path
	return nil
}

// fromCurator fills an instance from the JSON of Curator, or from the name of its node where the data are none.
func fromCurator(in *registry.Instance, id string, data []byte, from netip.Addr) error {
	var c struct {
		Address string          `json:"address"`
		Port    *uint16         `json:"port"`
		SSLPort *uint16         `json:"sslPort"`
		Payload json.RawMessage `json:"payload"`
		Enabled *bool           `json:"enabled"`
	}
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		if err := json.Unmarshal(trimmed, &c); err != nil {
			return fmt.Errorf("the data are no instance of Curator: %w", err)
		}
	}
	in.Metadata = metadataOf(c.Payload)
	id, copied := strings.CutPrefix(id, copyPrefix)
	if copied {
		if in.Metadata == nil {
			in.Metadata = map[string]string{}
		}
		in.Metadata[registry.KeyMirroredFrom] = string(registry.ZooKeeper)
	}
	if c.Address == "" {
		host, port, err := hostPort(id)
		if err != nil {
			return err
		}
		c.Address, in.Port = host, port
	}
	if c.Port != nil {
		in.Port = *c.Port
	}
	if c.SSLPort != nil {
		in.SecurePort = *c.SSLPort
	}
	in.Enabled = c.Enabled == nil || *c.Enabled
	in.Address = addressOr(c.Address, from)
	return nil
}

// metadataOf a payload: the strings of its field "metadata".
func metadataOf(payload json.RawMessage) map[string]string {
	var p struct {
		Metadata map[string]any `json:"metadata"`
	}
	if json.Unmarshal(payload, &p) != nil {
		return nil
	}
	out := map[string]string{}
	for key, value := range p.Metadata {
		switch v := value.(type) {
		case string:
			out[key] = v
		case bool, float64:
			out[key] = fmt.Sprint(v)
		}
	}
	return out
}

// addressOr is the address that a text is, or that of the client: a name is known there, and perhaps not here.
func addressOr(text string, from netip.Addr) netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil && !a.IsUnspecified() {
		return a.Unmap()
	}
	return from
}

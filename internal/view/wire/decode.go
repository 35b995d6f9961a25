package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Input of the decoder is untrusted. Every value is checked against the constraints of
// the model; a resource with any invalid value is refused as a whole.

var protocols = map[nodev1.Protocol]proxy.Protocol{
	nodev1.Protocol_PROTOCOL_TCP:  proxy.TCP,
	nodev1.Protocol_PROTOCOL_UDP:  proxy.UDP,
	nodev1.Protocol_PROTOCOL_SCTP: proxy.SCTP,
}

// maxAffinity is the API's limit, a day.
const maxAffinity = 86400

// maxWarmUpMillis is the API's limit, an hour.
const maxWarmUpMillis = 3600_000

var errNoVirtualIP = errors.New("no cluster address")

// DecodeService reads a Service from the body of the resource of that name.
func DecodeService(name string, body []byte) (*proxy.Service, error) {
	var m nodev1.Service
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	s := &proxy.Service{
		Name:          proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()},
		InternalLocal: m.GetInternalLocal(), ExternalLocal: m.GetExternalLocal(),
		AffinityTimeout: time.Duration(min(m.GetAffinitySeconds(), maxAffinity)) * time.Second,
		WarmUp:          time.Duration(min(m.GetWarmUpMillis(), maxWarmUpMillis)) * time.Millisecond,

		PreserveDestination: m.GetPreserveDestination(),
	}
	var err error
	if s.Scope, err = decodeScope(m.GetScope()); err != nil {
		return nil, err
	}
	if s.HealthCheckNodePort, err = decodePort(m.GetHealthCheckNodePort(), true); err != nil {
		return nil, fmt.Errorf("health check node port: %w", err)
	}
	if s.ClusterIPs, err = decodeAddresses(m.GetClusterIps()); err != nil {
		return nil, fmt.Errorf("cluster address: %w", err)
	}
	if len(s.ClusterIPs) == 0 {
		return nil, errNoVirtualIP
	}
	if s.ExternalIPs, err = decodeAddresses(m.GetExternalIps()); err != nil {
		return nil, fmt.Errorf("external address: %w", err)
	}
	if s.LoadBalancerIPs, err = decodeAddresses(m.GetLoadBalancerIps()); err != nil {
		return nil, fmt.Errorf("load balancer address: %w", err)
	}
	for _, r := range m.GetSourceRanges() {
		p, err := decodePrefix(r)
		if err != nil {
			return nil, fmt.Errorf("source range: %w", err)
		}
		s.SourceRanges = append(s.SourceRanges, p)
	}
	for _, p := range m.GetPorts() {
		port, err := decodeServicePort(p)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		s.Ports = append(s.Ports, port)
		routing, err := decodeConsumers(p.GetRouting())
		if err != nil {
			return nil, fmt.Errorf("routing of port %q: %w", p.GetName(), err)
		}
		if routing != nil {
			if s.Routing == nil {
				s.Routing = map[string]*proxy.Routing{}
			}
			s.Routing[port.Name] = routing
		}
	}
	return s, nil
}

func decodeServicePort(p *nodev1.ServicePort) (out proxy.Port, err error) {
	out = proxy.Port{Name: p.GetName(), AppProtocol: p.GetAppProtocol()}
	if out.Protocol, err = decodeProtocol(p.GetProtocol()); err != nil {
		return out, err
	}
	if out.Port, err = decodePort(p.GetPort(), false); err != nil {
		return out, err
	}
	out.NodePort, err = decodePort(p.GetNodePort(), true)
	return out, err
}

// DecodeSlice reads a Slice from the body of the resource of that name.
func DecodeSlice(name string, body []byte) (*proxy.Slice, error) {
	var m nodev1.EndpointSlice
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	if m.GetService() == "" {
		return nil, errors.New("no service")
	}
	s := &proxy.Slice{
		Name:    proxy.SliceName{Namespace: m.GetNamespace(), Name: m.GetName()},
		Service: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetService()},
	}
	if at := m.GetTriggerUnixNanos(); at != 0 {
		s.Trigger = time.Unix(0, at).UTC()
	}
	var err error
	if s.Ports, err = decodeSlicePorts(m.GetPorts()); err != nil {
		return nil, err
	}
	s.Endpoints = slices.Grow(s.Endpoints, len(m.GetEndpoints())) // the exact capacity, as slices are long-lived
	for i, e := range m.GetEndpoints() {
		endpoint, err := decodeEndpoint(e, m.GetNames())
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", i, err)
		}
		if i > 0 && sameHints(endpoint.Hints, s.Endpoints[i-1].Hints) {
			endpoint.Hints = s.Endpoints[i-1].Hints // share equal hints
		}
		s.Endpoints = append(s.Endpoints, endpoint)
		machine, err := nameAt(m.GetNames(), e.GetMachine())
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: machine: %w", i, err)
		}
		s.SetMachine(i, machine, len(m.GetEndpoints()))
		if since := e.GetReadyUnixSeconds(); since > 0 {
			s.SetReadySince(i, int64(since), len(m.GetEndpoints()))
		}
	}
	return s, nil
}

func decodeSlicePorts(in []*nodev1.SlicePort) ([]proxy.SlicePort, error) {
	var out []proxy.SlicePort
	for _, p := range in {
		protocol, err := decodeProtocol(p.GetProtocol())
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		port, err := decodePort(p.GetPort(), false)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		out = append(out, proxy.SlicePort{Name: p.GetName(), Port: port, Protocol: protocol})
	}
	return out, nil
}

func decodeEndpoint(e *nodev1.Endpoint, names []string) (out proxy.SliceEndpoint, err error) {
	out = proxy.SliceEndpoint{
		Ready:       !e.GetNotReady(),
		Serving:     !e.GetNotServing(),
		Terminating: e.GetTerminating(),
		Weight:      e.GetWeight(),
	}
	if out.Addr, err = decodeAddress(e.GetAddress()); err != nil {
		return out, err
	}
	if out.Node, err = nameAt(names, e.GetNode()); err != nil {
		return out, err
	}
	zone, err := nameAt(names, e.GetZone())
	if err != nil {
		return out, err
	}
	out.Zone = locality.Zone(zone)
	zones, err := namesAt[locality.Zone](names, e.GetHintZones())
	if err != nil {
		return out, err
	}
	nodes, err := namesAt[string](names, e.GetHintNodes())
	out.Hints = proxy.HintsOf(zones, nodes)
	return out, err
}

func sameHints(a, b *proxy.Hints) bool {
	return a != nil && b != nil && slices.Equal(a.Zones, b.Zones) && slices.Equal(a.Nodes, b.Nodes)
}

func nameAt(names []string, i uint32) (string, error) {
	switch {
	case i == 0:
		return "", nil
	case uint64(i) > uint64(len(names)):
		return "", fmt.Errorf("name %d of %d", i, len(names))
	}
	return names[i-1], nil
}

// maxHints is the API's limit per endpoint and kind of hint.
const maxHints = 8

func namesAt[T ~string](names []string, indexes []uint32) ([]T, error) {
	if len(indexes) > maxHints {
		return nil, fmt.Errorf("%d hints, at most %d are allowed", len(indexes), maxHints)
	}
	var out []T
	for _, i := range indexes {
		name, err := nameAt(names, i)
		if err != nil {
			return nil, err
		}
		if name == "" {
			return nil, errors.New("hint without a name")
		}
		out = append(out, T(name))
	}
	return out, nil
}

func checkName(name, namespace, object string) error {
	if ns, n, ok := SplitName(name); !ok || ns != namespace || n != object {
		return fmt.Errorf("content is of %q", ResourceName(namespace, object))
	}
	return nil
}

func decodeProtocol(p nodev1.Protocol) (proxy.Protocol, error) {
	out, ok := protocols[p]
	if !ok {
		return "", fmt.Errorf("unknown protocol %d", p)
	}
	return out, nil
}

func decodePort(p uint32, zero bool) (uint16, error) {
	if p > 65535 || p == 0 && !zero {
		return 0, fmt.Errorf("port number %d", p)
	}
	return uint16(p), nil
}

func decodeAddress(b []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("not an address: %d bytes", len(b))
	}
	return a, nil
}

func decodeAddresses(in [][]byte) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, b := range in {
		a, err := decodeAddress(b)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

func decodePrefix(p *nodev1.Prefix) (netip.Prefix, error) {
	a, err := decodeAddress(p.GetAddress())
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.GetBits() > uint32(a.BitLen()) {
		return netip.Prefix{}, fmt.Errorf("%d bits of %d", p.GetBits(), a.BitLen())
	}
	return netip.PrefixFrom(a, int(p.GetBits())).Masked(), nil
}

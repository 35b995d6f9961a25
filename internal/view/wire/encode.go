package wire

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

var protocolNumbers = map[proxy.Protocol]nodev1.Protocol{
	proxy.TCP:  nodev1.Protocol_PROTOCOL_TCP,
	proxy.UDP:  nodev1.Protocol_PROTOCOL_UDP,
	proxy.SCTP: nodev1.Protocol_PROTOCOL_SCTP,
}

// marshal is deterministic, as versions are hashes of its output.
func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// EncodeService marshals a Service. Ports of a protocol that has no
// number in the message are left out.
func EncodeService(s *proxy.Service) ([]byte, error) {
	m := &nodev1.Service{
		Namespace:           s.Name.Namespace,
		Name:                s.Name.Name,
		ClusterIps:          rawAddresses(s.ClusterIPs),
		ExternalIps:         rawAddresses(s.ExternalIPs),
		LoadBalancerIps:     rawAddresses(s.LoadBalancerIPs),
		InternalLocal:       s.InternalLocal,
		ExternalLocal:       s.ExternalLocal,
		AffinitySeconds:     uint32(s.AffinityTimeout / time.Second),
		HealthCheckNodePort: uint32(s.HealthCheckNodePort),
		PreserveDestination: s.PreserveDestination,
		Scope:               encodeScope(s.Scope),
		WarmUpMillis:        uint32(s.WarmUp / time.Millisecond),
	}
	for _, p := range s.SourceRanges {
		m.SourceRanges = append(m.SourceRanges, &nodev1.Prefix{Address: p.Addr().AsSlice(), Bits: uint32(p.Bits())})
	}
	m.Ports = encodePorts(s.Ports)
	if s.Routing != nil {
		for _, p := range m.Ports {
			p.Routing = encodeConsumers(encodeRouting(s.Routing[p.GetName()]), s.Routing[p.GetName()])
		}
	}
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal service %s: %w", s.Name, err)
	}
	return b, nil
}

func encodePorts(in []proxy.Port) []*nodev1.ServicePort {
	var out []*nodev1.ServicePort
	for _, p := range in {
		if protocol, ok := protocolNumbers[p.Protocol]; ok {
			out = append(out, &nodev1.ServicePort{
				Name:        p.Name,
				Protocol:    protocol,
				Port:        uint32(p.Port),
				NodePort:    uint32(p.NodePort),
				AppProtocol: p.AppProtocol,
			})
		}
	}
	return out
}

func encodeSlicePorts(in []proxy.SlicePort) []*nodev1.SlicePort {
	var out []*nodev1.SlicePort
	for _, p := range in {
		if protocol, ok := protocolNumbers[p.Protocol]; ok {
			out = append(out, &nodev1.SlicePort{Name: p.Name, Protocol: protocol, Port: uint32(p.Port)})
		}
	}
	return out
}

// EncodeSlice marshals a Slice.
func EncodeSlice(s *proxy.Slice) ([]byte, error) {
	m := &nodev1.EndpointSlice{
		Namespace: s.Name.Namespace,
		Name:      s.Name.Name,
		Service:   s.Service.Name,
		Ports:     encodeSlicePorts(s.Ports),
	}
	if !s.Trigger.IsZero() {
		m.TriggerUnixNanos = s.Trigger.UnixNano()
	}
	names := nameTable{index: map[string]uint32{"": 0}}
	for i, e := range s.Endpoints {
		endpoint := &nodev1.Endpoint{
			Address:     e.Addr.AsSlice(),
			Node:        names.of(e.Node),
			Zone:        names.of(string(e.Zone)),
			NotReady:    !e.Ready,
			NotServing:  !e.Serving,
			Terminating: e.Terminating,
			Weight:      e.Weight,
			Machine:     names.of(s.Machine(i)),
		}
		if i < len(s.ReadySince) {
			endpoint.ReadyUnixSeconds = seconds32(s.ReadySince[i])
		}
		if e.Hints != nil {
			endpoint.HintZones, endpoint.HintNodes = indexesOf(&names, e.Hints.Zones), indexesOf(&names, e.Hints.Nodes)
		}
		m.Endpoints = append(m.Endpoints, endpoint)
	}
	m.Names = names.names
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal endpoint slice %s/%s: %w", s.Name.Namespace, s.Name.Name, err)
	}
	return b, nil
}

// seconds32 is a time that fits the field; 0: it does not.
func seconds32(unix int64) int32 {
	if unix < 0 || unix > math.MaxInt32 {
		return 0
	}
	return int32(unix)
}

// nameTable numbers names from 1 in the order of their first use; 0 is none.
type nameTable struct {
	index map[string]uint32
	names []string
}

func (t *nameTable) of(name string) uint32 {
	i, ok := t.index[name]
	if !ok {
		t.names = append(t.names, name)
		i = uint32(len(t.names))
		t.index[name] = i
	}
	return i
}

func indexesOf[T ~string](t *nameTable, names []T) []uint32 {
	var out []uint32
	for _, name := range names {
		if name != "" {
			out = append(out, t.of(string(name)))
		}
	}
	return out
}

func rawAddresses(in []netip.Addr) [][]byte {
	var out [][]byte
	for _, a := range in {
		out = append(out, a.AsSlice())
	}
	return out
}

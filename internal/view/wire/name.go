package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// EncodeName marshals a Service that is resolved but not proxied.
func EncodeName(n *records.Name) ([]byte, error) {
	b, err := marshal(&nodev1.Name{
		Namespace: n.Name.Namespace, Name: n.Name.Name, ExternalName: n.ExternalName,
		ClusterIps: rawAddresses(n.ClusterIPs), Ports: encodePorts(n.Ports), Scope: encodeScope(n.Scope),
	})
	if err != nil {
		return nil, fmt.Errorf("marshal name of service %s: %w", n.Name, err)
	}
	return b, nil
}

// EncodeNameSlice marshals the names of a slice of a headless Service.
func EncodeNameSlice(s *records.Slice) ([]byte, error) {
	m := &nodev1.NameSlice{
		Namespace: s.Name.Namespace,
		Name:      s.Name.Name,
		Service:   s.Service.Name,
		Ports:     encodeSlicePorts(s.Ports),
		Cluster:   s.Cluster,
	}
	for _, t := range s.Targets {
		target := &nodev1.Target{Domain: t.Domain, Hostname: t.Hostname, Machine: t.Machine}
		if t.Domain == "" {
			target.Address = t.Addr.AsSlice()
		}
		m.Targets = append(m.Targets, target)
	}
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal names of endpoint slice %s/%s: %w", s.Name.Namespace, s.Name.Name, err)
	}
	return b, nil
}

// DecodeName reads a Name from the body of the resource of that name.
func DecodeName(name string, body []byte) (*records.Name, error) {
	var m nodev1.Name
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	n := &records.Name{
		Name:         proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()},
		ExternalName: m.GetExternalName(),
	}
	var err error
	if n.Scope, err = decodeScope(m.GetScope()); err != nil {
		return nil, err
	}
	if n.ClusterIPs, err = decodeAddresses(m.GetClusterIps()); err != nil {
		return nil, fmt.Errorf("cluster address: %w", err)
	}
	for _, p := range m.GetPorts() {
		port, err := decodeServicePort(p)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", p.GetName(), err)
		}
		n.Ports = append(n.Ports, port)
	}
	return n, nil
}

// DecodeNameSlice reads a NameSlice from the body of the resource of that name.
func DecodeNameSlice(name string, body []byte) (*records.Slice, error) {
	var m nodev1.NameSlice
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	if m.GetService() == "" {
		return nil, errors.New("no service")
	}
	s := &records.Slice{
		Name:    proxy.SliceName{Namespace: m.GetNamespace(), Name: m.GetName()},
		Service: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetService()},
		Cluster: m.GetCluster(),
	}
	var err error
	if s.Ports, err = decodeSlicePorts(m.GetPorts()); err != nil {
		return nil, err
	}
	for i, t := range m.GetTargets() {
		target := records.Target{Domain: t.GetDomain(), Hostname: t.GetHostname(), Machine: t.GetMachine()}
		if target.Domain == "" {
			if target.Addr, err = decodeAddress(t.GetAddress()); err != nil {
				return nil, fmt.Errorf("target %d: %w", i, err)
			}
		}
		s.Targets = append(s.Targets, target)
	}
	return s, nil
}

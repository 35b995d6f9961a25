package view

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// NameOf translates a Service that ServiceOf leaves out, for those who resolve
// its name. ok is false for those that are carried, and for those that have no
// address yet.
func NameOf(s *corev1.Service) (name *records.Name, ok bool) {
	if _, carried := ServiceOf(s); carried {
		return nil, false
	}
	out := &records.Name{Name: proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}}
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		out.ExternalName = domain(s.Spec.ExternalName)
		return out, out.ExternalName != ""
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return out, true
	}
	// Another proxy's: it is the same in all that names need.
	theirs := *s
	theirs.Labels = nil
	service, ok := ServiceOf(&theirs)
	if !ok {
		return nil, false
	}
	out.ClusterIPs, out.Ports = service.ClusterIPs, service.Ports
	return out, true
}

// NameSliceOf translates an EndpointSlice of a headless Service. Only ready
// endpoints have names.
func NameSliceOf(s *discoveryv1.EndpointSlice) *records.Slice { return nameSliceOf(s, nil) }

func nameSliceOf(s *discoveryv1.EndpointSlice, machines MachineOf) *records.Slice {
	out := &records.Slice{
		Name:    proxy.SliceName{Namespace: s.Namespace, Name: s.Name},
		Service: proxy.ServiceName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]},
	}
	for _, p := range s.Ports {
		if p.Port != nil && validPort(*p.Port) {
			out.Ports = append(out.Ports, proxy.SlicePort{Name: value(p.Name, ""), Port: uint16(*p.Port), Protocol: protocolOf(value(p.Protocol, corev1.ProtocolTCP))})
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !value(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
			continue
		}
		t := records.Target{Hostname: strings.ToLower(value(e.Hostname, ""))}
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			t.Domain = domain(e.Addresses[0])
		} else {
			t.Addr, _ = address(e.Addresses[0])
			t.Machine = machines.of(t.Addr, s.Namespace, e.TargetRef)
		}
		if t.Domain != "" || t.Addr.IsValid() {
			out.Targets = append(out.Targets, t)
		}
	}
	return out
}

// domain is a name in the one form in which names are compared.
func domain(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func encodeName(n *records.Name) ([]byte, error) {
	b, err := marshal(&nodev1.Name{
		Namespace: n.Name.Namespace, Name: n.Name.Name, ExternalName: n.ExternalName,
		ClusterIps: rawAddresses(n.ClusterIPs), Ports: encodePorts(n.Ports),
	})
	if err != nil {
		return nil, fmt.Errorf("marshal name of service %s: %w", n.Name, err)
	}
	return b, nil
}

func encodeNameSlice(s *records.Slice) ([]byte, error) {
	m := &nodev1.NameSlice{Namespace: s.Name.Namespace, Name: s.Name.Name, Service: s.Service.Name, Ports: encodeSlicePorts(s.Ports)}
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

// decodeNameOf reads a Name that travelled under a name.
func decodeNameOf(name string, body []byte) (*records.Name, error) {
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

// decodeNameSlice reads a NameSlice that travelled under a name.
func decodeNameSlice(name string, body []byte) (*records.Slice, error) {
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

// Update is what the feed learned. The embedded part is for the proxy; Names and
// NameSlices are for those who resolve names, beside Services.
type Update struct {
	proxy.Update
	Names      map[proxy.ServiceName]*records.Name
	NameSlices map[proxy.SliceName]*records.Slice
}

// Zone is the update as DNS needs it.
func (u Update) Zone() records.Update {
	return records.Update{Reset: u.Reset, Services: u.Services, Names: u.Names, Slices: u.NameSlices}
}

// Carried reports whether the update says anything to the proxy.
func (u Update) Carried() bool {
	return u.Reset || len(u.Services)+len(u.Slices)+len(u.Suspects) > 0
}

func (u Update) empty() bool {
	return !u.Carried() && len(u.Names)+len(u.NameSlices) == 0
}

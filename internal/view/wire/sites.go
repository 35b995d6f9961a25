package wire

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// EncodeRemote marshals what other sites offer under the name of a Service.
func EncodeRemote(r *sites.Remote) ([]byte, error) {
	m := &nodev1.Remote{
		Namespace: r.Service.Namespace, Name: r.Service.Name, Mesh: r.Mesh, Spread: r.Spread, EgressOnly: r.EgressOnly,
		Egresses: encodeGateways(r.Egresses), External: encodeExternal(r.External), Hosts: r.Hosts,
	}
	for _, p := range r.Ports {
		m.Ports = append(m.Ports, &nodev1.RemotePort{
			Name: p.Name, Port: uint32(p.Number), Sni: p.SNI, Target: uint32(p.Target), Split: encodeSplit(p.Split),
		})
	}
	for _, s := range r.Sites {
		site := &nodev1.RemoteSite{Site: s.Name, Instances: s.Instances, Ingresses: encodeGateways(s.Ingresses)}
		for _, p := range s.Ports {
			site.Ports = append(site.Ports, uint32(p))
		}
		m.Sites = append(m.Sites, site)
	}
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal other sites of service %s: %w", r.Service, err)
	}
	return b, nil
}

func encodeSplit(s *sites.Split) *nodev1.Split {
	if s == nil {
		return nil
	}
	m := &nodev1.Split{Here: s.Here}
	for _, site := range slices.Sorted(maps.Keys(s.Sites)) {
		m.Sites = append(m.Sites, &nodev1.SitePart{Site: site, Part: s.Sites[site]})
	}
	return m
}

func decodeSplit(m *nodev1.Split) (*sites.Split, error) {
	if m == nil {
		return nil, nil
	}
	s := &sites.Split{Here: m.GetHere(), Sites: make(map[string]uint32, len(m.GetSites()))}
	sum := uint64(s.Here)
	for _, p := range m.GetSites() {
		if p.GetSite() == "" || p.GetPart() == 0 || s.Sites[p.GetSite()] != 0 {
			return nil, fmt.Errorf("the part %d of site %q is 0, or it is there twice", p.GetPart(), p.GetSite())
		}
		s.Sites[p.GetSite()] = p.GetPart()
		sum += uint64(p.GetPart())
	}
	if sum == 0 || sum > math.MaxUint32 {
		return nil, fmt.Errorf("the parts sum to %d", sum)
	}
	return s, nil
}

func encodeGateways(in []sites.Gateway) []*nodev1.Gateway {
	var out []*nodev1.Gateway
	for _, g := range in {
		out = append(out, &nodev1.Gateway{Name: g.Name, Host: g.Host, Port: uint32(g.Port)})
	}
	return out
}

// EncodeOffer marshals a Service that this site offers to others.
func EncodeOffer(o *sites.Offer) ([]byte, error) {
	m := &nodev1.Offer{
		Namespace: o.Service.Namespace, Name: o.Service.Name, Mesh: o.Mesh, ToSites: o.ToSites, External: encodeExternal(o.External),
		Proxied: o.Proxied, ServiceAccounts: o.ServiceAccounts,
	}
	for _, p := range o.Ports {
		m.Ports = append(m.Ports, &nodev1.OfferedPort{
			Name: p.Name, Sni: p.SNI, ProxyProtocol: p.ProxyProtocol, Target: uint32(p.Target),
		})
	}
	b, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal offer of service %s: %w", o.Service, err)
	}
	return b, nil
}

var errNoMesh = errors.New("no mesh")

// DecodeRemote reads a Remote from the body of the resource of that name.
func DecodeRemote(name string, body []byte) (*sites.Remote, error) {
	var m nodev1.Remote
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	r := &sites.Remote{
		Service: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}, Mesh: m.GetMesh(),
		Spread: m.GetSpread(), EgressOnly: m.GetEgressOnly(),
	}
	if r.Mesh == "" {
		return nil, errNoMesh
	}
	for _, p := range m.GetPorts() {
		number, err := decodePort(p.GetPort(), false)
		if err != nil || !mesh.IsSNI(p.GetSni()) {
			return nil, fmt.Errorf("port %q: number %d or server name %q is invalid", p.GetName(), p.GetPort(), p.GetSni())
		}
		target, err := decodePort(p.GetTarget(), true)
		if err != nil {
			return nil, fmt.Errorf("target of port %q: %w", p.GetName(), err)
		}
		split, err := decodeSplit(p.GetSplit())
		if err != nil {
			return nil, fmt.Errorf("split of port %q: %w", p.GetName(), err)
		}
		r.Ports = append(r.Ports, sites.RemotePort{Name: p.GetName(), Number: number, SNI: p.GetSni(), Target: target, Split: split})
	}
	for _, host := range m.GetHosts() {
		if errs := validation.IsDNS1123Subdomain(host); len(errs) > 0 {
			return nil, fmt.Errorf("host %.260q: %s", host, errs[0])
		}
		r.Hosts = append(r.Hosts, host)
	}
	var err error
	if r.External, err = decodeExternal(m.GetExternal()); err != nil {
		return nil, err
	}
	if r.Egresses, err = decodeGateways(m.GetEgresses()); err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	for _, s := range m.GetSites() {
		site, err := decodeSite(s)
		if err != nil {
			return nil, fmt.Errorf("site %q: %w", s.GetSite(), err)
		}
		r.Sites = append(r.Sites, site)
	}
	return r, nil
}

func decodeSite(s *nodev1.RemoteSite) (out sites.Site, err error) {
	out = sites.Site{Name: s.GetSite(), Instances: s.GetInstances()}
	if out.Name == "" {
		return out, errors.New("no name")
	}
	for _, p := range s.GetPorts() {
		number, err := decodePort(p, false)
		if err != nil {
			return out, err
		}
		out.Ports = append(out.Ports, number)
	}
	out.Ingresses, err = decodeGateways(s.GetIngresses())
	return out, err
}

func decodeGateways(in []*nodev1.Gateway) ([]sites.Gateway, error) {
	var out []sites.Gateway
	for _, g := range in {
		port, err := decodePort(g.GetPort(), false)
		if err != nil || g.GetHost() == "" {
			return nil, fmt.Errorf("gateway %q: address %q or port %d is invalid", g.GetName(), g.GetHost(), g.GetPort())
		}
		out = append(out, sites.Gateway{Name: g.GetName(), Host: g.GetHost(), Port: port})
	}
	return out, nil
}

// DecodeOffer reads an Offer from the body of the resource of that name.
func DecodeOffer(name string, body []byte) (*sites.Offer, error) {
	var m nodev1.Offer
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if err := checkName(name, m.GetNamespace(), m.GetName()); err != nil {
		return nil, err
	}
	o := &sites.Offer{
		Service: proxy.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}, Mesh: m.GetMesh(), ToSites: m.GetToSites(),
		Proxied: m.GetProxied(), ServiceAccounts: m.GetServiceAccounts(),
	}
	if o.Mesh == "" {
		return nil, errNoMesh
	}
	for _, p := range m.GetPorts() {
		if !mesh.IsSNI(p.GetSni()) {
			return nil, fmt.Errorf("port %q: server name %q is invalid", p.GetName(), p.GetSni())
		}
		target, err := decodePort(p.GetTarget(), true)
		if err != nil {
			return nil, fmt.Errorf("target of port %q: %w", p.GetName(), err)
		}
		o.Ports = append(o.Ports, sites.OfferedPort{
			Name: p.GetName(), SNI: p.GetSni(), ProxyProtocol: p.GetProxyProtocol(), Target: target,
		})
	}
	var err error
	o.External, err = decodeExternal(m.GetExternal())
	if err != nil {
		return nil, err
	}
	return o, nil
}

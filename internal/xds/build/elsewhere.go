package build

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Hosts has the addresses of gateways that are known by DNS names. Its methods must not block.
type Hosts interface {
	// Want names, and no others.
	Want(names []string)
	// Addresses of a name, or the address that it is; none: they are not known.
	Addresses(name string) []netip.Addr
}

// matchTunnel is the key by which an endpoint's metadata choose the TLS of a gateway.
const matchTunnel = "tunnel"

// beyond is what is offered at a service port from outside this site.
type beyond struct {
	remote *sites.Remote
	port   sites.RemotePort
	// split is what a plan says; the zero value: there is none.
	split proxy.Split
	ways  []way
}

// way leads out of this site by gateways.
type way struct {
	// site of the gateways. That of an egress is this one, and it stands for all others.
	site   locality.Site
	egress bool
	// weight among the ways; 0: it is used only where no other one answers.
	weight, instances uint32
	gateways          []netip.AddrPort
	// proxied: mutual TLS passes the gateways, up to the proxy of the endpoint. Otherwise it ends
	// at the first of them.
	proxied bool
}

// gateway is the value of matchTunnel for a way.
func (w *way) gateway() string {
	if w.egress {
		return "egress"
	}
	return "ingress|" + string(w.site)
}

// identity of the gateways of a way.
func (w *way) identity(d mesh.Domain) (mesh.ID, error) {
	if w.egress {
		return mesh.Egress(d, string(w.site))
	}
	return mesh.Ingress(d, string(w.site))
}

// beyondOf a service port, with what the plan of a zone says; nil: nothing is offered from outside.
func (b *Builder) beyondOf(zone locality.Zone, of ServicePort) *beyond {
	remote, err := b.sites.Remote(proxy.ServiceName(of.Service))
	if err != nil {
		b.config.Logger.Error("other sites are left out", "service", of.Service, "error", err)
	}
	if remote == nil || err != nil {
		return nil
	}
	if b.config.Plans != nil {
		remote = remote.WithSplits(func(port string) *sites.Split { return b.config.Plans.Split(zone, of.Service, port) })
	}
	i := slices.IndexFunc(remote.Ports, func(p sites.RemotePort) bool { return p.Number == of.Port })
	if i < 0 {
		return nil
	}
	out := &beyond{remote: remote, port: remote.Ports[i], split: remote.Elsewhere().Splits[remote.Ports[i].Name]}
	b.addWays(out)
	return out
}

func (b *Builder) addWays(to *beyond) {
	leaving := to.remote.Leaving(to.port)
	if to.remote.EgressOnly {
		w := way{
			site: b.config.Site, egress: true, gateways: b.gateways(to.remote.Egresses),
			proxied: to.remote.External == nil && len(leaving) > 0,
		}
		for _, s := range leaving {
			w.weight, w.instances, w.proxied = w.weight+s.Weight, w.instances+s.Instances, w.proxied && s.Proxied
		}
		w.weight, w.instances = max(w.weight, 1), max(w.instances, 1)
		to.add(w)
		return
	}
	for _, s := range leaving {
		to.add(way{site: locality.Site(s.Name), weight: s.Weight, instances: s.Instances, gateways: b.gateways(s.Ingresses), proxied: s.Proxied})
	}
}

func (t *beyond) add(w way) {
	if len(w.gateways) > 0 {
		t.ways = append(t.ways, w)
	}
}

// gateways by address, each once.
func (b *Builder) gateways(all []sites.Gateway) []netip.AddrPort {
	var out []netip.AddrPort
	for _, g := range all {
		for _, a := range b.hostAddresses(g.Host) {
			if at := netip.AddrPortFrom(a, g.Port); !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	return out
}

func (b *Builder) hostAddresses(host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	if b.config.Hosts == nil {
		return nil
	}
	return b.config.Hosts.Addresses(host)
}

// storeSites keeps what other sites offer, and returns the Services that it may be of concern to.
func (b *Builder) storeSites(d *catalog.Delta) map[catalog.Key]struct{} {
	changed := map[catalog.Key]struct{}{}
	for _, name := range b.sites.Apply(d) {
		changed[catalog.Key(name)] = struct{}{}
	}
	if b.config.Hosts == nil || len(d.ZoneIngresses)+len(d.ZoneEgresses) == 0 {
		return changed
	}
	names := map[string]struct{}{}
	add := func(host string) {
		if _, err := netip.ParseAddr(host); err != nil && host != "" {
			names[host] = struct{}{}
		}
	}
	for _, i := range b.snapshot.ZoneIngresses.All() {
		add(i.Spec.AdvertisedAddress)
		add(i.Spec.Address)
	}
	for _, e := range b.snapshot.ZoneEgresses.All() {
		add(e.Spec.Address)
	}
	b.config.Hosts.Want(slices.Sorted(maps.Keys(names)))
	return changed
}

// SetHosts takes over the addresses of gateways that Config.Hosts has now.
func (b *Builder) SetHosts() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snapshot == nil {
		return
	}
	beyond := func(key catalog.Key) bool {
		remote, _ := b.sites.Remote(proxy.ServiceName(key))
		return remote != nil
	}
	services, addresses := map[catalog.Key]struct{}{}, map[netip.Addr]struct{}{}
	for key := range b.byService {
		if beyond(key) {
			services[key] = struct{}{}
		}
	}
	for a := range b.byAddress {
		if beyond(b.vips[a].service) {
			addresses[a] = struct{}{}
		}
	}
	b.refresh(services, addresses, false)
}

// tlsBeyond adds to the TLS of a cluster what leads out of this site: whom the proxies of other
// sites may be, and the gateways at which TLS ends.
func (b *Builder) tlsBeyond(t *clientTLS, to *beyond, domain mesh.Domain, local []mesh.ID) {
	ids := slices.Clone(local)
	t.sni = to.port.SNI
	for i := range to.ways {
		w := &to.ways[i] // also where TLS passes: so it is there before an endpoint asks for it
		id, err := w.identity(domain)
		if err != nil {
			b.config.Logger.Error("a gateway is left out", "site", w.site, "error", err)
			continue
		}
		t.gateways = append(t.gateways, gatewayTLS{match: w.gateway(), id: id.String()})
	}
	for _, s := range to.remote.Offering(to.port.Number) {
		for _, account := range s.ServiceAccounts {
			if id, err := mesh.Workload(domain, to.remote.Service.Namespace, account); err == nil && s.Proxied {
				ids = append(ids, id)
			}
		}
	}
	t.accept = mesh.Accounts(ids...)
}

package build

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// Role of a gateway between sites.
type Role uint8

// The roles. NoRole is that of clients that are no gateways.
const (
	NoRole Role = iota
	Ingress
	Egress
)

func (r Role) String() string { return [...]string{"none", "ingress", "egress"}[r] }

const (
	sniPrefix = "sni|"
	// endpointTimeout bounds connecting to one endpoint or gateway, as in our own engine.
	endpointTimeout = time.Second
	// maxGatewayNames that a gateway's Envoy may ask for: the endpoints of all clusters.
	maxGatewayNames = 100_000
)

// SNIName is the cluster of a server name, and of its endpoints.
func SNIName(sni string) string { return sniPrefix + sni }

// fleetKey is gateways that have the same resources: those of one role and topology zone. They
// serve all meshes, whose names are in server names.
type fleetKey struct {
	role Role
	zone locality.Zone
}

// fleet is the gateways of a key that are connected. Each Service has units for its ports that are
// served, all of which a wildcard has.
type fleet struct {
	fleetKey
	layer      *layer
	quarantine *delta.Quarantine
	streams    int
	// served are the server names by Service, claims the Services by server name: the first one has it.
	served map[catalog.Key][]string
	claims map[string][]catalog.Key
	// outside are the ports of services outside every mesh that an egress connects to, by Service.
	outside map[catalog.Key][]ServicePort
}

// ConnectGateway is Connect for the Envoy of a ZoneIngress or ZoneEgress of this site, in a topology
// zone. The caller has authenticated it.
func (b *Builder) ConnectGateway(role Role, name string) (*Connection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snapshot == nil {
		return nil, errors.New("the control plane is still reading its store")
	}
	if !b.hasGateway(role, name) {
		return nil, fmt.Errorf("there is no %s %s of this zone", role, name)
	}
	ended, end := context.WithCancel(context.Background())
	key := fleetKey{role, b.zoneOfNode(name)}
	f := b.fleets[key]
	if f == nil {
		f = &fleet{
			fleetKey: key, layer: newLayer(delta.Options{Types: []string{ClusterType, EndpointType, SecretType}}), quarantine: delta.NewQuarantine(),
			served: map[catalog.Key][]string{}, claims: map[string][]catalog.Key{},
			outside: map[catalog.Key][]ServicePort{},
		}
		b.fleets[key] = f
		if role == Egress {
			b.use(f.layer, delta.Ref{Type: SecretType, Name: SystemRoots}, func() unit { return unit{make: b.makeSystemRoots} })
		}
		for service := range b.snapshot.Services.All() {
			b.serveNames(f, service)
		}
	}
	f.streams++
	c := &Connection{
		Class: Class{Mesh: AllMeshes, Zone: key.zone, Variant: Gateway}, End: ended, builder: b, gateway: &gatewayStream{f, name, end},
		Config: delta.LayeredConfig{
			Layers: []*delta.Scope{f.layer.scope}, Order: order[:], Gated: gated[:], Prompt: ListenerType, Quarantine: f.quarantine,
			MaxNames: maxGatewayNames,
		},
	}
	b.gatewayStreams[c.gateway] = struct{}{}
	return c, nil
}

func (b *Builder) hasGateway(role Role, name string) bool {
	if role == Ingress {
		i, ok := b.snapshot.ZoneIngresses.Get(catalog.Key{Name: name})
		return ok && b.ofSite(i.Labels)
	}
	e, ok := b.snapshot.ZoneEgresses.Get(catalog.Key{Name: name})
	return ok && b.ofSite(e.Labels)
}

// ofSite reports whether an object with these labels is of this site, and no copy.
func (b *Builder) ofSite(labels map[string]string) bool {
	zone := labels[meshv1alpha1.LabelZone]
	return zone == "" || zone == string(b.config.Site)
}

// gatewayStream is one of a gateway; end is called when it has to be opened again, or is over.
type gatewayStream struct {
	fleet *fleet
	name  string
	end   context.CancelFunc
}

// leave ends the stream of a gateway.
func (b *Builder) leave(s *gatewayStream) {
	s.end()
	delete(b.gatewayStreams, s)
	f := s.fleet
	if f.streams--; f.streams > 0 {
		return
	}
	for _, u := range f.layer.units {
		b.index(u, false)
	}
	delete(b.fleets, f.fleetKey)
}

// serveAgain brings the server names of Services up to date, in all fleets.
func (b *Builder) serveAgain(services map[catalog.Key]struct{}) {
	for _, f := range b.fleets {
		for key := range services {
			b.serveNames(f, key)
		}
	}
}

// serveNames brings up to date what a fleet serves of a Service now.
func (b *Builder) serveNames(f *fleet, key catalog.Key) {
	var names []string
	if f.role == Egress {
		b.serveOutside(f, key)
	}
	if f.role == Ingress {
		if o := b.passedOffer(key); o != nil {
			for i := range o.Ports {
				names = append(names, o.Ports[i].SNI)
			}
		}
	} else if r := b.leadingOut(key); r != nil {
		for i := range r.Ports {
			names = append(names, r.Ports[i].SNI)
		}
	}
	for _, sni := range names {
		if !slices.Contains(f.served[key], sni) {
			if f.claims[sni] = append(f.claims[sni], key); len(f.claims[sni]) == 1 {
				b.useSNI(f, key, sni)
			}
		}
	}
	for _, sni := range f.served[key] {
		if !slices.Contains(names, sni) {
			b.dropSNI(f, key, sni)
		}
	}
	if len(names) == 0 {
		delete(f.served, key)
		return
	}
	f.served[key] = names
}

// useSNI adds the endpoints before the cluster that names them.
func (b *Builder) useSNI(f *fleet, key catalog.Key, sni string) {
	name := SNIName(sni)
	ref := func(typ string) delta.Ref { return delta.Ref{Type: typ, Name: name} }
	b.use(f.layer, ref(EndpointType), func() unit { return unit{service: key, make: func() *made { return b.makeSNIEndpoints(f, key, sni) }} })
	b.use(f.layer, ref(ClusterType), func() unit { return unit{service: key, make: func() *made { return b.makeSNI(f, key, sni) }} })
}

// dropSNI removes a server name, or gives it to the next Service with a claim to it: an import may
// have two virtual addresses for a time.
func (b *Builder) dropSNI(f *fleet, key catalog.Key, sni string) {
	claims := f.claims[sni]
	at := slices.Index(claims, key)
	claims = slices.Delete(claims, at, at+1)
	f.claims[sni] = claims
	if at == 0 {
		b.unuse(f.layer, delta.Ref{Type: ClusterType, Name: SNIName(sni)})
		b.unuse(f.layer, delta.Ref{Type: EndpointType, Name: SNIName(sni)})
		if len(claims) > 0 {
			b.useSNI(f, claims[0], sni)
		}
	}
	if len(claims) == 0 {
		delete(f.claims, sni)
	}
}

// passedOffer is a Service whose mutual TLS passes an ingress of this site: each endpoint has a proxy,
// which authenticates clients. Where only some sites may use it an ingress has to see from which one a
// client is, and ends TLS.
func (b *Builder) passedOffer(key catalog.Key) *sites.Offer {
	o, err := b.sites.Offer(proxy.ServiceName(key))
	if err != nil {
		b.config.Logger.Error("a Service is not offered", "service", key, "error", err)
		return nil
	}
	if o == nil || !o.Proxied || len(o.ToSites) > 0 || o.External != nil {
		return nil
	}
	return o
}

// leadingOut is what other sites offer under the name of a Service; nil: nothing.
func (b *Builder) leadingOut(key catalog.Key) *sites.Remote {
	r, err := b.sites.Remote(proxy.ServiceName(key))
	if err != nil {
		b.config.Logger.Error("other sites are left out", "service", key, "error", err)
		return nil
	}
	if r == nil || r.External != nil || len(r.Hosts) > 0 { // TLS to services outside every mesh ends at gateways
		return nil
	}
	return r
}

// makeSNI is the cluster of a server name: bytes pass it as they are.
func (b *Builder) makeSNI(f *fleet, key catalog.Key, sni string) *made {
	name := SNIName(sni)
	u := &upstream{}
	if f.role == Egress {
		u = b.policedEgress(key, sni)
	} else if b.passedOffer(key) == nil {
		return nil
	}
	if u == nil {
		return nil
	}
	c := upstreamCluster(name, u)
	c.LrsServer = nil // the proxies at both ends report the load
	c.EdsClusterConfig = &cluster.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: name}
	if !u.policed {
		c.ConnectTimeout = durationpb.New(endpointTimeout)
	}
	return &made{marshalled(c), &delta.ResourceOptions{Follower: delta.Ref{Type: EndpointType, Name: name}}}
}

// policedEgress is a service port behind an egress, with what the BackendPolicies of its own namespace say of
// connections; nil: no other site offers it.
func (b *Builder) policedEgress(key catalog.Key, sni string) *upstream {
	r := b.leadingOut(key)
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Ports, func(p sites.RemotePort) bool { return p.SNI == sni })
	if i < 0 {
		return nil
	}
	u := &upstream{port: ServicePort{key, r.Ports[i].Number}}
	of := &class{Class: Class{Mesh: r.Mesh, Namespace: key.Namespace, Variant: Gateway}}
	b.police(of, u, r.Ports[i].Name, "tcp")
	u.routes, u.tcp, u.protocol = nil, nil, TCP // TLS is not seen
	if u.settings != nil {
		// Health of endpoints is for those who see them, and each connection is a client's.
		u.settings.HealthCheck, u.settings.Balancer = meshv1alpha1.BackendHealthCheck{}, meshv1alpha1.BackendBalancer{}
	}
	return u
}

func (b *Builder) makeSNIEndpoints(f *fleet, key catalog.Key, sni string) *made {
	a := &assignment{name: SNIName(sni), site: b.config.Site, choice: &proxy.Choice{}}
	if f.role == Egress {
		if a.beyond = b.waysOut(f.zone, key, sni); a.beyond == nil {
			return nil
		}
		return unlisted(loadAssignment(a))
	}
	o := b.passedOffer(key)
	s, ok := b.service(key)
	if o == nil || !ok {
		return nil
	}
	i := slices.IndexFunc(o.Ports, func(p sites.OfferedPort) bool { return p.SNI == sni })
	if i < 0 {
		return nil
	}
	j := slices.IndexFunc(s.Ports, func(p proxy.Port) bool { return p.Protocol == proxy.TCP && p.Name == o.Ports[i].Name })
	if j < 0 {
		return nil
	}
	port := s.Ports[j]
	of := ServicePort{key, port.Port}
	policed := b.localityOf(of, port.Name, "")
	state := choose.Slices(s, port, b.slicesOf(f.zone, key), choose.Node{
		Zone: f.zone, Suspects: b.suspects, Anywhere: policed.Mode == meshv1alpha1.LocalityOff,
	})
	// Endpoints of both families: an ingress connects by either.
	a.choice = &proxy.Choice{
		Why:      state.IPv4.Why,
		Cluster:  b.notGateways(state.IPv4.Cluster, state.IPv6.Cluster),
		Fallback: b.notGateways(state.IPv4.Fallback, state.IPv6.Fallback),
	}
	if len(state.IPv4.Cluster) == 0 {
		a.choice.Why = state.IPv6.Why
	}
	a.overProvisioning = translate.Overprovisioning(&policy.Backend{Locality: policed})
	a.prefer = b.preferencesOf(&policed, f.zone, of, view{})
	return unlisted(loadAssignment(a))
}

// notGateways leaves out addresses of this site's ingresses, which would lead in a circle.
func (b *Builder) notGateways(all ...[]proxy.Target) []proxy.Target {
	return slices.DeleteFunc(slices.Concat(all...), func(t proxy.Target) bool { return has(b.ingressesAt, t.Addr) })
}

// storeIngresses keeps where the ingresses of this site listen, and adds the Services whose endpoints
// are not to be among these addresses.
func (b *Builder) storeIngresses(changed map[catalog.Key]struct{}) {
	b.ingressesAt = map[netip.AddrPort]struct{}{}
	for _, i := range b.snapshot.ZoneIngresses.All() {
		if a, err := netip.ParseAddr(i.Spec.Address); err == nil && b.ofSite(i.Labels) {
			b.ingressesAt[netip.AddrPortFrom(a.Unmap(), uint16(i.Spec.Port))] = struct{}{}
		}
	}
	for key, f := range b.fleets {
		for service := range f.served {
			if key.role == Ingress {
				changed[service] = struct{}{}
			}
		}
	}
}

// waysOut are the ingresses of other sites for a server name, with what the plan of a zone says.
func (b *Builder) waysOut(zone locality.Zone, key catalog.Key, sni string) *beyond {
	r := b.leadingOut(key)
	if r == nil {
		return nil
	}
	if b.config.Plans != nil {
		r = r.WithSplits(func(port string) *sites.Split { return b.config.Plans.Split(zone, key, port) })
	}
	i := slices.IndexFunc(r.Ports, func(p sites.RemotePort) bool { return p.SNI == sni })
	if i < 0 {
		return nil
	}
	out := &beyond{remote: r, port: r.Ports[i]}
	for _, s := range r.Leaving(out.port) {
		out.add(way{site: locality.Site(s.Name), weight: s.Weight, instances: s.Instances, gateways: b.gateways(s.Ingresses), proxied: true})
	}
	return out
}

// endGateways ends the streams of gateways that are gone, or of another topology zone: the next one
// has what they are to have.
func (b *Builder) endGateways(d *catalog.Delta) {
	if len(b.gatewayStreams) == 0 || len(d.Nodes)+len(d.ZoneIngresses)+len(d.ZoneEgresses) == 0 {
		return
	}
	for s := range b.gatewayStreams {
		if !b.hasGateway(s.fleet.role, s.name) || b.zoneOfNode(s.name) != s.fleet.zone {
			delete(b.gatewayStreams, s)
			s.end()
		}
	}
}

// zoneOfNode is the topology zone of a gateway, which has the name of its Node, or of its Pod on one.
func (b *Builder) zoneOfNode(name string) locality.Zone {
	if p, ok := b.snapshot.Pods.Get(catalog.Key{Namespace: b.config.GatewayNamespace, Name: name}); ok && b.config.GatewayNamespace != "" {
		name = p.Spec.NodeName
	}
	if n, ok := b.snapshot.Nodes.Get(catalog.Key{Name: name}); ok {
		return locality.ZoneOf(n.Labels)
	}
	return ""
}

// engineTimeout bounds connecting to a service outside every mesh, as in our own engine.
const engineTimeout = 3 * time.Second

// serveOutside brings up to date which ports of a Service are outside every mesh, and reached by egresses.
func (b *Builder) serveOutside(f *fleet, key catalog.Key) {
	var ports []ServicePort
	if r := b.outsideBehind(key); r != nil {
		for i := range r.Ports {
			ports = append(ports, ServicePort{key, r.Ports[i].Number})
		}
	}
	for _, of := range ports {
		if !slices.Contains(f.outside[key], of) {
			b.use(f.layer, outsideRef(of), func() unit { return unit{service: key, make: func() *made { return b.makeOutside(of) }} })
		}
	}
	for _, of := range f.outside[key] {
		if !slices.Contains(ports, of) {
			b.unuse(f.layer, outsideRef(of))
		}
	}
	if len(ports) == 0 {
		delete(f.outside, key)
		return
	}
	f.outside[key] = ports
}

func outsideRef(of ServicePort) delta.Ref { return delta.Ref{Type: ClusterType, Name: OutsideName(of)} }

// outsideBehind is a service outside every mesh that this site's egresses connect to; nil: it is none.
func (b *Builder) outsideBehind(key catalog.Key) *sites.Remote {
	r, err := b.sites.Remote(proxy.ServiceName(key))
	if err != nil || r == nil || r.External == nil || !r.EgressOnly {
		return nil // an error is in the log already
	}
	return r
}

// makeOutside is the cluster by which the engine of an egress has connections made to a service outside
// every mesh, with what the BackendPolicies of its own namespace say; nil: it makes them itself, for the reasons
// of outsideOf.
func (b *Builder) makeOutside(of ServicePort) *made {
	r := b.outsideBehind(of.Service)
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Ports, func(p sites.RemotePort) bool { return p.Number == of.Port })
	if i < 0 {
		return nil
	}
	if t := r.External.TLS; t != nil && t.Secrets {
		return nil // the engine has them
	}
	u := &upstream{port: of, cluster: OutsideName(of)}
	b.police(&class{Class: Class{Mesh: r.Mesh, Namespace: of.Service.Namespace, Variant: Gateway}}, u, r.Ports[i].Name, "tcp")
	u.routes, u.tcp, u.protocol = nil, nil, TCP
	if u.settings != nil {
		u.settings.Balancer = meshv1alpha1.BackendBalancer{} // each connection is the engine's
	}
	if u.outside = b.outsideOf(&beyond{remote: r, port: r.Ports[i]}, TCP); u.outside == nil {
		return nil
	}
	c := upstreamCluster(u.cluster, u)
	c.LrsServer = nil // the proxies of clients report the load
	if !u.policed {
		c.ConnectTimeout = durationpb.New(engineTimeout)
	}
	return &made{marshalled(c), &delta.ResourceOptions{}}
}

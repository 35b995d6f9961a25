package build

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// message is a resource of xDS.
type message interface {
	proto.Message
	ValidateAll() error
}

// marshalled is a resource as it is sent: the same bytes wherever it is made. One that clients
// would refuse is never published.
func marshalled(m message) []byte {
	body, err := encoded(m)
	if err != nil {
		panic(errInvalid{err})
	}
	return body
}

// encoded is marshalled, and an error for what clients would refuse.
func encoded(m message) ([]byte, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

func unlisted(m message) *made {
	return &made{marshalled(m), &delta.ResourceOptions{Unlisted: true}}
}

// service is a Service as proxies see it, and its object.
func (b *Builder) service(key catalog.Key) (*proxy.Service, bool) {
	object, ok := b.snapshot.Services.Get(key)
	if !ok {
		return nil, false
	}
	s, ok := b.converted[key]
	if !ok {
		if s, ok = kube.ServiceOf(object); !ok {
			return nil, false
		}
		b.converted[key] = s
	}
	s.Scope = kube.ScopeOf(object, b.meshOf(key.Namespace))
	return s, true
}

// allowed reports whether workloads of a mesh may use a Service.
func (b *Builder) allowed(key catalog.Key, meshName string) bool {
	s, ok := b.service(key)
	return ok && s.Scope.Allows(meshName)
}

// portsOf a Service that proxies carry: those of TCP.
func (b *Builder) portsOf(key catalog.Key) []ServicePort {
	s, ok := b.service(key)
	if !ok {
		return nil
	}
	var out []ServicePort
	for _, p := range s.Ports {
		if p.Protocol == proxy.TCP {
			out = append(out, ServicePort{key, p.Port})
		}
	}
	return out
}

func (b *Builder) port(of ServicePort) (*proxy.Service, proxy.Port, bool) {
	s, ok := b.service(of.Service)
	if !ok {
		return nil, proxy.Port{}, false
	}
	i := slices.IndexFunc(s.Ports, func(p proxy.Port) bool { return p.Protocol == proxy.TCP && p.Port == of.Port })
	if i < 0 {
		return nil, proxy.Port{}, false
	}
	return s, s.Ports[i], true
}

// portAt is the service port that answers at an address.
func (b *Builder) portAt(at netip.AddrPort) (ServicePort, bool) {
	f, ok := b.vips[at.Addr()]
	if !ok {
		return ServicePort{}, false
	}
	port := ServicePort{f.service, at.Port()}
	if f.target != 0 {
		port.Port = f.target
	}
	_, _, ok = b.port(port)
	return port, ok
}

// frontendsOf a service port are the addresses at which it answers.
func (b *Builder) frontendsOf(of ServicePort) []netip.AddrPort {
	s, port, ok := b.port(of)
	if !ok {
		return nil
	}
	var out []netip.AddrPort
	for _, a := range s.ClusterIPs {
		if b.vips[a].service == of.Service {
			out = append(out, netip.AddrPortFrom(a, port.Port))
		}
	}
	return out
}

// upstreamOf a service port, for a class; nil: proxies of the class may not use it.
func (b *Builder) upstreamOf(c *class, of ServicePort) *upstream {
	s, port, ok := b.port(of)
	if !ok || !s.Scope.Allows(c.Mesh) {
		return nil
	}
	out := &upstream{
		port: of, cluster: b.clusterName(of), protocol: protocolOf(port.AppProtocol), affinity: s.AffinityTimeout > 0, grpc: c.Variant == GRPC,
	}
	b.police(c, out, port.Name, port.AppProtocol)
	out.endpoints = viewed(of, b.viewOf(c, of, port.Name))
	to := b.beyondOf(c.Zone, of)
	external := b.external(of.Service)
	switch {
	case c.Variant == GRPC && !b.viaNode(of):
		out.tls = b.clientTLS(c, of, nil)
		return out
	case c.Variant == GRPC:
		return out // its endpoint is the virtual address
	case external && to != nil && to.remote.External != nil && !to.remote.EgressOnly:
		if out.outside = b.outsideOf(to, out.protocol); out.outside != nil {
			return out
		}
	case !external || to != nil:
		if out.tls = b.clientTLS(c, of, to); out.tls != nil || to == nil {
			if out.tls != nil {
				out.tls.http2 = out.protocol == HTTP2 || out.undeclared
			}
			return out
		}
	}
	// Gateways admit nobody without a certificate. The node's own data path has one, and knows
	// what is outside: it takes over at the virtual address.
	out.static = netip.AddrPortFrom(s.ClusterIPs[0], port.Port)
	return out
}

// viaNode reports whether programs without a proxy reach a service port by the data path of their
// node, at the virtual address, as it has endpoints outside this site.
func (b *Builder) viaNode(of ServicePort) bool {
	return b.external(of.Service) || b.beyondOf("", of) != nil
}

// external reports whether a Service is that of a service outside every mesh.
func (b *Builder) external(key catalog.Key) bool {
	if _, external := b.snapshot.ExternalServices.Get(key); external {
		return true
	}
	object, _ := b.snapshot.Services.Get(key)
	return object != nil && object.Labels[meshv1alpha1.LabelExternalService] != ""
}

// meshTLS is the mesh's trust domain, if its workloads have certificates.
func (b *Builder) meshTLS(name string) (domain mesh.Domain, m *meshv1alpha1.Mesh, ok bool) {
	m, ok = b.snapshot.Meshes.Get(catalog.Key{Name: name})
	if !ok || m.Spec.MTLS == nil || m.Spec.MTLS.EnabledBackend == "" {
		return mesh.Domain{}, m, false
	}
	domain, err := mesh.DomainOf(name, m.Spec.MTLS.TrustDomain)
	return domain, m, err == nil
}

// clientTLS is how clients of a class begin TLS to a service port, also beyond this site (to, which
// may be nil); nil: they do not.
func (b *Builder) clientTLS(c *class, of ServicePort, to *beyond) *clientTLS {
	name := b.meshOf(of.Service.Namespace)
	if to != nil {
		name = to.remote.Mesh
	}
	domain, m, ok := b.meshTLS(name)
	if _, _, has := b.meshTLS(c.Mesh); !ok || !has || name != c.Mesh && !b.secures(c, of.Service) {
		return nil
	}
	sni, err := mesh.SNI(mesh.Service{
		Mesh: name, Namespace: of.Service.Namespace, Name: of.Service.Name, Port: strconv.Itoa(int(of.Port)),
	})
	if err != nil {
		return nil
	}
	ids, all := b.accountsOf(of.Service, domain)
	out := &clientTLS{
		sni: sni, domain: domain.Name(), accept: mesh.Accounts(ids...), fileIdentity: c.Variant == Direct,
		always: c.Variant == GRPC && all || c.Variant != GRPC && outboundAlways(m),
	}
	if to != nil {
		b.tlsBeyond(out, to, domain, ids)
	}
	return out
}

// accountsOf the endpoints of a Service. all: each of them has a proxy.
func (b *Builder) accountsOf(service catalog.Key, domain mesh.Domain) (ids []mesh.ID, all bool) {
	all = true
	seen := map[string]struct{}{}
	some := false
	for _, s := range b.snapshot.SlicesOf(service) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.TargetRef == nil || len(e.Addresses) == 0 {
				all = false
				continue
			}
			some = true
			key := catalog.Key{Namespace: s.Namespace, Name: e.TargetRef.Name}
			name := ""
			switch e.TargetRef.Kind {
			case "Dataplane":
				if d, ok := b.snapshot.Dataplanes.Get(key); ok {
					name = d.Spec.ServiceAccount
				}
			case "Pod":
				if p, ok := b.snapshot.Pods.Get(key); ok {
					name = p.Spec.ServiceAccountName
				}
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			for _, p := range s.Ports {
				if err == nil && p.Port != nil {
					_, live := b.live[netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port))]
					all = all && live
				}
			}
			if id, err := mesh.Workload(domain, s.Namespace, name); err == nil && !has(seen, id.String()) {
				seen[id.String()] = struct{}{}
				ids = append(ids, id)
			}
		}
	}
	return ids, all && some
}

// makeCluster of a service port.
func (b *Builder) makeCluster(c *class, name string, of ServicePort) *made {
	back := b.upstreamOf(c, of)
	if back == nil || name != back.cluster && !strings.HasPrefix(name, vipPrefix) {
		return nil
	}
	m := b.patchedCluster(c, upstreamCluster(name, back))
	if m != nil && !back.static.IsValid() && back.outside == nil {
		m.options.Follower = delta.Ref{Type: EndpointType, Name: back.endpoints}
	}
	return m
}

// makeVIP makes the cluster of an address that a proxy asks for: of a Service, or of a
// workload. nil: nothing answers there.
func (b *Builder) makeVIP(c *class, name string, at netip.AddrPort) *made {
	if port, ok := b.portAt(at); ok {
		return b.makeCluster(c, name, port)
	}
	if _, virtual := b.vips[at.Addr()]; virtual || !b.isWorkload(at.Addr()) {
		return nil
	}
	return b.patchedCluster(c, upstreamCluster(name, &upstream{static: at, tls: b.workloadTLS(c, at)}))
}

// makeMember makes the cluster of the address of a workload, if its proxy takes connections of the
// class's by mutual TLS.
func (b *Builder) makeMember(c *class, name string, at netip.AddrPort) *made {
	to := b.workloadTLS(c, at)
	if to == nil {
		return nil
	}
	return b.patchedCluster(c, upstreamCluster(name, &upstream{static: at, tls: to}))
}

// workloadTLS is how clients of a class begin TLS at the address of a workload; nil: they do not, as it
// has no proxy there, or is of another mesh.
func (b *Builder) workloadTLS(c *class, at netip.AddrPort) *clientTLS {
	key, live := b.live[at]
	d, ok := b.snapshot.Dataplanes.Get(key)
	if !live || !ok || b.classOf(key, d, Sidecar).Mesh != c.Mesh {
		return nil
	}
	domain, _, ok := b.meshTLS(c.Mesh)
	id, err := mesh.Workload(domain, key.Namespace, d.Spec.ServiceAccount)
	if !ok || err != nil {
		return nil
	}
	out := &clientTLS{domain: domain.Name(), accept: mesh.Accounts(id), fileIdentity: c.Variant == Direct, always: true}
	for i := range d.Spec.Ports {
		if port := &d.Spec.Ports[i]; port.Port == int32(at.Port()) {
			out.http2 = out.http2 || protocolOf(b.appProtocolOf(key, d, port)) == HTTP2
		}
	}
	return out
}

// isWorkload reports whether an address is a workload's: that of a Dataplane or Pod, or one of the ranges of
// workloads.
func (b *Builder) isWorkload(a netip.Addr) bool {
	return b.workloads[a] > 0 || slices.ContainsFunc(b.config.Workloads, func(p netip.Prefix) bool { return p.Contains(a) })
}

// makeEndpoints of a service port, for a zone or a node and clients with a view. Those of a node are
// there where the Service stays on it.
func (b *Builder) makeEndpoints(k zoneKey, of ServicePort, v view) *made {
	s, port, ok := b.port(of)
	if !ok || (k.node != "") != s.InternalLocal {
		return nil
	}
	if k.grpc && b.viaNode(of) {
		at := netip.AddrPortFrom(s.ClusterIPs[0], port.Port)
		return unlisted(loadAssignment(&assignment{
			name: viewed(of, v), site: b.config.Site, choice: &proxy.Choice{Cluster: []proxy.Target{{Addr: at}}},
			live: func(netip.AddrPort) bool { return false },
		}))
	}
	policed := b.localityOf(of, port.Name, v.namespace)
	node := choose.Node{
		Name: k.node, Zone: k.zone, Suspects: b.suspects, Anywhere: policed.Mode == meshv1alpha1.LocalityOff,
	}
	state := choose.Slices(s, port, b.slicesOf(k.zone, of.Service), node)
	choice := state.For(s.ClusterIPs[0])
	if other := state.For(otherFamily(s.ClusterIPs[0])); len(choice.Cluster)+len(choice.Local) == 0 {
		choice = other // a proxy may connect by the other family
	}
	if b.external(of.Service) { // endpoints are the gateways that lead to it
		choice = &proxy.Choice{}
	}
	var to *beyond
	if !k.grpc && !s.InternalLocal {
		to = b.beyondOf(k.zone, of)
	}
	return unlisted(loadAssignment(&assignment{
		name: viewed(of, v), site: b.config.Site, choice: choice, beyond: to, local: s.InternalLocal, healthy: k.grpc,
		overProvisioning: translate.Overprovisioning(&policy.Backend{Locality: policed}), prefer: b.preferencesOf(&policed, k.zone, of, v),
		live: func(at netip.AddrPort) bool { _, ok := b.live[at]; return ok },
	}))
}

func otherFamily(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// slicesOf a Service, with the weights of its plan.
func (b *Builder) slicesOf(zone locality.Zone, service catalog.Key) []*proxy.Slice {
	var out []*proxy.Slice
	for _, object := range b.snapshot.SlicesOf(service) {
		s, ok := kube.SliceOf(object)
		if !ok {
			continue
		}
		if plans := b.config.Plans; plans != nil {
			if weights := plans.Weights(zone, object); len(weights) > 0 {
				s, _ = kube.PlannedSliceOf(zone, object, weights)
			} else {
				kube.SetWeights(s, object, plans.Own(object), nil)
			}
		}
		out = append(out, s)
	}
	return out
}

func (b *Builder) makeRoutes(c *class, of ServicePort) *made {
	back := b.upstreamOf(c, of)
	if back == nil || back.protocol == TCP && !back.grpc {
		return nil
	}
	return b.patchedRoutes(c, policedRoutes(back))
}

// makeOut makes the listener of an address of a Service.
func (b *Builder) makeOut(c *class, at netip.AddrPort) *made {
	port, ok := b.portAt(at)
	if !ok {
		return nil
	}
	back := b.upstreamOf(c, port)
	if back == nil {
		return nil
	}
	return b.patchedListener(c, outListener(at, back, false))
}

func (b *Builder) makeRoots(name string) *made {
	if b.trust == nil {
		return nil
	}
	domain, err := mesh.ParseDomain(strings.TrimPrefix(name, rootsPrefix))
	if err != nil {
		return nil
	}
	of, ok := b.trust.MeshOf(domain)
	if !ok {
		return nil
	}
	secret := rootsSecret(b.trust, of)
	if secret == nil {
		return nil
	}
	return unlisted(secret)
}

// writeClass writes what every proxy of a class has.
func (b *Builder) writeClass(c *class) {
	clusters := []*cluster.Cluster{originalCluster(Passthrough, netip.Addr{}), originalCluster(InPassthrough, inPassthroughSource), emptyCluster(Blackhole)}
	if c.IPv6 { // the address that connections come from would fix the family
		clusters[1] = originalCluster(InPassthrough, netip.Addr{})
	}
	var changes []delta.Change
	for i, name := range []string{Passthrough, InPassthrough, Blackhole} {
		if m := b.patchedCluster(c, clusters[i]); m != nil {
			m.options.Unlisted = false
			changes = append(changes, delta.Change{Resource: delta.Resource{Type: ClusterType, Name: name, Body: m.body, Options: m.options}})
		}
	}
	c.layer.put(changes...)
}

// writeOwn writes what one proxy has for itself: what is inbound, and its outbound ports.
func (b *Builder) writeOwn(p *Proxy) {
	d, ok := b.snapshot.Dataplanes.Get(p.Key)
	if ok && p.class.Variant == GRPC && len(p.servers) > 0 {
		b.writeServers(p, d)
	}
	if !ok || p.class.Variant == GRPC {
		return
	}
	var all translate.Resources
	b.ownInbound(p, d, &all)
	b.ownOutbound(p, d, &all)
	if b.redirected(p) {
		rest := InPassthrough
		if b.closed(p.Mesh) {
			rest = Blackhole
		}
		out := outVirtual(b.ranges(), b.config.Workloads, b.restOf(p), p.class.IPv6)
		if matched := b.matchedBy(p); len(matched) > 0 {
			letThrough(out, matched)
			all.Clusters = append(all.Clusters, passthroughHTTP())
		}
		all.Listeners = append(all.Listeners, out, inVirtual(rest, p.class.IPv6))
	}
	if w, ok := b.workload(p.Key); ok {
		all.Clusters = append(all.Clusters, translate.Collectors(&w)...)
	}
	next := map[delta.Ref][]byte{}
	b.encodeOwn(p, next, all)
	if len(p.class.said.Patches) > 0 { // what a patch makes invalid stays unpatched
		plain := next
		next = map[delta.Ref][]byte{}
		after := b.patchOwn(p, all)
		for _, ref := range b.encodeOwn(p, next, after) {
			if body := plain[ref]; body != nil {
				next[ref] = body
			}
		}
	}
	if p.class.Variant == Sidecar {
		if body := b.settingsOf(p.Key, d); len(body) > 0 {
			next[delta.Ref{Type: wire.Settings, Name: wire.SettingsName}] = body
		}
	}
	b.replaceOwn(p, next)
}

// encodeOwn encodes resources of a proxy, and returns those that are not valid.
func (b *Builder) encodeOwn(p *Proxy, into map[delta.Ref][]byte, all translate.Resources) []delta.Ref {
	var invalid []delta.Ref
	add := func(typ, name string, m message) {
		ref := delta.Ref{Type: typ, Name: name}
		body, err := encoded(m)
		if err != nil {
			b.config.Logger.Error("resource is not published", "dataplane", p.Key, "type", typ, "name", name, "error", err)
			invalid = append(invalid, ref)
			return
		}
		into[ref] = body
	}
	for _, c := range all.Clusters {
		add(ClusterType, c.Name, c)
	}
	for _, l := range all.Listeners {
		add(ListenerType, l.Name, l)
	}
	for _, r := range all.Routes {
		add(RouteType, r.Name, r)
	}
	return invalid
}

// replaceOwn makes resources the whole of a proxy's own layer.
func (b *Builder) replaceOwn(p *Proxy, next map[delta.Ref][]byte) {
	p.own.sequence++
	resources := make([]delta.Resource, 0, len(next))
	for ref, body := range next {
		one := delta.Resource{Type: ref.Type, Name: ref.Name, Body: body, Encoding: p.class.encode(ref, body)}
		if ref.Type == RouteType || p.class.Variant == GRPC {
			one.Options = &delta.ResourceOptions{Unlisted: true}
		}
		resources = append(resources, one)
	}
	if _, err := p.own.scope.Replace(delta.Position{Epoch: 1, Sequence: p.own.sequence}, resources); err != nil {
		panic(err) // the sequence ascends
	}
}

func (b *Builder) ranges() []netip.Prefix {
	if b.config.Ranges == nil {
		return nil
	}
	return b.config.Ranges()
}

// passthrough is where connections go that the mesh does not know.
func (b *Builder) passthrough(meshName string) string {
	if m, ok := b.snapshot.Meshes.Get(catalog.Key{Name: meshName}); ok && !kind.MeshPassthrough(m) {
		return Blackhole
	}
	return Passthrough
}

// secures reports whether proxies of a class call a Service of another mesh by mutual TLS: it is
// exported to theirs by name or to all, so its servers admit them (clientsOf). gRPC programs verify
// all peers by one set of roots, those of their own domain.
func (b *Builder) secures(c *class, service catalog.Key) bool {
	object, ok := b.snapshot.Services.Get(service)
	if !ok || c.Variant == GRPC {
		return false
	}
	names, all := kube.ExportsOf(object, b.meshOf(service.Namespace))
	return all || slices.Contains(names, c.Mesh)
}

// clientsOf a port of a workload in other meshes: the trust domains of those that a Service which
// leads to the port is exported to, sorted.
func (b *Builder) clientsOf(p *Proxy, d *meshv1alpha1.Dataplane, port *meshv1alpha1.DataplanePort) []string {
	if b.meshOf(p.Key.Namespace) != p.Mesh {
		return nil // Services select workloads of their own mesh
	}
	domains := map[string]struct{}{}
	add := func(name string) {
		if domain, _, ok := b.meshTLS(name); ok && name != p.Mesh {
			domains[domain.Name()] = struct{}{}
		}
	}
	for _, service := range b.snapshot.ServicesSelecting(p.Key.Namespace, d.Labels) {
		if !slices.ContainsFunc(service.Spec.Ports, func(to corev1.ServicePort) bool { return leadsTo(&to, port) }) {
			continue
		}
		names, all := kube.ExportsOf(service, p.Mesh)
		if all {
			for key := range b.snapshot.Meshes.All() {
				add(key.Name)
			}
		}
		for _, name := range names {
			add(name)
		}
	}
	return slices.Sorted(maps.Keys(domains))
}

// ownInbound adds a listener and a cluster for each TCP port of the workload.
func (b *Builder) ownInbound(p *Proxy, d *meshv1alpha1.Dataplane, all *translate.Resources) {
	addresses := dataplaneAddresses(d)
	if len(addresses) == 0 {
		return
	}
	for i := range d.Spec.Ports {
		port := &d.Spec.Ports[i]
		if port.Protocol != "" && port.Protocol != "TCP" {
			continue
		}
		app := b.appProtocolOf(p.Key, d, port)
		mode, domain := b.inboundMode(p.Key, d, port.Port)
		in := &inbound{
			port: port.Port, at: netip.AddrPortFrom(addresses[0], uint16(port.Port)), protocol: protocolOf(app), mode: mode,
			serverFirst: serverFirst(app), domain: domain, clients: b.clientsOf(p, d, port), fileIdentity: p.class.Variant == Direct,
			policies: b.inPoliciesOf(p.Key, port.Port),
		}
		in.policies.supervised = p.class.Variant == Sidecar
		to := in.at
		if target := targetPort(port); target != 0 {
			in.bound, to = true, netip.AddrPortFrom(loopbackOf(addresses[0]), uint16(target))
		} else if !b.redirected(p) {
			continue // the application itself listens there
		}
		local, l := localCluster(localName(port.Port), to, in.protocol), inListener(in)
		if in.policies.set {
			translate.InboundCluster(local, &in.policies.port)
		}
		for _, a := range addresses[1:] {
			l.AdditionalAddresses = append(l.AdditionalAddresses, &listener.AdditionalAddress{Address: socketAddress(netip.AddrPortFrom(a, uint16(port.Port)))})
		}
		all.Clusters, all.Listeners = append(all.Clusters, local), append(all.Listeners, l)
		if in.protocol != TCP {
			routes := routesTo(inName(port.Port), localName(port.Port), false, false)
			if in.policies.set {
				translate.InboundRoute(routes.VirtualHosts[0].Routes[0].GetRoute(), &in.policies.port)
			}
			all.Routes = append(all.Routes, routes)
		}
	}
}

func loopbackOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// ownOutbound adds a listener for each outbound port that the workload declares.
func (b *Builder) ownOutbound(p *Proxy, d *meshv1alpha1.Dataplane, all *translate.Resources) {
	p.outbound = nil
	for _, o := range outboundsOf(p.Key, d) {
		if p.outbound == nil {
			p.outbound = map[catalog.Key]struct{}{}
		}
		p.outbound[o.to.Service] = struct{}{}
		back := b.upstreamOf(p.class, o.to)
		if back == nil {
			back = &upstream{port: o.to, cluster: b.clusterName(o.to)}
		}
		all.Listeners = append(all.Listeners, outListener(o.at, back, true))
	}
}

package build

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Variant of a client.
type Variant uint8

// The variants.
const (
	// Direct is an Envoy that has its certificate in files of its bootstrap.
	Direct Variant = iota
	// Sidecar is an Envoy whose supervisor answers for secrets.
	Sidecar
	// GRPC is a gRPC program without a proxy.
	GRPC
	// Gateway is the Envoy of an ingress or egress.
	Gateway
)

func (v Variant) String() string { return [...]string{"direct", "sidecar", "grpc", "gateway"}[v] }

// AllMeshes is the mesh of gateways.
const AllMeshes = "*"

// Class is proxies that share clusters, listeners and routes.
type Class struct {
	Mesh, Namespace string
	Zone            locality.Zone
	Variant         Variant
	// IPv6: listeners of redirected connections are of both families.
	IPv6 bool
	// Affinity is the values of the labels by which policies prefer endpoints, as LABEL=VALUE&….
	Affinity string
	// Said is a digest of what policies of workloads say of shared resources; empty: nothing.
	Said string
}

type class struct {
	Class
	said       said
	layer      *layer
	quarantine *delta.Quarantine
	proxies    int
	// encodings of resources that proxies have as their own, as they were made last: most have the same.
	encodings map[delta.Ref]*delta.Encoding
}

// maxEncodings of a class; what proxies have as their own has few names.
const maxEncodings = 256

// encode a resource of a proxy's own.
func (c *class) encode(ref delta.Ref, body []byte) *delta.Encoding {
	e := c.encodings[ref]
	if e != nil && e.Is(ref.Type, ref.Name, body) {
		return e
	}
	if c.encodings == nil || len(c.encodings) >= maxEncodings {
		c.encodings = map[delta.Ref]*delta.Encoding{}
	}
	e = delta.Encode(ref.Type, ref.Name, body)
	c.encodings[ref] = e
	return e
}

// drainTime is how long resources outlive what referred to them: the time that Envoy's
// --drain-time-s gives connections of a removed listener in our bootstraps.
const drainTime = 5 * time.Second

const (
	// maxEager service ports of one proxy by what it declares and uses, maxAll with the scope All.
	maxEager = 256
	maxAll   = 1000
)

// Annotations that declare the Services that a workload uses: NAME, NAMESPACE/NAME or
// NAMESPACE/NAME:PORT, separated by commas. The second is Kuma's.
const (
	AnnotationBackends     = "mesh.proxima.dev/backends"
	annotationKumaBackends = "kuma.io/reachable-backends"
)

// Proxy is a Dataplane whose proxy is, or was, connected.
type Proxy struct {
	// Key and Mesh of the Dataplane.
	Key  catalog.Key
	Mesh string

	class     *class
	zone      zoneKey
	own       *layer
	selection *delta.Selection
	// clusters of what is selected, which are the class's, in the order of their service ports.
	clusters []*unit
	// moved counts changes of which policies concern it, but for those of policies.
	moved atomic.Uint64
	// outbound are the Services that its own listeners lead to; nil: there are none.
	outbound map[catalog.Key]struct{}
	account  account
	// number of the proxy among all that there were.
	number uint64
	// named are the Services that the eager set depends on, names what it is made of. The names do
	// not change, and proxies of one service account share them where they are the same.
	named []*dependents
	names []*delta.Ref
	// servers of a gRPC program: where they listen, by the names of their listeners.
	servers map[string]netip.AddrPort
	streams int
	// ended is over, by end, when the streams of the proxy have to be opened again.
	ended context.Context //nolint:containedctx // functions are called at its end, without goroutines that wait for it
	end   context.CancelFunc
	// again are followers that the last stream left open.
	again []delta.Ref
}

// Connection is what a stream follows. Close it when the stream is over.
type Connection struct {
	// Config of the stream's session.
	Config delta.LayeredConfig
	// End is over when the stream has to be opened again, as the proxy is of another class.
	End   context.Context //nolint:containedctx // it is what the stream waits for
	Class Class

	builder *Builder
	proxy   *Proxy
	gateway *gatewayStream // in place of proxy
}

// Connect a stream of a Dataplane's proxy. The caller has authenticated it. An error says why
// the Dataplane cannot have one.
func (b *Builder) Connect(key catalog.Key, variant Variant) (*Connection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snapshot == nil {
		return nil, fmt.Errorf("the control plane is still reading its store")
	}
	d, ok := b.snapshot.Dataplanes.Get(key)
	if !ok {
		return nil, fmt.Errorf("there is no Dataplane %s", key)
	}
	of := b.classOf(key, d, variant)
	p := b.proxies[key]
	if p != nil && p.class.Class != of {
		b.drop(p)
		p = nil
	}
	if p == nil {
		p = b.newProxy(key, d, of)
	}
	p.streams++
	again := p.again
	p.again = nil
	c := &Connection{Class: of, End: p.ended, builder: b, proxy: p}
	c.Config = delta.LayeredConfig{
		Layers: []*delta.Scope{p.own.scope, p.class.layer.scope, b.zone(zoneKey{p.zone.zone, p.zone.node, p.zone.grpc}).scope, b.zone(zoneKey{zone: p.zone.zone, grpc: p.zone.grpc}).scope},
		Order:  order[:], Gated: gated[:], Prompt: ListenerType, Drain: drainTime,
		Selection: p.selection, Source: &demanded{b, p}, Quarantine: p.class.quarantine, Again: again, Whole: variant == GRPC,
	}
	if variant == Sidecar {
		c.Config.Layers = append(c.Config.Layers, b.namesIn(of.Mesh).layer.scope)
	}
	if variant != GRPC { // a gRPC program has a server if it asks for its listener
		b.noteLive(key, d)
	}
	return c, nil
}

// Close ends the stream; unfollowed is what its session left open.
func (c *Connection) Close(unfollowed []delta.Ref) {
	b := c.builder
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.gateway != nil {
		b.leave(c.gateway)
		return
	}
	c.proxy.streams--
	c.proxy.again = unfollowed
	if c.proxy.streams == 0 && b.proxies[c.proxy.Key] != c.proxy {
		b.release(c.proxy) // it was dropped before
	}
}

// classOf a Dataplane. Its mesh is its own, else that of its namespace.
func (b *Builder) classOf(key catalog.Key, d *meshv1alpha1.Dataplane, v Variant) Class {
	c := Class{Mesh: d.Spec.Mesh, Namespace: key.Namespace, Variant: v, Zone: b.zoneOf(d)}
	if c.Mesh == "" {
		c.Mesh = b.meshOf(key.Namespace)
	}
	c.IPv6 = slices.ContainsFunc(dataplaneAddresses(d), netip.Addr.Is6)
	c.Affinity = b.affinityOf(d)
	if v != GRPC {
		_, c.Said = b.saidOf(key)
	}
	return c
}

func (b *Builder) zoneOf(d *meshv1alpha1.Dataplane) locality.Zone {
	if z := locality.ZoneOf(d.Labels); z != "" {
		return z
	}
	if n, ok := b.snapshot.Nodes.Get(catalog.Key{Name: d.Spec.NodeName}); ok {
		return locality.ZoneOf(n.Labels)
	}
	return ""
}

func (b *Builder) newProxy(key catalog.Key, d *meshv1alpha1.Dataplane, of Class) *Proxy {
	c := b.classes[of]
	if c == nil {
		c = &class{Class: of, layer: newLayer(delta.Options{Types: []string{ClusterType, ListenerType, RouteType, SecretType}}), quarantine: delta.NewQuarantine()}
		if of.Said != "" {
			c.said, _ = b.saidOf(key)
		}
		b.classes[of] = c
		if of.Variant != GRPC {
			b.writeClass(c)
		}
	}
	c.proxies++
	p := &Proxy{
		Key: key, Mesh: of.Mesh, class: c, own: newLayer(delta.Options{Few: true}), selection: delta.NewSelection(),
		zone:    zoneKey{zone: of.Zone, node: d.Spec.NodeName, grpc: of.Variant == GRPC},
		account: account{of.Mesh, key.Namespace, d.Spec.ServiceAccount},
	}
	p.ended, p.end = context.WithCancel(context.Background())
	b.numbered++
	p.number = b.numbered
	b.proxies[key] = p
	b.add(p)
	b.writeOwn(p)
	b.selectFor(p)
	return p
}

// drop a proxy; its streams have to be opened again.
func (b *Builder) drop(p *Proxy) {
	delete(b.proxies, p.Key)
	b.remove(p)
	p.end()
	if p.streams == 0 {
		b.release(p)
	}
}

// release what a dropped proxy used, once it has no stream.
func (b *Builder) release(p *Proxy) {
	b.setSelected(p, nil)
	if p.class.proxies--; p.class.proxies == 0 {
		b.dropClass(p.class)
	}
}

func (b *Builder) dropClass(c *class) {
	for ref, u := range c.layer.units {
		b.index(u, false)
		delete(c.layer.units, ref)
	}
	if b.classes[c.Class] == c {
		delete(b.classes, c.Class)
	}
}

func (b *Builder) zone(k zoneKey) *layer {
	l := b.zones[k]
	if l == nil {
		l = newLayer(delta.Options{Few: k.node != "", Types: []string{EndpointType}})
		b.zones[k] = l
	}
	return l
}

// reconnect drops the proxies of Dataplanes that are gone, or are of another class.
func (b *Builder) reconnect(d *catalog.Delta) {
	preferred := b.storeAffinities(d)
	check := func(key catalog.Key) {
		p := b.proxies[key]
		if p == nil {
			return
		}
		is, ok := b.snapshot.Dataplanes.Get(key)
		if !ok || b.classOf(key, is, p.class.Variant) != p.class.Class || is.Spec.NodeName != p.zone.node || is.Spec.ServiceAccount != p.account.name {
			b.drop(p)
		}
	}
	moved := slices.ContainsFunc(d.Nodes, func(c catalog.Change[*corev1.Node]) bool {
		return c.Old == nil || c.New == nil || locality.ZoneOf(c.Old.Labels) != locality.ZoneOf(c.New.Labels) ||
			len(b.affinities) > 0 && !maps.Equal(c.Old.Labels, c.New.Labels)
	})
	if moved || preferred || len(d.Namespaces)+len(d.ProxyPatches)+len(d.WorkloadPolicies) > 0 {
		for _, key := range slices.Collect(maps.Keys(b.proxies)) {
			check(key)
		}
		return
	}
	for _, c := range d.Dataplanes {
		check(c.Key)
	}
}

// noteLive notes that the ports of a Dataplane have a proxy. It stays so until the Dataplane
// goes: a control plane that loses its stream knows nothing of the proxy.
func (b *Builder) noteLive(key catalog.Key, d *meshv1alpha1.Dataplane) {
	fresh := map[netip.Addr]struct{}{}
	for _, at := range livePorts(d) {
		if b.live[at] != key {
			b.live[at], fresh[at.Addr()] = key, struct{}{}
		}
	}
	if len(fresh) > 0 {
		services := map[catalog.Key]struct{}{}
		b.behind(d, func(s catalog.Key) { services[s] = struct{}{} })
		b.refresh(services, fresh, false)
	}
}

func livePorts(d *meshv1alpha1.Dataplane) []netip.AddrPort {
	if d == nil {
		return nil
	}
	var out []netip.AddrPort
	for _, a := range dataplaneAddresses(d) {
		for _, p := range d.Spec.Ports {
			out = append(out, netip.AddrPortFrom(a, uint16(p.Port)))
		}
	}
	return out
}

// endProxy forgets the proxy of a Dataplane that says to have none any more, as it runs again without one.
func (b *Builder) endProxy(c catalog.Change[*meshv1alpha1.Dataplane]) {
	if p := b.proxies[c.Key]; p != nil && p.streams == 0 && c.New != nil && kind.DataplaneHasProxy(c.Old) && !kind.DataplaneHasProxy(c.New) {
		b.drop(p)
	}
}

// storeLive keeps the ports that have a proxy, and notes the Services behind a Dataplane, and its addresses. What other
// instances, or this one before it was started again, have recorded of a proxy counts as well: clients
// that took its ports for plain ones would be refused where they are strict.
func (b *Builder) storeLive(c catalog.Change[*meshv1alpha1.Dataplane], changed map[catalog.Key]struct{}, addresses map[netip.Addr]struct{}) {
	had := false
	for _, at := range livePorts(c.Old) {
		if b.live[at] == c.Key {
			delete(b.live, at)
			had = true
		}
	}
	p := b.proxies[c.Key]
	is := kind.DataplaneHasProxy(c.New) || p != nil && p.class.Variant != GRPC
	ports := b.secured(c.Key, c.New)
	if is {
		ports = livePorts(c.New)
	}
	for _, at := range ports {
		b.live[at], is = c.Key, true
	}
	if !had && !is {
		return
	}
	for _, d := range []*meshv1alpha1.Dataplane{c.Old, c.New} {
		b.behind(d, func(s catalog.Key) { changed[s] = struct{}{} })
		for _, at := range livePorts(d) {
			addresses[at.Addr()] = struct{}{}
		}
	}
}

// declared are the service ports that a Dataplane names. The Services are added to named, those that
// do not exist, too.
func (b *Builder) declared(key catalog.Key, d *meshv1alpha1.Dataplane, named map[catalog.Key]struct{}) map[ServicePort]struct{} {
	out := map[ServicePort]struct{}{}
	for _, o := range outboundsOf(key, d) {
		out[o.to], named[o.to.Service] = struct{}{}, struct{}{}
	}
	if d.Annotations[AnnotationBackends]+d.Annotations[annotationKumaBackends] == "" {
		return out
	}
	text := d.Annotations[AnnotationBackends]
	if text == "" {
		text = d.Annotations[annotationKumaBackends]
	}
	for name := range strings.SplitSeq(text, ",") {
		name, port, one := strings.Cut(strings.TrimSpace(name), ":")
		namespace, service, qualified := strings.Cut(name, "/")
		if !qualified {
			namespace, service = key.Namespace, name
		}
		of := catalog.Key{Namespace: namespace, Name: service}
		named[of] = struct{}{}
		for _, p := range b.portsOf(of) {
			if !one || p.String() == namespace+"/"+service+":"+port {
				out[p] = struct{}{}
			}
		}
	}
	return out
}

// selectFor brings the eager set of a proxy up to date: what it declares, then what its
// service account has learned. What it has stays while the proxy is there.
func (b *Builder) selectFor(p *Proxy) {
	d, ok := b.snapshot.Dataplanes.Get(p.Key)
	if !ok || p.class.Variant == GRPC {
		return
	}
	limit := maxEager
	named := map[catalog.Key]struct{}{}
	wanted, first := b.declared(p.Key, d, named), map[ServicePort]struct{}{}
	if w, ok := b.workload(p.Key); ok {
		for _, ref := range w.Backends {
			key := b.serviceOf(ref)
			named[ref.Key], named[key] = struct{}{}, struct{}{}
			for _, port := range b.portsOf(key) {
				wanted[port] = struct{}{}
			}
		}
	}
	if b.scopeOf(p.Mesh) != scopeDeclared {
		for _, port := range b.eager(p.Key.Namespace, p.Mesh, named) {
			wanted[port], first[port] = struct{}{}, struct{}{}
		}
	}
	delete(b.wide, p)
	switch b.scopeOf(p.Mesh) {
	case scopeAll:
		limit = maxAll
		b.wide[p] = struct{}{}
		for key := range b.snapshot.Services.All() {
			for _, port := range b.portsOf(key) {
				wanted[port] = struct{}{}
			}
		}
	case scopeOnDemand:
		for port := range b.learned[p.account] {
			named[port.Service] = struct{}{}
			if len(wanted) < limit {
				wanted[port] = struct{}{}
			}
		}
	}
	next := map[ServicePort]struct{}{}
	for _, port := range inOrder(wanted, first) {
		if b.allowed(port.Service, p.Mesh) && (len(next) < limit || p.clusterOf(port) != nil) {
			next[port] = struct{}{}
		}
	}
	for port := range maps.Clone(next) { // a route needs its backends
		if u := b.upstreamOf(p.class, port); u != nil {
			for _, to := range backendsOf(u, named) {
				next[to] = struct{}{}
			}
		}
	}
	b.name(p, named)
	b.setSelected(p, next)
}

// inOrder are the service ports that a proxy may have, those of policies and routes first.
func inOrder(wanted, first map[ServicePort]struct{}) []ServicePort {
	return slices.SortedFunc(maps.Keys(wanted), func(x, y ServicePort) int {
		if has(first, x) != has(first, y) {
			if has(first, x) {
				return -1
			}
			return 1
		}
		return comparePorts(x, y)
	})
}

func comparePorts(x, y ServicePort) int {
	return cmp.Or(strings.Compare(x.Service.Namespace, y.Service.Namespace), strings.Compare(x.Service.Name, y.Service.Name), cmp.Compare(x.Port, y.Port))
}

func has[K comparable](set map[K]struct{}, key K) bool { _, ok := set[key]; return ok }

// setSelected replaces the eager set of a proxy.
func (b *Builder) setSelected(p *Proxy, next map[ServicePort]struct{}) {
	clusters := make([]*unit, 0, len(next))
	for _, port := range slices.SortedFunc(maps.Keys(next), comparePorts) {
		name := b.clusterName(port)
		if had := p.clusterOf(port); had != nil && had.ref.Name == name {
			clusters = append(clusters, had)
		} else {
			clusters = append(clusters, b.useCluster(p.class, name, port))
		}
	}
	before := p.clusters
	p.clusters = clusters
	for _, u := range before {
		if p.clusterOf(u.portOf()) != u {
			b.unuse(p.class.layer, u.ref)
		}
	}
	if !slices.Equal(before, clusters) {
		p.moved.Add(1)
	}
	b.namesOf(p)
}

// clusterOf a service port that is selected; nil: it is not.
func (p *Proxy) clusterOf(port ServicePort) *unit {
	i, found := slices.BinarySearchFunc(p.clusters, port, func(u *unit, port ServicePort) int { return comparePorts(u.portOf(), port) })
	if !found {
		return nil
	}
	return p.clusters[i]
}

// namesOf the eager set: clusters, and a listener for each virtual address.
func (b *Builder) namesOf(p *Proxy) {
	names := make([]*delta.Ref, 0, 2*len(p.clusters))
	redirected := b.redirected(p)
	for _, u := range p.clusters {
		names = append(names, &u.ref)
		if !redirected {
			continue
		}
		for _, at := range b.frontendsOf(u.portOf()) {
			names = append(names, b.outListener(p.class, at))
		}
	}
	slices.SortFunc(names, delta.CompareRefs)
	names = slices.CompactFunc(names, sameRef)
	if p.names != nil && slices.EqualFunc(p.names, names, sameRef) {
		return
	}
	p.names = b.sharedNames(p, names)
	p.selection.Set(p.names)
}

// sharedNames are the names as another proxy of the service account has them, if a look at some of
// them finds one: replicas of a workload use the same.
func (b *Builder) sharedNames(p *Proxy, names []*delta.Ref) []*delta.Ref {
	looks := 4
	for other := range b.accounts[p.account] {
		if other != p && other.class == p.class && slices.EqualFunc(other.names, names, sameRef) {
			return other.names
		}
		if looks--; looks == 0 {
			break
		}
	}
	return names
}

func sameRef(a, b *delta.Ref) bool { return *a == *b }

// outListener sees to it that a class has the listener of an address. It stays as long as the class:
// it is small, and other proxies of it are likely to use it.
func (b *Builder) outListener(c *class, at netip.AddrPort) *delta.Ref {
	ref := delta.Ref{Type: ListenerType, Name: outName(at)}
	u := c.layer.units[ref]
	if u == nil {
		u = b.use(c.layer, ref, func() unit { return unit{address: at.Addr(), make: func() *made { return b.makeOut(c, at) }} })
	}
	return &u.ref
}

// reselect brings eager sets up to date after changes: those of proxies whose Dataplane changed, and
// those that depend on what changed.
func (b *Builder) reselect(d *catalog.Delta, own map[catalog.Key]struct{}, hit affected) {
	if hit.all || hit.wide || policed(d) || len(d.Meshes)+len(d.Namespaces) > 0 {
		for _, p := range b.proxies {
			b.selectFor(p)
		}
		return
	}
	again := b.concerned(servicesIn(d))
	for key := range own {
		if p := b.proxies[key]; p != nil {
			again[p] = struct{}{}
		}
	}
	for p := range again {
		b.selectFor(p)
	}
}

// learn that a service account uses a service port. Connections that are opened from then on
// have its listener.
func (b *Builder) learn(p *Proxy, port ServicePort) {
	if p.class.Variant == GRPC || b.scopeOf(p.Mesh) != scopeOnDemand {
		return
	}
	known := b.learned[p.account]
	if known == nil {
		known = map[ServicePort]struct{}{}
		b.learned[p.account] = known
	}
	if has(known, port) || len(known) >= maxEager {
		return
	}
	known[port] = struct{}{}
	for other := range b.accounts[p.account] {
		b.selectFor(other)
	}
}

// demanded is the Source of a proxy's streams.
type demanded struct {
	b *Builder
	p *Proxy
}

// Want implements delta.Source.
func (s *demanded) Want(ref delta.Ref) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.want(s.p, ref)
}

func (b *Builder) want(p *Proxy, ref delta.Ref) {
	c := p.class
	switch ref.Type {
	case ClusterType:
		if at, ok := parseMember(ref.Name); ok {
			b.use(c.layer, ref, func() unit {
				return unit{address: at.Addr(), make: func() *made { return b.makeMember(c, ref.Name, at) }}
			})
		} else if at, ok := parseVIP(ref.Name); ok {
			b.use(c.layer, ref, func() unit { return unit{address: at.Addr(), make: func() *made { return b.makeVIP(c, ref.Name, at) }} })
			if port, ok := b.portAt(at); ok && b.allowed(port.Service, p.Mesh) {
				b.learn(p, port)
			}
		} else if port, err := parseCluster(ref.Name); err == nil {
			b.useCluster(c, ref.Name, port)
		}
	case EndpointType:
		port, v, err := parseViewed(ref.Name)
		if err != nil || v.namespace != "" && v.namespace != p.Key.Namespace {
			return
		}
		for _, k := range p.zone.both() {
			b.use(b.zone(k), ref, func() unit {
				return unit{service: port.Service, make: func() *made { return b.makeEndpoints(k, port, v) }}
			})
		}
	case RouteType:
		if port, err := ParseServicePort(strings.TrimPrefix(ref.Name, outPrefix)); err == nil && strings.HasPrefix(ref.Name, outPrefix) {
			b.use(c.layer, ref, func() unit { return unit{service: port.Service, make: func() *made { return b.makeRoutes(c, port) }} })
		}
	case wire.Names:
		if c.Variant == Sidecar && ref.Name == wire.NamesDomain {
			b.useNames(p.Mesh)
		}
	case SecretType:
		if strings.HasPrefix(ref.Name, rootsPrefix) {
			b.use(c.layer, ref, func() unit { return unit{make: func() *made { return b.makeRoots(ref.Name) }} })
		} else if ref.Name == SystemRoots {
			b.use(c.layer, ref, func() unit { return unit{make: b.makeSystemRoots} })
		} else if service, ok := parseCredential(ref.Name); ok {
			b.use(c.layer, ref, func() unit {
				return unit{service: service, make: func() *made { return b.makeCredential(c, ref.Name, service) }}
			})
		}
	case ListenerType:
		if at, ok := parseServer(ref.Name); ok && c.Variant == GRPC {
			b.serve(p, ref.Name, at)
		} else if target, ok := b.parseTarget(ref.Name, p.Key.Namespace); ok && c.Variant == GRPC {
			b.use(c.layer, ref, func() unit {
				return unit{service: target.Service, make: func() *made { return b.makeAPIListener(c, ref.Name, target) }}
			})
		}
	}
}

func (b *Builder) useCluster(c *class, name string, port ServicePort) *unit {
	return b.use(c.layer, delta.Ref{Type: ClusterType, Name: name}, func() unit {
		return unit{service: port.Service, port: port.Port, make: func() *made { return b.makeCluster(c, name, port) }}
	})
}

// both are the layers of endpoints: of the node, and of the zone.
func (k zoneKey) both() []zoneKey {
	return []zoneKey{k, {zone: k.zone, grpc: k.grpc}}
}

// Release implements delta.Source.
func (s *demanded) Release(ref delta.Ref) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if ref.Type == wire.Names {
		if s.p.class.Variant == Sidecar && ref.Name == wire.NamesDomain {
			s.b.unuseNames(s.p.Mesh)
		}
		return
	}
	if ref.Type == EndpointType {
		for _, k := range s.p.zone.both() {
			s.b.unuse(s.b.zone(k), ref)
		}
		return
	}
	s.b.unuse(s.p.class.layer, ref)
}

// Absent implements delta.Source: the cluster of an address where nothing answers refuses
// connections at once, and is there once something does. To be told that it does not exist
// costs a client of Envoy 1.38 and later the whole time that it waits for clusters.
func (s *demanded) Absent(ref delta.Ref) []byte {
	_, byAddress := parseVIP(ref.Name)
	_, member := parseMember(ref.Name)
	if !byAddress && !member || ref.Type != ClusterType {
		return nil
	}
	return marshalled(emptyCluster(ref.Name))
}

package build

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Config configures a Builder.
type Config struct {
	// Site of this control plane.
	Site locality.Site
	// Ranges of virtual addresses: connections to them are looked up.
	Ranges func() []netip.Prefix
	// Workloads are the ranges of the addresses of workloads: connections to them are looked up, too.
	// None: such connections are outside the mesh.
	Workloads []netip.Prefix
	// Plans of Services, which Follow keeps up to date; nil: there are none.
	Plans *trafficplan.Table
	// Hosts of gateways in other sites that are DNS names; nil: gateways have to be addresses.
	Hosts Hosts
	// GatewayNamespace has the Pods of gateways; empty: gateways are no Pods.
	GatewayNamespace string
	// SystemRoots are authorities in PEM, for TLS to services outside every mesh that name none; nil:
	// nodes begin such TLS. It is called once for each class of proxies that needs them.
	SystemRoots func() []byte
	// Trust is what the meshes trust; nil: no mesh has certificates.
	Trust  func() (*mesh.Trust, error)
	Logger *slog.Logger // nil: discard
}

// Builder keeps the resources that proxies use. Safe for concurrent use; nothing blocks for
// long.
type Builder struct {
	config Config
	ready  chan struct{} // closed by the first Apply

	mu       sync.Mutex
	snapshot *catalog.Snapshot // nil: nothing was read yet
	trust    *mesh.Trust
	indexes
	// remade counts resources that were made, for tests of what a change costs.
	remade uint64
	// sequence of what applied has.
	sequence atomic.Uint64
	applied  map[policy.Source]Applied
	// policies of traffic and routes, and the Services with the addresses of imports.
	policies *policy.Index
	imports  map[catalog.Key]catalog.Key
	// affinities are the labels by which policies prefer endpoints.
	affinities []string
	// sites is what other sites offer, and where services outside are.
	sites    *sites.Table
	suspects map[string]bool
	// credentials are what is in Secrets for the TLS of services outside every mesh.
	credentials map[catalog.Key]*Credentials
	// live are the addresses of ports that have a proxy, with the Dataplanes.
	live map[netip.AddrPort]catalog.Key

	zones   map[zoneKey]*layer
	classes map[Class]*class
	proxies map[catalog.Key]*Proxy
	// numbered proxies, ever.
	numbered uint64
	// converted are Services that were looked at, as proxies see them, until they change.
	converted map[catalog.Key]*proxy.Service
	// fleets of gateways, their streams, and where ingresses of this site listen.
	fleets         map[fleetKey]*fleet
	gatewayStreams map[*gatewayStream]struct{}
	ingressesAt    map[netip.AddrPort]struct{}
	// names by mesh, for supervisors that answer questions of DNS.
	names map[string]*meshNames
	// units by what they are made of.
	byService map[catalog.Key]map[*unit]struct{}
	byAddress map[netip.Addr]map[*unit]struct{}
	others    map[*unit]struct{}
	// learned are the service ports that a service account uses.
	learned map[account]map[ServicePort]struct{}
}

// frontend is what answers at a virtual address. target is the only port, if not 0.
type frontend struct {
	service catalog.Key
	target  uint16
}

type account struct{ mesh, namespace, name string }

// zoneKey is whom endpoints are chosen for: a zone or, for Services that stay on a node, that
// node.
type zoneKey struct {
	zone locality.Zone
	node string
	grpc bool
}

// layer is a scope with its own count of changes.
type layer struct {
	scope    *delta.Scope
	sequence uint64
	units    map[delta.Ref]*unit
}

// newLayer makes an empty layer.
func newLayer(o delta.Options) *layer {
	l := &layer{scope: delta.NewScope(o), sequence: 1, units: map[delta.Ref]*unit{}}
	if _, err := l.scope.Replace(delta.Position{Epoch: 1, Sequence: 1}, nil); err != nil {
		panic(err) // a new scope takes any position
	}
	return l
}

// put resources into the scope. A nil body removes.
func (l *layer) put(changes ...delta.Change) {
	l.sequence++
	if _, err := l.scope.Apply(delta.Position{Epoch: 1, Sequence: l.sequence}, changes); err != nil {
		panic(err) // the sequence ascends
	}
}

// clear the scope.
func (l *layer) clear() {
	l.sequence++
	if _, err := l.scope.Replace(delta.Position{Epoch: 1, Sequence: l.sequence}, nil); err != nil {
		panic(err) // the sequence ascends
	}
}

// unit is a resource that is kept up to date while somebody uses it.
type unit struct {
	ref   delta.Ref
	layer *layer
	uses  int
	make  func() *made
	// services and addresses that it was indexed by; port of the Service, for a cluster.
	service catalog.Key
	address netip.Addr
	port    uint16
}

// portOf a cluster.
func (u *unit) portOf() ServicePort { return ServicePort{u.service, u.port} }

// made is a resource; nil: there is none now.
type made struct {
	body    []byte
	options *delta.ResourceOptions
}

// NewBuilder makes a builder without any resource.
func NewBuilder(c Config) *Builder {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Builder{
		config: c, ready: make(chan struct{}), policies: policy.NewIndex(), applied: map[policy.Source]Applied{}, imports: map[catalog.Key]catalog.Key{},
		sites: sites.NewTable(string(c.Site)), indexes: newIndexes(), live: map[netip.AddrPort]catalog.Key{},
		zones: map[zoneKey]*layer{}, classes: map[Class]*class{}, proxies: map[catalog.Key]*Proxy{},
		byService: map[catalog.Key]map[*unit]struct{}{}, byAddress: map[netip.Addr]map[*unit]struct{}{}, others: map[*unit]struct{}{},
		learned: map[account]map[ServicePort]struct{}{}, converted: map[catalog.Key]*proxy.Service{}, fleets: map[fleetKey]*fleet{}, gatewayStreams: map[*gatewayStream]struct{}{},
		names: map[string]*meshNames{},
	}
	b.policies.Zone = string(c.Site)
	return b
}

// Ready is closed when the tables were read for the first time: proxies can connect from then on.
func (b *Builder) Ready() <-chan struct{} { return b.ready }

// Tables that resources are made from.
func Tables() []catalog.Kind {
	out := []catalog.Kind{
		catalog.Services, catalog.Slices, catalog.Nodes, catalog.Dataplanes, catalog.Plans, catalog.Meshes, catalog.Namespaces,
		catalog.VirtualIPs, catalog.ExternalServices, catalog.ServiceExports, catalog.ZoneIngresses, catalog.ZoneEgresses, catalog.Pods,
	}
	for _, k := range policy.Tables() {
		if !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// Source delivers what changed. A *catalog.Subscription of Tables is one.
type Source interface {
	// Next blocks until something changed since the last call, and returns it; the first call
	// returns everything. Errors end the source.
	Next(ctx context.Context) (catalog.Delta, error)
}

// Follow feeds a builder from a source, whose Next has not been called yet, until ctx ends (it
// returns nil) or the source does (it returns its error).
func Follow(ctx context.Context, source Source, b *Builder) error {
	for {
		d, err := source.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var replanned map[catalog.Key]struct{}
		if b.config.Plans != nil {
			replanned = b.config.Plans.Apply(&d)
		}
		b.Apply(&d, replanned)
	}
}

// Apply brings resources up to date. replanned are Services whose endpoints have other
// weights.
func (b *Builder) Apply(d *catalog.Delta, replanned map[catalog.Key]struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.snapshot == nil
	if first {
		defer close(b.ready)
	}
	b.snapshot = d.After
	for _, c := range d.Services {
		delete(b.converted, c.Key)
	}
	b.storeImports(d)
	hit := b.affect(b.policies.Apply(d), d)
	changed := maps.Clone(replanned)
	if changed == nil {
		changed = map[catalog.Key]struct{}{}
	}
	maps.Copy(changed, hit.services)
	offered := b.storeSites(d)
	maps.Copy(changed, offered)
	if len(d.ZoneIngresses) > 0 {
		b.storeIngresses(changed)
	}
	b.endGateways(d)
	addresses := map[netip.Addr]struct{}{}
	maps.Copy(offered, hit.services)
	b.storeAddresses(d, addresses, offered)
	b.storeWorkloads(d, addresses)
	for _, c := range d.Services {
		changed[c.Key] = struct{}{}
	}
	for _, c := range d.Slices {
		for _, s := range []*discoveryv1.EndpointSlice{c.Old, c.New} {
			if s != nil {
				changed[trafficplan.ServiceOf(s)] = struct{}{}
			}
		}
	}
	for _, c := range d.ExternalServices {
		changed[c.Key] = struct{}{}
	}
	for _, c := range d.Dataplanes {
		if different(c.Old, c.New) || kind.DataplaneHasProxy(c.Old) != kind.DataplaneHasProxy(c.New) {
			b.endProxy(c)
			b.storeLive(c, changed, addresses)
		}
	}
	b.relabelled(d, changed)
	b.reconnect(d)
	again := hit.proxies
	for _, c := range d.Dataplanes {
		if different(c.Old, c.New) {
			again[c.Key] = struct{}{}
		}
	}
	for p := range b.respoken(d) {
		again[p.Key] = struct{}{}
	}
	for _, c := range d.ExternalServices {
		for _, p := range b.dependents(c.Key) {
			if has(p.outbound, c.Key) {
				again[p.Key] = struct{}{}
			}
		}
	}
	if len(d.Meshes) > 0 {
		for key := range b.proxies {
			again[key] = struct{}{}
		}
	}
	// Clusters are selected before the routes and listeners that name them change: a session may
	// look in between.
	b.reselect(d, again, hit)
	b.serveAgain(changed)
	b.storeNames(d)
	b.refresh(changed, addresses, !first && (hit.all || len(d.Meshes)+len(d.Namespaces) > 0))
	for key := range again {
		if p := b.proxies[key]; p != nil {
			b.writeOwn(p)
		}
	}
	b.notePolicies(d)
}

// different reports whether two versions of a Dataplane may have other resources: renewals of
// its lease are not of concern.
func different(was, is *meshv1alpha1.Dataplane) bool {
	return was == nil || is == nil || was.Generation != is.Generation || was.UID != is.UID || !maps.Equal(was.Annotations, is.Annotations) ||
		!maps.Equal(was.Labels, is.Labels)
}

// refresh makes units again: those of some Services and addresses, or all.
func (b *Builder) refresh(services map[catalog.Key]struct{}, addresses map[netip.Addr]struct{}, all bool) {
	again := map[*unit]struct{}{}
	for key := range services {
		maps.Copy(again, b.byService[key])
	}
	for a := range addresses {
		maps.Copy(again, b.byAddress[a])
	}
	if all {
		for _, units := range b.byService {
			maps.Copy(again, units)
		}
		for _, units := range b.byAddress {
			maps.Copy(again, units)
		}
		maps.Copy(again, b.others)
	}
	for u := range again {
		b.remake(u)
	}
}

// remake a unit. A name whose resource would be invalid keeps the one that it has.
func (b *Builder) remake(u *unit) {
	b.remade++
	m, err := u.safe()
	switch {
	case err != nil:
		b.config.Logger.Error("resource is not published", "type", u.ref.Type, "name", u.ref.Name, "error", err)
	case m == nil:
		u.layer.put(delta.Change{Resource: delta.Resource{Type: u.ref.Type, Name: u.ref.Name}, Removed: true})
	default:
		u.layer.put(delta.Change{Resource: delta.Resource{Type: u.ref.Type, Name: u.ref.Name, Body: m.body, Options: m.options}})
	}
}

// errInvalid carries what validation found through the makers of units.
type errInvalid struct{ err error }

func (u *unit) safe() (m *made, err error) {
	defer func() {
		if r := recover(); r != nil {
			invalid, ok := r.(errInvalid)
			if !ok {
				panic(r)
			}
			err = invalid.err
		}
	}()
	return u.make(), nil
}

// use a resource of a layer, which is made if it is not there: of is called then alone, as most are there.
func (b *Builder) use(l *layer, ref delta.Ref, of func() unit) *unit {
	u := l.units[ref]
	if u == nil {
		made := of()
		u = &made
		u.ref, u.layer = ref, l
		l.units[ref] = u
		b.index(u, true)
		if b.snapshot != nil {
			b.remake(u)
		}
	}
	u.uses++
	return u
}

// unuse a resource, which goes when nobody uses it.
func (b *Builder) unuse(l *layer, ref delta.Ref) {
	u := l.units[ref]
	if u == nil {
		return
	}
	if u.uses--; u.uses > 0 {
		return
	}
	delete(l.units, ref)
	b.index(u, false)
	l.put(delta.Change{Resource: delta.Resource{Type: ref.Type, Name: ref.Name}, Removed: true})
}

func (b *Builder) index(u *unit, add bool) {
	switch {
	case u.address.IsValid():
		put(b.byAddress, u.address, u, add)
	case u.service != (catalog.Key{}):
		put(b.byService, u.service, u, add)
	case add:
		b.others[u] = struct{}{}
	default:
		delete(b.others, u)
	}
}

func put[K, V comparable](in map[K]map[V]struct{}, key K, value V, add bool) {
	if add {
		if in[key] == nil {
			in[key] = map[V]struct{}{}
		}
		in[key][value] = struct{}{}
		return
	}
	if delete(in[key], value); len(in[key]) == 0 {
		delete(in, key)
	}
}

// storeAddresses keeps which Service answers at a virtual address. Addresses whose clusters
// may be others are in changed.
func (b *Builder) storeAddresses(d *catalog.Delta, changed map[netip.Addr]struct{}, policed map[catalog.Key]struct{}) {
	touched := maps.Clone(policed)
	for _, c := range d.Services {
		touched[c.Key] = struct{}{}
		for _, s := range []*corev1.Service{c.Old, c.New} {
			for _, a := range addressesOf(s) {
				changed[a] = struct{}{}
				if s == c.Old && b.vips[a].service == c.Key {
					b.setVIP(a, frontend{})
				} else if s == c.New {
					b.setVIP(a, frontend{service: c.Key})
				}
			}
		}
	}
	for _, c := range d.VirtualIPs {
		for _, v := range []*meshv1alpha1.VirtualIP{c.Old, c.New} {
			if v == nil {
				continue
			}
			for _, text := range v.Spec.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				changed[a.Unmap()] = struct{}{}
				if v == c.Old || v.Spec.UnusedSince != nil {
					b.setVIP(a.Unmap(), frontend{})
				} else {
					b.setVIP(a.Unmap(), frontend{catalog.Key{Namespace: v.Spec.Namespace, Name: v.Spec.Service}, uint16(v.Spec.Port)})
				}
			}
		}
	}
	for _, c := range d.Slices {
		for _, s := range []*discoveryv1.EndpointSlice{c.Old, c.New} {
			if s != nil {
				touched[trafficplan.ServiceOf(s)] = struct{}{}
			}
		}
	}
	for key := range touched {
		for a := range b.addresses[key] {
			changed[a] = struct{}{}
		}
	}
}

// storeImports keeps which Service has the address of an import.
func (b *Builder) storeImports(d *catalog.Delta) {
	for _, c := range d.Services {
		for _, s := range []*corev1.Service{c.Old, c.New} {
			if s == nil || s.Labels[mcsv1beta1.LabelServiceName] == "" {
				continue
			}
			name := catalog.Key{Namespace: c.Key.Namespace, Name: s.Labels[mcsv1beta1.LabelServiceName]}
			if s == c.New {
				b.imports[name] = c.Key
			} else if b.imports[name] == c.Key {
				delete(b.imports, name)
			}
		}
	}
}

func addressesOf(s *corev1.Service) []netip.Addr {
	if s == nil {
		return nil
	}
	service, ok := kube.ServiceOf(s)
	if !ok {
		return nil
	}
	return slices.Concat(service.ClusterIPs, service.ExternalIPs, service.LoadBalancerIPs)
}

func dataplaneAddresses(d *meshv1alpha1.Dataplane) []netip.Addr {
	if d == nil {
		return nil
	}
	out := make([]netip.Addr, 0, len(d.Spec.Addresses))
	for _, text := range d.Spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// SetSuspects replaces the set of nodes whose endpoints are used last.
func (b *Builder) SetSuspects(nodes []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.suspects = make(map[string]bool, len(nodes))
	for _, n := range nodes {
		b.suspects[n] = true
	}
	b.refresh(nil, nil, b.snapshot != nil)
}

// SetTrust takes over what the meshes trust now.
func (b *Builder) SetTrust() error {
	if b.config.Trust == nil {
		return nil
	}
	trust, err := b.config.Trust()
	if err != nil {
		return fmt.Errorf("roots of meshes: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trust = trust
	if b.snapshot == nil {
		return nil
	}
	for u := range b.others {
		b.remake(u)
	}
	for _, p := range b.proxies { // whose clients get in
		b.writeOwn(p)
	}
	return nil
}

// meshOf a namespace.
func (b *Builder) meshOf(namespace string) string {
	if n, ok := b.snapshot.Namespaces.Get(catalog.Key{Name: namespace}); ok {
		return kind.MeshOf(n)
	}
	return meshv1alpha1.DefaultMesh
}

// behind calls visit for each Service that a Dataplane is an endpoint of.
func (b *Builder) behind(d *meshv1alpha1.Dataplane, visit func(catalog.Key)) {
	if d != nil {
		backend.Behind(b.snapshot, d, visit)
	}
}

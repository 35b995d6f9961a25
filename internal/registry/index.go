package registry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/recent"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Position orders what clients are told of one service, or of all: a larger one is newer. It
// follows the revision of the store, so it does not go back when the control plane is restarted,
// nor, with Index.CatchUp, when a client moves to another instance of it.
type Position int64

// positionBits are below the revision, for changes that are seen at one revision: the tables of
// kinds come to it one after the other.
const positionBits = 10

// positionOf a revision when an Index begins: behind what an earlier run has said at it.
func positionOf(revision uint64) Position {
	return Position(revision<<positionBits | 1<<(positionBits-1))
}

// after is the next position, at a revision.
func (p Position) after(revision uint64) Position {
	return max(p+1, Position(revision<<positionBits))
}

// IndexConfig configures an Index. Catalog is required.
type IndexConfig struct {
	Catalog *catalog.Catalog
	// Site of the control plane; empty: locality.Local.
	Site locality.Site
	// Positions, if it is not nil, has the positions where the revisions of kinds have no common order.
	Positions *Positions
	// Mark, if it is not nil, makes a revision that is above all that any instance of the control plane has seen up to
	// the call, as a write to the store that they share does. It may block for a request. With it CatchUp raises
	// positions above those of other instances; without it there are none, or there are Positions.
	Mark   func(ctx context.Context) (uint64, error)
	Logger *slog.Logger // nil: discard
}

// Index has the services of registries, as of the tables: those that clients registered, and those
// of Kubernetes. Make it with NewIndex. Safe for concurrent use.
type Index struct {
	config IndexConfig
	log    *slog.Logger
	ready  chan struct{}

	// order is held while positions are taken and used, so that they are used in order.
	order sync.Mutex
	// arrived are the calls of CatchUp; all up to caughtUp are answered, which order guards.
	arrived  atomic.Uint64
	caughtUp uint64

	mu sync.Mutex
	// records by annotation, which replicas have alike.
	records  recent.Cache[string, record]
	snapshot *catalog.Snapshot
	position Position
	// floor is below no position that is returned: see CatchUp.
	floor    Position
	services map[Service]*entry
	// known is the registry's name of each Service of Kubernetes.
	known map[resource.Key]Service
	plans *trafficplan.Table
	sites *sites.Table
	// nodes are the names of those that have an address, in order.
	nodes map[netip.Addr][]string
	names map[string][]Service // by namespace; absent: to be made again
	count map[Protocol]int     // of registered instances
	// imported are how many of them are copies, by protocol and the registry that they are from.
	imported map[Protocol]map[string]int
	all      map[*Changes]struct{}
}

// entry is a service that has instances, or is followed.
type entry struct {
	service  Service
	position Position
	changed  time.Time
	// own are the registered instances, from the Services of Kubernetes of this name.
	own       map[resource.Key]*Instance
	from      map[resource.Key]struct{}
	followers map[*Follower]struct{}
	lists     map[locality.Zone]*Listing // since the last change
}

func (e *entry) exists() bool { return len(e.own) > 0 || len(e.from) > 0 }

// Listing is what clients in a zone see of a service. Its fields are not changed. Safe for concurrent use.
type Listing struct {
	Service  Service
	Position Position
	// Changed is when the index learnt of the change.
	Changed time.Time
	// Instances in order (Instance.Compare).
	Instances []*Instance
	// Weights of the instances for this zone, relative to each other: 1 is ordinary, 0 is for
	// those that the plan of the zone gives nothing.
	Weights []float64

	mu    sync.Mutex
	memos map[any]any
}

// maxMemos of a listing, as clients may ask for it in any number of forms.
const maxMemos = 16

// Memo returns what make returned for a key, and keeps it as long as the listing: most clients are
// answered the same. The key is comparable, of a type of the caller's package. What is returned is
// shared. make may be called again for the same key.
func (l *Listing) Memo(key any, make func() (any, error)) (any, error) {
	l.mu.Lock()
	kept, ok := l.memos[key]
	l.mu.Unlock()
	if ok {
		return kept, nil
	}
	made, err := make()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.memos == nil {
		l.memos = map[any]any{}
	}
	if len(l.memos) < maxMemos {
		l.memos[key] = made
	}
	return made, nil
}

// NewIndex makes an empty index; Run fills it.
func NewIndex(c IndexConfig) *Index {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Index{
		records: recent.Cache[string, record]{Most: maxRecords},
		config:  c, log: c.Logger, ready: make(chan struct{}), snapshot: &catalog.Snapshot{}, services: map[Service]*entry{},
		known: map[resource.Key]Service{}, nodes: map[netip.Addr][]string{}, plans: &trafficplan.Table{}, sites: sites.NewTable(string(cmp.Or(c.Site, locality.Local))),
		names: map[string][]Service{}, count: map[Protocol]int{}, imported: map[Protocol]map[string]int{}, all: map[*Changes]struct{}{},
	}
}

// Run follows the tables until ctx ends, and returns nil then. It must be called once.
func (x *Index) Run(ctx context.Context) error {
	sub := x.config.Catalog.Subscribe(catalog.Dataplanes, catalog.Services, catalog.Slices, catalog.Plans, catalog.Nodes,
		catalog.ServiceExports, catalog.ServiceImports, catalog.ZoneIngresses, catalog.ZoneEgresses, catalog.Meshes, catalog.ExternalServices,
		catalog.RegistryConfigs)
	defer sub.Close()
	for first := true; ; first = false {
		d, err := sub.Next(ctx)
		switch {
		case errors.Is(err, catalog.ErrClosed), ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if x.advance(ctx, &d) != nil {
			return nil
		}
		if first {
			close(x.ready)
		}
	}
}

// advance to the end of a delta. Errors: that of ctx.
func (x *Index) advance(ctx context.Context, d *catalog.Delta) error {
	x.order.Lock()
	defer x.order.Unlock()
	at := Position(0)
	if x.config.Positions != nil {
		var err error
		if at, err = x.config.Positions.Take(ctx); err != nil {
			return err
		}
	}
	x.apply(d, at)
	return nil
}

// Ready is closed when the index is filled for the first time. Before, services may seem to be empty
// that are not: nothing is to be told to clients.
func (x *Index) Ready() <-chan struct{} { return x.ready }

// Position of the newest change.
func (x *Index) Position() Position {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.position
}

// CatchUp returns when positions are above all that any instance of the control plane has returned up to now: a client
// that comes from another one would take for old what has a lower position. Where one instance alone has the store it
// does nothing. Else it blocks for some requests at most, which all that come meanwhile share.
func (x *Index) CatchUp(ctx context.Context) error {
	if x.config.Positions == nil && x.config.Mark == nil {
		return nil
	}
	own := x.arrived.Add(1)
	x.order.Lock()
	defer x.order.Unlock()
	if own <= x.caughtUp {
		return nil
	}
	all := x.arrived.Load()
	if err := x.raise(ctx); err != nil {
		return err
	}
	x.caughtUp = all
	return nil
}

// raise positions above all that any instance has used, under x.order.
func (x *Index) raise(ctx context.Context) error {
	at, err := x.above(ctx)
	if err != nil || at == 0 {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.position = max(x.position, at)
	x.floor = x.position
	for _, e := range x.services {
		e.lists = nil
	}
	return nil
}

// above returns a position above all that any instance has used; 0: those of this one are.
func (x *Index) above(ctx context.Context) (Position, error) {
	if x.config.Positions == nil {
		revision, err := x.config.Mark(ctx)
		return Position(revision << positionBits), err
	}
	moved, err := x.config.Positions.CatchUp(ctx)
	if err != nil || !moved {
		return 0, err
	}
	return x.config.Positions.Take(ctx)
}

// Snapshot is the state that the index is of.
func (x *Index) Snapshot() *catalog.Snapshot {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.snapshot
}

// Names of the services of a namespace that have instances, or are Services of Kubernetes, in order.
func (x *Index) Names(namespace string) []Service {
	x.mu.Lock()
	defer x.mu.Unlock()
	if names, ok := x.names[namespace]; ok {
		return names
	}
	var names []Service
	for s, e := range x.services {
		if s.Namespace == namespace && e.exists() {
			names = append(names, s)
		}
	}
	slices.SortFunc(names, Service.Compare)
	x.names[namespace] = names
	return names
}

// Listing of a service for clients in a zone. One that does not exist has no instances.
func (x *Index) Listing(s Service, zone locality.Zone) *Listing {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.services[s]
	if e == nil {
		return &Listing{Service: s, Position: x.position}
	}
	if l := e.lists[zone]; l != nil {
		return l
	}
	l := x.list(e, zone)
	if e.lists == nil {
		e.lists = map[locality.Zone]*Listing{}
	}
	e.lists[zone] = l
	return l
}

// Get is a registered instance.
func (x *Index) Get(s Service, key resource.Key) (*Instance, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.services[s]
	if e == nil {
		return nil, false
	}
	in, ok := e.own[key]
	return in, ok
}

// Registered are the instances of a service that clients registered, in no order.
func (x *Index) Registered(s Service) []*Instance {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.services[s]
	if e == nil {
		return nil
	}
	out := make([]*Instance, 0, len(e.own))
	for _, in := range e.own {
		out = append(out, in)
	}
	return out
}

// ZoneOf a node; empty: it is in none, or not known.
func (x *Index) ZoneOf(node string) locality.Zone {
	if n, ok := x.Snapshot().Nodes.Get(resource.Key{Name: node}); ok {
		return locality.Zone(n.Labels[corev1.LabelTopologyZone])
	}
	return ""
}

// Count of the registered instances, by protocol.
func (x *Index) Count() map[Protocol]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.count)
}

// Imported are the instances of a protocol that are copies, by the registry that they are from.
func (x *Index) Imported(p Protocol) map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.imported[p])
}

// tally a registered instance that came (1) or went (-1).
func (x *Index) tally(in *Instance, n int) {
	x.count[in.Protocol] += n
	from := in.MirroredFrom()
	if from == "" {
		return
	}
	of := x.imported[in.Protocol]
	if of == nil {
		of = map[string]int{}
		x.imported[in.Protocol] = of
	}
	if of[from] += n; of[from] == 0 {
		delete(of, from)
	}
}

// Follower is told when a service has changed.
type Follower struct {
	index   *Index
	service Service
	zone    locality.Zone
	notify  func()
}

// Follow a service, which need not exist, for clients in a zone: notify is called after each change,
// until Close. It must neither block nor call the index.
func (x *Index) Follow(s Service, zone locality.Zone, notify func()) *Follower {
	f := &Follower{index: x, service: s, zone: zone, notify: notify}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entry(s)
	if e.followers == nil {
		e.followers = map[*Follower]struct{}{}
	}
	e.followers[f] = struct{}{}
	return f
}

// Listing is the newest one.
func (f *Follower) Listing() *Listing { return f.index.Listing(f.service, f.zone) }

// Close ends it. Closing again is no error.
func (f *Follower) Close() {
	x := f.index
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.services[f.service]
	if e == nil {
		return
	}
	delete(e.followers, f)
	x.discard(e)
}

// Changes collects which services have changed, in all namespaces.
type Changes struct {
	index   *Index
	ready   chan struct{}
	changed map[Service]struct{} // of index.mu
}

// FollowAll is told of every change of a service; at first of all that there are.
func (x *Index) FollowAll() *Changes {
	c := &Changes{index: x, ready: make(chan struct{}, 1), changed: map[Service]struct{}{}}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all[c] = struct{}{}
	for s, e := range x.services {
		if e.exists() {
			c.changed[s] = struct{}{}
		}
	}
	c.ready <- struct{}{}
	return c
}

// Ready has a value when there is something to take.
func (c *Changes) Ready() <-chan struct{} { return c.ready }

// Take returns the services that have changed since the last call, in order, and the position that
// they are of.
func (c *Changes) Take() ([]Service, Position) {
	x := c.index
	x.mu.Lock()
	defer x.mu.Unlock()
	out := slices.SortedFunc(maps.Keys(c.changed), Service.Compare)
	clear(c.changed)
	return out, x.position
}

// Close ends it.
func (c *Changes) Close() {
	c.index.mu.Lock()
	defer c.index.mu.Unlock()
	delete(c.index.all, c)
}

func (x *Index) entry(s Service) *entry {
	e := x.services[s]
	if e == nil {
		e = &entry{service: s, position: x.position}
		x.services[s] = e
	}
	return e
}

// discard an entry that nothing needs.
func (x *Index) discard(e *entry) {
	if !e.exists() && len(e.followers) == 0 {
		delete(x.services, e.service)
	}
}

// apply brings the index to the end of a delta, whose position is at; 0: it follows from the revision.
func (x *Index) apply(d *catalog.Delta, at Position) {
	x.mu.Lock()
	defer x.mu.Unlock()
	touched := map[*entry]struct{}{}
	first := x.snapshot.Position.Epoch == "" && x.snapshot.Position.Sequence == 0
	x.snapshot = d.After
	for _, c := range d.Services {
		x.setService(c.Key, c.New, touched)
	}
	for _, c := range d.Dataplanes {
		x.setDataplane(c.Key, c.Old, c.New, touched)
	}
	for _, c := range d.Slices {
		for _, slice := range []*discoverySlice{c.Old, c.New} {
			if slice != nil {
				x.touch(trafficplan.ServiceOf(slice), touched)
			}
		}
	}
	for _, c := range d.RegistryConfigs { // of metadata of applications of Dubbo
		if sameEntry(c.Old, c.New) {
			continue
		}
		for _, o := range []*meshv1alpha1.RegistryConfig{c.Old, c.New} {
			if o == nil {
				continue
			}
			if e := x.services[Service{Namespace: o.Namespace, Name: o.Spec.DataID}]; e != nil {
				touched[e] = struct{}{}
			}
		}
	}
	for key := range x.plans.Apply(d) {
		x.touch(key, touched)
	}
	for _, name := range x.sites.Apply(d) {
		x.touch(resource.Key{Namespace: name.Namespace, Name: name.Name}, touched)
	}
	if slices.ContainsFunc(d.Nodes, func(c catalog.Change[*corev1.Node]) bool { return zoneOf(c.Old) != zoneOf(c.New) }) {
		for _, e := range x.services {
			touched[e] = struct{}{}
		}
	}
	for _, c := range d.Nodes {
		x.setNode(c.Key.Name, c.Old, c.New)
	}
	revision := d.After.Revision()
	switch {
	case at != 0:
		x.position = at
	case first:
		x.position = positionOf(revision)
	default:
		x.position = x.position.after(revision)
	}
	now := time.Now()
	for e := range touched {
		e.position, e.changed, e.lists = x.position, now, nil
		for f := range e.followers {
			f.notify()
		}
		for c := range x.all {
			c.changed[e.service] = struct{}{}
			signal(c.ready)
		}
		x.discard(e)
	}
}

// setNode files a node under its addresses. x.mu is held.
func (x *Index) setNode(name string, before, now *corev1.Node) {
	was, is := addressesOf(before), addressesOf(now)
	for _, a := range was {
		if slices.Contains(is, a) {
			continue
		}
		x.nodes[a] = slices.DeleteFunc(x.nodes[a], func(n string) bool { return n == name })
		if len(x.nodes[a]) == 0 {
			delete(x.nodes, a)
		}
	}
	for _, a := range is {
		if at, found := slices.BinarySearch(x.nodes[a], name); !found {
			x.nodes[a] = slices.Insert(x.nodes[a], at, name)
		}
	}
}

func addressesOf(n *corev1.Node) []netip.Addr {
	if n == nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if at, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, at)
		}
	}
	return out
}

// nodeAt is the node that has an address, the first by name; empty: none has.
func (x *Index) nodeAt(a netip.Addr) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if names := x.nodes[a]; len(names) > 0 {
		return names[0]
	}
	return ""
}

func zoneOf(n *corev1.Node) string {
	if n == nil {
		return ""
	}
	return n.Labels[corev1.LabelTopologyZone]
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// touch the service that a Service of Kubernetes is known by.
func (x *Index) touch(key resource.Key, touched map[*entry]struct{}) {
	if s, ok := x.known[key]; ok {
		touched[x.entry(s)] = struct{}{}
	}
}

func (x *Index) setService(key resource.Key, object *corev1.Service, touched map[*entry]struct{}) {
	name, ok := NameOf(object)
	if before, had := x.known[key]; had && (!ok || before != name) {
		e := x.entry(before)
		delete(e.from, key)
		delete(x.known, key)
		delete(x.names, key.Namespace)
		touched[e] = struct{}{}
	}
	if !ok {
		return
	}
	e := x.entry(name)
	if e.from == nil {
		e.from = map[resource.Key]struct{}{}
	}
	e.from[key] = struct{}{}
	x.known[key] = name
	delete(x.names, key.Namespace)
	touched[e] = struct{}{}
}

// maxRecords that are remembered young.
const maxRecords = 1024

// record of a Dataplane, which shares memory with equal ones: instances of an index are not changed.
func (x *Index) record(d *meshv1alpha1.Dataplane) (record, error) {
	text := d.Annotations[AnnotationInstance]
	if r, ok := x.records.Get(text); ok {
		return r, nil
	}
	r, err := parseRecord(d)
	if err == nil {
		x.records.Put(text, r)
	}
	return r, err
}

func (x *Index) setDataplane(key resource.Key, before, after *meshv1alpha1.Dataplane, touched map[*entry]struct{}) {
	if Registered(before) {
		if r, err := x.record(before); err == nil {
			e := x.entry(ParseGrouped(key.Namespace, r.Service))
			if in := e.own[key]; in != nil {
				x.tally(in, -1)
			}
			delete(e.own, key)
			delete(x.names, key.Namespace)
			touched[e] = struct{}{}
		}
	}
	if !Registered(after) {
		return
	}
	r, err := x.record(after)
	var in *Instance
	if err == nil {
		in, err = r.of(after)
	}
	if err != nil {
		x.log.Warn("a dataplane is no instance of a registry, though its annotation says so", "error", err, "hint", "delete it; its client registers it again")
		return
	}
	e := x.entry(in.Service)
	if e.own == nil {
		e.own = map[resource.Key]*Instance{}
	}
	e.own[key] = in
	x.tally(in, 1)
	delete(x.names, key.Namespace)
	touched[e] = struct{}{}
}

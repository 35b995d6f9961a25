package catalog

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
)

// ErrClosed is returned by Next of a closed Subscription.
var ErrClosed = errors.New("subscription is closed")

// Change is an object that is new (Old nil), different, or gone (New nil)
// between two snapshots.
type Change[T Row] struct {
	Key      Key
	Old, New T
}

// Delta is what changed between two snapshots, for the kinds subscribed to,
// ordered by key. What came and went in between, or became what it was, is not
// in it; so a Delta can be empty.
type Delta struct {
	Before, After *Snapshot

	Namespaces []Change[*corev1.Namespace]
	Services   []Change[*corev1.Service]
	Slices     []Change[*discoveryv1.EndpointSlice]
	Nodes      []Change[*corev1.Node]
	Pods       []Change[*corev1.Pod]
	Dataplanes []Change[*meshv1alpha1.Dataplane]
	Endpoints  []Change[*corev1.Endpoints]
	ZoneCosts  []Change[*meshv1alpha1.ZoneCosts]
	Heuristics []Change[*meshv1alpha1.TopologyHeuristic]
	Plans      []Change[*plannerv1alpha1.TrafficPlan]
	Meshes     []Change[*meshv1alpha1.Mesh]

	ZoneIngresses  []Change[*meshv1alpha1.ZoneIngress]
	ZoneEgresses   []Change[*meshv1alpha1.ZoneEgress]
	ServiceExports []Change[*mcs.ServiceExport]
	ServiceImports []Change[*mcs.ServiceImport]
	VirtualIPs     []Change[*meshv1alpha1.VirtualIP]

	ExternalServices []Change[*meshv1alpha1.ExternalService]
	AddressPools     []Change[*meshv1alpha1.IPAddressPool]
	ZoneShifts       []Change[*meshv1alpha1.ZoneShift]

	TrafficPermissions []Change[*meshv1alpha1.TrafficPermission]
	BackendPolicies    []Change[*meshv1alpha1.BackendPolicy]
	WorkloadPolicies   []Change[*meshv1alpha1.WorkloadPolicy]
	ProxyPatches       []Change[*meshv1alpha1.ProxyPatch]
	HTTPRoutes         []Change[*gateway.HTTPRoute]
	GRPCRoutes         []Change[*gateway.GRPCRoute]
	TCPRoutes          []Change[*gateway.TCPRoute]
	ReferenceGrants    []Change[*gateway.ReferenceGrant]

	RegistryConfigs []Change[*meshv1alpha1.RegistryConfig]
}

// Subscription follows the catalog for one reader, who may be as slow as it
// likes: the writer never waits, and what is kept for the reader is no more than
// the set of changed keys, replaced by a comparison of the two snapshots once
// that is the smaller task.
type Subscription struct {
	catalog *Catalog
	kinds   [Kinds]bool
	waits   []Kind        // what must have been listed, besides the common kinds
	began   bool          // it was: guarded by catalog.mu
	ready   chan struct{} // holds a token while there is a change to deliver
	closed  chan struct{}
	once    sync.Once

	before *Snapshot // only Next touches it

	mu      sync.Mutex
	latest  *Snapshot
	changed [Kinds]map[Key]struct{}
	compare [Kinds]bool // changed was given up: compare the whole table
}

// Subscribe follows some kinds; none: all. The first Next returns everything there
// is, once these kinds are Listed: a reader must not use the tables of others before.
// Close it when done.
func (c *Catalog) Subscribe(kinds ...Kind) *Subscription {
	s := &Subscription{
		catalog: c,
		ready:   make(chan struct{}, 1),
		closed:  make(chan struct{}),
		before:  newSnapshot(Position{Epoch: c.epoch}),
	}
	for kind := range s.kinds {
		s.kinds[kind] = len(kinds) == 0
		s.compare[kind] = true
		if s.kinds[kind] {
			s.waits = append(s.waits, Kind(kind))
		}
	}
	s.waits = append(s.waits, kinds...)
	for _, kind := range kinds {
		s.kinds[kind] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subs[s] = struct{}{}
	if s.began = c.listed(s.waits); s.began {
		s.notify(c.current.Load(), [Kinds]map[Key]struct{}{}, true)
	}
	return s
}

// Close frees the subscription; a Next that blocks returns ErrClosed. Idempotent.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.closed)
		s.catalog.mu.Lock()
		defer s.catalog.mu.Unlock()
		delete(s.catalog.subs, s)
	})
}

// Next blocks until something changed since the last call and returns the sum of
// it. The first call blocks until the kinds are listed and returns everything.
// Errors: ErrClosed, or why ctx ended; nothing is lost by calling again. For one
// goroutine at a time.
func (s *Subscription) Next(ctx context.Context) (Delta, error) {
	select {
	case <-s.closed:
		return Delta{}, ErrClosed
	default:
	}
	select {
	case <-ctx.Done():
		return Delta{}, fmt.Errorf("follow catalog: %w", context.Cause(ctx))
	case <-s.closed:
		return Delta{}, ErrClosed
	case <-s.ready:
	}

	s.mu.Lock()
	d := Delta{Before: s.before, After: s.latest}
	changed, compare := s.changed, s.compare
	s.changed, s.compare = [Kinds]map[Key]struct{}{}, [Kinds]bool{}
	s.mu.Unlock()

	s.before = d.After
	for kind, wanted := range s.kinds {
		if wanted {
			tables[kind].diff(&d, changed[kind], compare[kind])
		}
	}
	return d, nil
}

// notify records a new snapshot and what is different in it. It runs in the
// writer and is quick. latest and changed move together, so that a change can
// never hide between two deltas.
func (s *Subscription) notify(next *Snapshot, changed [Kinds]map[Key]struct{}, always bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = next
	wake := always
	for kind, keys := range changed {
		if !s.kinds[kind] || len(keys) == 0 {
			continue
		}
		wake = true
		s.remember(Kind(kind), keys, tables[kind].len(next))
	}
	if !wake {
		return
	}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *Subscription) remember(kind Kind, keys map[Key]struct{}, rows int) {
	if s.compare[kind] {
		return
	}
	if s.changed[kind] == nil {
		s.changed[kind] = make(map[Key]struct{}, len(keys))
	}
	for key := range keys {
		s.changed[kind][key] = struct{}{}
	}
	if len(s.changed[kind]) > max(rows, compareAfter) {
		s.changed[kind], s.compare[kind] = nil, true
	}
}

// compareAfter is how many changed keys are always remembered, however small the
// table: below it a set costs nothing worth saving.
const compareAfter = 1024

// diff writes the changes of a table between d.Before and d.After.
func (t *tableKind[T]) diff(d *Delta, keys map[Key]struct{}, all bool) {
	before, after := t.at(d.Before), t.at(d.After)
	if all {
		*t.delta(d) = compareTables(before, after)
		return
	}
	changes := make([]Change[T], 0, len(keys))
	for key := range keys {
		was, _ := before.Get(key)
		is, _ := after.Get(key)
		if was != is {
			changes = append(changes, Change[T]{Key: key, Old: was, New: is})
		}
	}
	sort.Slice(changes, func(i, j int) bool { return less(changes[i].Key, changes[j].Key) })
	*t.delta(d) = changes
}

func compareTables[T Row](before, after *Table[T]) []Change[T] {
	changes := make([]Change[T], 0, after.Len())
	for key, is := range after.All() {
		if was, _ := before.Get(key); was != is {
			changes = append(changes, Change[T]{Key: key, Old: was, New: is})
		}
	}
	stay := len(changes)
	for key, was := range before.All() {
		if _, ok := after.Get(key); !ok {
			changes = append(changes, Change[T]{Key: key, Old: was})
		}
	}
	if len(changes) > stay {
		sort.Slice(changes, func(i, j int) bool { return less(changes[i].Key, changes[j].Key) })
	}
	return changes
}

func less(a, b Key) bool {
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

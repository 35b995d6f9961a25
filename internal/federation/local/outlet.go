package local

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// debounce is how long changes are collected under load.
	debounce = 20 * time.Millisecond
	// burst is how many times changes are sent at once before the next ones are collected: an
	// object that is created and completed by a controller is not held for its second write.
	// After a quiet time of burst × debounce there are as many again.
	burst = 4
)

// OutletConfig configures an Outlet.
type OutletConfig struct {
	Client resource.Client
	// Kinds of both directions, in the order in which they are synchronised.
	Kinds []Kind
	Side  federation.Side
	// Zone is this zone's name; empty at global.
	Zone string
	// StoreEpoch identifies the history of the local store.
	StoreEpoch string
	// Run, if not empty, identifies this run of the program: revisions of the store do not tell
	// its content, as those of a cluster do not, whose etcd may be set back without another epoch.
	// Positions count what this run has seen then, and hold as long as it lasts; a stream that
	// comes from an earlier one begins with versions, which are hashes of the content.
	Run   string
	Clock clock.Clock  // nil: the real one
	Log   *slog.Logger // nil: silence
}

// Outlet keeps the state that streams send. It implements federation.Outlet. Make it
// with NewOutlet; it has no content until Run has listed the objects.
type Outlet struct {
	config OutletConfig
	tables []*table

	mu      sync.Mutex
	changed chan struct{}
}

// NewOutlet makes an outlet.
func NewOutlet(c OutletConfig) (*Outlet, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	kinds, err := bySide(c.Kinds, c.Side, true)
	if err != nil {
		return nil, err
	}
	o := &Outlet{config: c, changed: make(chan struct{})}
	for _, k := range kinds {
		o.tables = append(o.tables, newTable(o, k))
	}
	return o, nil
}

// Changed implements federation.Outlet.
func (o *Outlet) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (o *Outlet) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// Sender implements federation.Outlet.
func (o *Outlet) Sender(zone string) federation.SenderConfig {
	c := federation.SenderConfig{StoreEpoch: o.config.StoreEpoch}
	for _, t := range o.tables {
		c.Types = append(c.Types, t.kind.Type)
	}
	find := func(typ string) *table {
		i := slices.IndexFunc(o.tables, func(t *table) bool { return t.kind.Type.Name == typ })
		if i < 0 {
			return nil
		}
		return o.tables[i]
	}
	c.Scope = func(typ string) *delta.Scope {
		if t := find(typ); t != nil {
			return t.scope(zone)
		}
		return nil
	}
	// A kind that has not changed is at the revision at which this instance began to follow
	// it. A zone that comes from an instance that began later has seen a higher one.
	c.Behind = func(typ string) {
		if t := find(typ); t != nil {
			t.again()
		}
	}
	return c
}

// Again reads all objects of a kind anew, as what they are derived of has changed without an event of
// theirs. It does not block; what is the same is not sent again.
func (o *Outlet) Again(d *resource.Descriptor) {
	for _, t := range o.tables {
		if t.kind.Descriptor == d {
			t.again()
		}
	}
}

// Run follows the kinds until ctx ends, and returns nil then. Call it once.
func (o *Outlet) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, t := range o.tables {
		running.Go(func() { t.run(ctx) })
	}
	running.Wait()
	return nil
}

// table is one kind: all objects that may travel, marshalled once, and a scope for each
// audience.
type table struct {
	outlet *Outlet
	kind   Kind
	// perZone: what a stream carries depends on the zone at its end.
	perZone bool

	mu       sync.Mutex
	filled   bool
	revision uint64
	entries  map[string]entry
	scopes   map[string]*delta.Scope // by zone, or under ""

	// pending are changes that are not in the scopes yet; of the goroutine of run.
	pending map[string]*entry // nil entry: removed
	// relist has an entry when a peer has seen more than this table has, or all is to be derived anew.
	relist chan struct{}
}

// entry is an object, marshalled.
type entry struct {
	body   []byte
	labels map[string]string
	zones  []string
	// local: it does not travel.
	local bool
}

func newTable(o *Outlet, k Kind) *table {
	t := &table{
		outlet: o, kind: k, entries: map[string]entry{}, scopes: map[string]*delta.Scope{}, pending: map[string]*entry{},
		relist: make(chan struct{}, 1),
		perZone: o.config.Side == federation.AtGlobal &&
			(k.Type.Direction == federation.ZoneToZones || k.Type.FanOut == federation.SelectedZones),
	}
	return t
}

// again lists all objects anew.
func (t *table) again() {
	select {
	case t.relist <- struct{}{}:
	default:
	}
}

// scope of the stream to a zone.
func (t *table) scope(zone string) *delta.Scope {
	if !t.perZone {
		zone = ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[zone]
	if s == nil {
		s = delta.NewScope(delta.Options{})
		t.scopes[zone] = s
		if t.filled {
			t.fill(zone, s)
		}
	}
	return s
}

// fill makes the entries the content of a scope. t.mu is held.
func (t *table) fill(zone string, s *delta.Scope) {
	var all []delta.Resource
	for name, e := range t.entries {
		if t.visible(zone, e) {
			all = append(all, t.resource(name, e))
		}
	}
	if _, err := s.Replace(t.position(zone), all); err != nil {
		t.outlet.config.Log.Error("state of a stream not replaced", "type", t.kind.Type.Name, "zone", zone, "error", err)
	}
}

func (t *table) resource(name string, e entry) delta.Resource {
	return delta.Resource{Type: t.kind.Type.Name, Name: name, Body: e.body}
}

func (t *table) position(zone string) delta.Position {
	history := t.outlet.config.StoreEpoch
	if t.outlet.config.Run != "" {
		history += "/" + t.outlet.config.Run
	}
	return delta.Position{Epoch: federation.StreamEpoch(history, t.kind.Type.Name, zone), Sequence: t.revision}
}

// visible reports whether the streams of an audience carry an entry.
func (t *table) visible(zone string, e entry) bool {
	peer := zone
	if t.outlet.config.Side == federation.AtZone {
		peer = t.outlet.config.Zone
	}
	if e.local || e.labels[LabelWithheld] != "" || !t.kind.Type.Leaves(t.outlet.config.Side, peer, e.labels) {
		return false
	}
	return t.outlet.config.Side == federation.AtZone || t.kind.Type.FanOut != federation.SelectedZones ||
		slices.Contains(e.zones, zone) || slices.Contains(e.zones, AnyZone)
}

// event is one call of a handler.
type event struct {
	all      []resource.Object
	replace  bool
	obj      resource.Object
	removed  bool
	revision uint64
}

// run follows the kind. Changes go from the goroutine that watches to this one, which
// collects them.
func (t *table) run(ctx context.Context) {
	events := make(chan event)
	seen := uint64(0)
	put := func(e event) error {
		if t.outlet.config.Run != "" {
			seen++
			e.revision = seen
		}
		select {
		case events <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		follow(ctx, t.outlet.config.Clock, t.outlet.config.Client, t.kind.Descriptor, t.relist, handler{
			replace: func(all []resource.Object, revision uint64) error {
				return put(event{all: all, replace: true, revision: revision})
			},
			change: func(obj resource.Object, removed bool, revision uint64) error {
				return put(event{obj: obj, removed: removed, revision: revision})
			},
			broken: func(err error) {
				t.outlet.config.Log.Warn("watch broke; taking it up again", "type", t.kind.Type.Name, "error", err)
			},
		})
	})
	t.collect(ctx, events)
}

// pace decides when changes are sent: burst times at once, then once in each debounce. It is the
// generic cell rate algorithm (ITU-T I.371). The zero value has a whole burst.
type pace struct{ full time.Time }

// wait is how long the next changes are collected; 0 or less: not at all.
func (p *pace) wait(now time.Time) time.Duration { return p.full.Sub(now) - (burst-1)*debounce }

// sent notes that changes were sent.
func (p *pace) sent(now time.Time) {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(debounce)
}

// collect applies changes as pace lets them. Revisions without a change cost nothing, and do not
// count.
func (t *table) collect(ctx context.Context, events <-chan event) {
	clk := t.outlet.config.Clock
	var sending pace
	var due clock.Timer
	var fire <-chan time.Time
	stop := func() {
		if due != nil {
			due.Stop()
			due, fire = nil, nil
		}
	}
	defer stop()
	var latest uint64
	flush := func() {
		stop()
		if len(t.pending) > 0 {
			sending.sent(clk.Now())
		}
		t.flush(latest)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-fire:
			flush()
		case e := <-events:
			latest = e.revision
			if e.replace {
				t.replace(e)
				stop()
				sending.sent(clk.Now())
				continue
			}
			t.note(e)
			if wait := sending.wait(clk.Now()); wait <= 0 || len(t.pending) == 0 {
				flush()
			} else if due == nil {
				due = clk.NewTimer(wait)
				fire = due.C()
			}
		}
	}
}

// marshal encodes an object; nil: it cannot be encoded, and what is sent of it stays.
func (t *table) marshal(obj resource.Object) *entry {
	o, err := t.kind.encode(obj)
	var body []byte
	if err == nil {
		body, err = o.Marshal()
	}
	if err != nil {
		t.outlet.config.Log.Error("object not sent", "type", t.kind.Type.Name, "error", err)
		return nil
	}
	e := &entry{body: body, labels: obj.GetLabels(), local: t.kind.Local != nil && t.kind.Local(obj)}
	if t.kind.Zones != nil {
		e.zones = t.kind.Zones(obj)
	}
	return e
}

func resourceName(obj resource.Object) string {
	return federation.ResourceName(federation.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()})
}

func (t *table) note(e event) {
	if e.obj == nil {
		return // the revision has moved, nothing else
	}
	name := resourceName(e.obj)
	if e.removed {
		t.pending[name] = nil
	} else if made := t.marshal(e.obj); made != nil {
		t.pending[name] = made
	}
}

// replace makes the objects all that there is.
func (t *table) replace(e event) {
	clear(t.pending)
	entries := make(map[string]entry, len(e.all))
	for _, obj := range e.all {
		name := resourceName(obj)
		if made := t.marshal(obj); made != nil {
			entries[name] = *made
		} else if old, ok := t.entries[name]; ok {
			entries[name] = old
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.filled && e.revision <= t.revision {
		if e.revision < t.revision {
			t.outlet.config.Log.Error("the store went back in its history, which is not sent: restart this control plane",
				"type", t.kind.Type.Name, "revision", e.revision, "before", t.revision)
		}
		return
	}
	t.filled, t.revision, t.entries = true, e.revision, entries
	for zone, s := range t.scopes {
		t.fill(zone, s)
	}
	t.outlet.wake()
}

// flush brings the pending changes into the scopes.
func (t *table) flush(revision uint64) {
	t.mu.Lock()
	if revision <= t.revision {
		t.mu.Unlock()
		return
	}
	before := make(map[string]entry, len(t.pending))
	for name, made := range t.pending {
		before[name] = t.entries[name]
		if made == nil {
			delete(t.entries, name)
		} else {
			t.entries[name] = *made
		}
	}
	t.revision = revision
	for zone, s := range t.scopes {
		if _, err := s.Apply(t.position(zone), t.changes(zone, before)); err != nil {
			t.outlet.config.Log.Error("changes not sent", "type", t.kind.Type.Name, "zone", zone, "error", err)
		}
	}
	moved := len(t.pending) > 0
	clear(t.pending)
	t.mu.Unlock()
	if moved {
		t.outlet.wake()
	}
}

// changes of one audience, which may include removals of what it never saw: these are
// none. t.mu is held.
func (t *table) changes(zone string, before map[string]entry) []delta.Change {
	var out []delta.Change
	for name, made := range t.pending {
		switch {
		case made != nil && t.visible(zone, *made):
			out = append(out, delta.Change{Resource: t.resource(name, *made)})
		case before[name].body != nil && t.visible(zone, before[name]):
			out = append(out, delta.Change{Resource: delta.Resource{Type: t.kind.Type.Name, Name: name}, Removed: true})
		}
	}
	slices.SortFunc(out, func(a, b delta.Change) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

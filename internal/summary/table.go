package summary

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Config of a Table. All fields but Clock and Logger are required.
type Config struct {
	// Catalog to follow.
	Catalog *catalog.Catalog
	// Tallier of the planner.
	Tallier *topology.Tallier
	Clock   clock.WithTicker // nil: the real one
	Logger  *slog.Logger     // nil: silence
}

// Table of sums. Make it with New. Its methods are safe for concurrent use.
type Table struct {
	config Config
	clock  clock.WithTicker
	log    *slog.Logger
	// dirty Services are to be prepared anew, and stepping are those whose demand is to be taken in yet. Of Run alone.
	dirty    map[resource.Key]struct{}
	stepping []resource.Key

	// mu guards what follows. Nothing is called while it is held.
	mu         sync.RWMutex
	began      time.Time
	filled     bool
	epoch      string
	position   uint64
	rows       map[resource.Key]*row
	zones      numbers
	total      *sums
	namespaces map[string]*sums
	nodes      map[locality.Zone]*zoneNodes
	series     series
	changed    chan struct{} // closed with the next change

	// viewing guards views, and is taken before mu.
	viewing sync.Mutex
	views   map[string]*scopeView
}

// row is a Service.
type row struct {
	tally *topology.Tally // of Run alone
	line  topology.Line   // without flows
	flows packed
	past  *past
}

// zoneNodes are the Nodes of a zone.
type zoneNodes struct {
	region       locality.Region
	nodes, ready int
}

// New makes a table; Run fills it.
func New(config Config) *Table {
	t := &Table{
		config: config, clock: config.Clock, log: config.Logger, dirty: map[resource.Key]struct{}{},
		rows: map[resource.Key]*row{}, total: newSums(), namespaces: map[string]*sums{}, nodes: map[locality.Zone]*zoneNodes{},
		zones: numbers{of: map[locality.Zone]uint16{}}, changed: make(chan struct{}), views: map[string]*scopeView{}, epoch: newEpoch(),
	}
	if t.clock == nil {
		t.clock = clock.RealClock{}
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	return t
}

// kinds that sums depend on.
var kinds = []catalog.Kind{
	catalog.Services, catalog.Slices, catalog.Nodes, catalog.Plans, catalog.ZoneCosts, catalog.Namespaces, catalog.Meshes, catalog.Dataplanes,
	catalog.ServiceExports, catalog.ZoneIngresses, catalog.ZoneEgresses,
}

// Run follows catalog and demand until ctx ends, and returns nil then. It must be called once.
func (t *Table) Run(ctx context.Context) error {
	sub := t.config.Catalog.Subscribe(kinds...)
	defer sub.Close()
	t.mu.Lock()
	t.began = t.clock.Now()
	t.mu.Unlock()
	deltas := make(chan catalog.Delta)
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following.Go(func() {
		for {
			d, err := sub.Next(ctx)
			if err != nil {
				return // ctx has ended
			}
			select {
			case deltas <- d:
			case <-ctx.Done():
				return
			}
		}
	})
	ticker := t.clock.NewTicker(demand.Interval)
	defer ticker.Stop()
	var latest *catalog.Snapshot
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-deltas:
			latest = d.After
			t.mark(&d)
			t.work(ctx, latest)
		case <-ticker.C():
			if latest != nil && len(t.stepping) == 0 {
				t.begin()
			}
		case <-t.more():
			t.step()
		}
	}
}

// mark the Services that a delta concerns.
func (t *Table) mark(d *catalog.Delta) {
	all := t.config.Tallier.Apply(d)
	if len(d.Nodes) > 0 {
		t.setNodes(d.After)
	}
	for _, c := range d.Services {
		t.dirty[c.Key] = struct{}{}
	}
	for _, c := range d.Slices {
		if c.Old != nil {
			t.dirty[trafficplan.ServiceOf(c.Old)] = struct{}{}
		}
		if c.New != nil {
			t.dirty[trafficplan.ServiceOf(c.New)] = struct{}{}
		}
	}
	for _, c := range d.Plans {
		plan := c.New
		if plan == nil {
			plan = c.Old
		}
		t.dirty[resource.Key{Namespace: plan.Namespace, Name: plan.Spec.Service}] = struct{}{}
	}
	for _, c := range d.Dataplanes {
		if c.Old != nil && c.New != nil && backend.WeightOf(c.Old) != backend.WeightOf(c.New) {
			backend.Behind(d.After, c.New, func(key resource.Key) { t.dirty[key] = struct{}{} })
		}
	}
	of := func(in func(key resource.Key, service *corev1.Service) bool) {
		for key, service := range d.After.Services.All() {
			if in(key, service) {
				t.dirty[key] = struct{}{}
			}
		}
	}
	namespaces := map[string]bool{}
	for _, c := range d.Namespaces {
		if c.New != nil && (c.Old == nil || c.Old.Annotations[corev1.AnnotationTopologyMode] != c.New.Annotations[corev1.AnnotationTopologyMode]) {
			namespaces[c.Key.Name] = true
		}
	}
	switch {
	case all || len(d.Meshes) > 0:
		of(func(resource.Key, *corev1.Service) bool { return true })
		return
	case len(namespaces) > 0:
		of(func(key resource.Key, _ *corev1.Service) bool { return namespaces[key.Namespace] })
	}
	if len(d.ServiceExports)+len(d.ZoneIngresses)+len(d.ZoneEgresses) > 0 {
		of(func(_ resource.Key, service *corev1.Service) bool {
			_, imported := sites.ImportOf(service)
			return imported
		})
	}
}

func (t *Table) setNodes(s *catalog.Snapshot) {
	nodes := map[locality.Zone]*zoneNodes{}
	for _, n := range s.Nodes.All() {
		zone := cmp.Or(locality.ZoneOf(n.Labels), plannerv1alpha1.NoZone)
		if nodes[zone] == nil {
			nodes[zone] = &zoneNodes{}
		}
		z := nodes[zone]
		z.nodes++
		if region := locality.RegionOf(n.Labels); z.region == "" || region != "" && region < z.region {
			z.region = region
		}
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			z.ready++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes = nodes
	t.advance()
}

// work off the marked Services.
func (t *Table) work(ctx context.Context, s *catalog.Snapshot) {
	for key := range t.dirty {
		if ctx.Err() != nil {
			return
		}
		delete(t.dirty, key)
		tally, ok := t.config.Tallier.Tally(s, key)
		if !ok {
			t.replace(key, nil, nil)
			continue
		}
		line := tally.Sum()
		t.replace(key, tally, &line)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.filled {
		t.filled = true
		t.advance()
	}
}

// always is a channel that is ready.
var always = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// more is ready while a step is not finished.
func (t *Table) more() <-chan struct{} {
	if len(t.stepping) > 0 {
		return always
	}
	return nil
}

// begin to take the demand as it is now into the sums.
func (t *Table) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stepping = slices.AppendSeq(t.stepping[:0], maps.Keys(t.rows)); len(t.stepping) == 0 {
		t.remember()
	}
}

// stepAtOnce so many Services: changes come in between, as thousands take a second.
const stepAtOnce = 100

// step takes the demand of some Services into the sums; after the last ones, the sums are remembered.
func (t *Table) step() {
	some := t.stepping[max(0, len(t.stepping)-stepAtOnce):]
	t.stepping = t.stepping[:len(t.stepping)-len(some)]
	for _, key := range some {
		t.mu.RLock()
		r := t.rows[key]
		t.mu.RUnlock()
		if r == nil || r.tally.Idle() {
			continue
		}
		line := r.tally.Sum()
		t.replace(key, r.tally, &line)
	}
	if len(t.stepping) == 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.remember()
	}
}

// replace a line; nil: it is gone. Equal lines change nothing.
func (t *Table) replace(key resource.Key, tally *topology.Tally, line *topology.Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[key]
	var flows packed
	if line != nil {
		flows, line.Flows = t.zones.pack(line.Flows), nil
	}
	if r != nil {
		if line != nil && r.flows.same(&flows) && reflect.DeepEqual(&r.line, line) {
			r.tally = tally
			return
		}
		t.add(key, r, -1)
	}
	switch {
	case line == nil && r == nil:
		return
	case line == nil:
		delete(t.rows, key)
	case r == nil:
		r = &row{tally: tally, line: *line, flows: flows}
		t.rows[key] = r
	default:
		r.tally, r.line, r.flows = tally, *line, flows
	}
	if line != nil {
		t.add(key, r, 1)
	}
	t.advance()
}

func (t *Table) add(key resource.Key, r *row, sign int64) {
	t.total.add(&r.line, &r.flows, sign)
	of := t.namespaces[key.Namespace]
	if of == nil {
		of = newSums()
		t.namespaces[key.Namespace] = of
	}
	if of.add(&r.line, &r.flows, sign); of.services == 0 {
		delete(t.namespaces, key.Namespace)
	}
}

// advance the position, and wake those who wait for a change.
func (t *Table) advance() {
	t.position++
	close(t.changed)
	t.changed = make(chan struct{})
}

package topology

import (
	"maps"
	"math"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// model is what Nodes and ZoneCosts say together: the part of a plan's inputs that
// Services share. It is safe for concurrent use, and calls nothing while it is locked.
type model struct {
	mu    sync.Mutex
	ready bool // a first delta was applied
	nodes map[string]facts
	atlas atlas
}

// newModel for the control plane of a site; empty: it is the only one.
func newModel(site locality.Site) *model {
	return &model{nodes: map[string]facts{}, atlas: atlas{
		site: site, cluster: clusterOf(nil), costs: map[string]*meshv1alpha1.ZoneCosts{}, made: map[string]*frame{}, unusable: map[string]string{},
	}}
}

// modelOf a snapshot, for one question.
func modelOf(snapshot *catalog.Snapshot, site locality.Site) *model {
	m := newModel(site)
	d := catalog.Delta{After: snapshot}
	for key, node := range snapshot.Nodes.All() {
		d.Nodes = append(d.Nodes, catalog.Change[*corev1.Node]{Key: key, New: node})
	}
	for key, costs := range snapshot.ZoneCosts.All() {
		d.ZoneCosts = append(d.ZoneCosts, catalog.Change[*meshv1alpha1.ZoneCosts]{Key: key, New: costs})
	}
	m.apply(&d)
	return m
}

// apply a delta. plans: plans may depend on what changed; ratios: Kubernetes' heuristic
// does. Both are true for the first delta.
func (m *model) apply(d *catalog.Delta) (plans, ratios bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	plans, ratios = !m.ready, !m.ready
	m.ready = true
	if nodesOf(m.nodes, *d) {
		next := clusterOf(m.nodes)
		plans = plans || !next.samePlans(m.atlas.cluster)
		ratios = ratios || !next.sameRatios(m.atlas.cluster)
		m.atlas.cluster = next
	}
	for _, change := range d.ZoneCosts {
		// Of a status that is written, plans know nothing.
		if change.Old == nil || change.New == nil || !equality.Semantic.DeepEqual(change.Old.Spec, change.New.Spec) {
			plans = true
		}
		m.atlas.take(change.Key.Name, change.New)
	}
	if plans {
		m.atlas.forget()
	}
	return plans, ratios
}

// current cluster; ready is false before the first delta.
func (m *model) current() (c *cluster, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.atlas.cluster, m.ready
}

// frame is what plans of all Services with the same zones and costs share.
type frame struct {
	topology *planner.Topology
	cluster  *cluster
	at       []int // index in the topology of each of the cluster's zones
	noNodes  []bool
}

func newFrame(t *planner.Topology, c *cluster) *frame {
	f := &frame{topology: t, cluster: c, at: make([]int, len(c.names)), noNodes: make([]bool, t.Len())}
	for i := range f.noNodes {
		f.noNodes[i] = !isSite(t.Zone(i).Name)
	}
	for i, zone := range c.names {
		f.at[i], _ = t.Index(zone)
		f.noNodes[f.at[i]] = c.noNodes[i]
	}
	return f
}

// input of a plan, but for demand.
type input struct {
	*frame
	// weight of the endpoints of each zone: their number, unless they have weights of their
	// own. count is their number.
	weight, count []int64
	params        planner.Params
	// elsewhere is demand besides that of the Service here.
	elsewhere elsewhere
	// warning says what of the costs that are asked for does not hold.
	warning string
}

// inputOf a group.
func (m *model) inputOf(params Params, g *group) (input, error) {
	in, err := m.input(params, g.Group)
	in.elsewhere = g.elsewhere
	return in, err
}

// input for a group's endpoints. After an error, which means that there are more zones
// than can be planned for, only the warning is set.
func (m *model) input(params Params, g *trafficplan.Group) (in input, err error) {
	m.mu.Lock()
	in.frame, in.warning, err = m.atlas.frame(params.Costs, g.Endpoints)
	m.mu.Unlock()
	if err != nil {
		return in, err
	}
	in.params, in.count = params.planner(), make([]int64, in.topology.Len())
	for zone, n := range g.Endpoints {
		at, _ := in.topology.Index(zone)
		in.count[at] = n
	}
	in.weight = in.count
	if g.Weights != nil {
		in.weight = make([]int64, in.topology.Len())
		for zone, w := range g.Weights {
			at, _ := in.topology.Index(zone)
			in.weight[at] = w
		}
	}
	return in, nil
}

// weighted: endpoints have weights of their own.
func (in *input) weighted() bool { return len(in.weight) > 0 && &in.weight[0] != &in.count[0] }

// utilisation of the endpoints of the most loaded zone, whose load is worst times the mean:
// measured, where an endpoint of the default weight takes capacity connections per second;
// where that is not stated (0), by what the Service states of all endpoints. 0: not known.
func (in *input) utilisation(capacity float64, demand *estimated, worst float64) float64 {
	if capacity == 0 {
		return in.params.Utilisation * worst
	}
	endpoints := 0.0
	for _, w := range in.weight {
		endpoints += float64(w)
	}
	if in.weighted() {
		endpoints /= float64(trafficplan.DefaultWeight)
	}
	if !demand.measured || endpoints == 0 {
		return 0 // an autoscaler that has no figure changes nothing
	}
	return demand.load / (endpoints * capacity) * worst
}

func (in *input) problem(demand *estimated) planner.Problem {
	return planner.Problem{Demand: demand.shares, Fixed: demand.fixed, Weight: in.weight, NoNodes: in.noNodes, Params: in.params}
}

// facts are all that is read of a Node. Nodes whose facts are equal are alike, so
// heartbeats cost nothing.
type facts struct {
	zone   locality.Zone
	region locality.Region
	ready  bool
	// excluded by the role of its label; evicting by a taint that drives workloads off.
	excluded, evicting bool
	nanoCPU            int64
}

func factsOf(n *corev1.Node) facts {
	f := facts{
		zone: locality.ZoneOf(n.Labels), region: locality.RegionOf(n.Labels),
		excluded: auto.Excluded(n.Labels),
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			f.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, t := range n.Spec.Taints {
		f.evicting = f.evicting || t.Effect == corev1.TaintEffectNoExecute
	}
	cpu := n.Status.Allocatable.Cpu()
	f.nanoCPU = cpu.ScaledValue(resource.Nano)
	if cpu.AsApproximateFloat64()*1e9 >= math.MaxInt64 {
		f.nanoCPU = math.MaxInt64
	}
	return f
}

// cluster is what all nodes together say. It is made again when one of them says
// something else, and never changed.
type cluster struct {
	// zones of all nodes, ascending.
	zones []planner.Zone
	names []locality.Zone
	// noNodes are the zones without a node that is ready; prior is the CPU of those
	// whose workloads make traffic, in the order of zones.
	noNodes []bool
	prior   []float64
	ratios  auto.Ratios
}

func clusterOf(nodes map[string]facts) *cluster {
	type sum struct {
		region       locality.Region
		live         bool
		counted, all float64
	}
	byZone := map[locality.Zone]*sum{}
	list := make([]auto.Node, 0, len(nodes))
	for _, name := range sortedKeys(nodes) {
		n := nodes[name]
		list = append(list, auto.Node{Zone: n.zone, Ready: n.ready, Excluded: n.excluded, NanoCPU: n.nanoCPU})
		if n.zone == "" {
			continue
		}
		s := byZone[n.zone]
		if s == nil {
			s = &sum{}
			byZone[n.zone] = s
		}
		// A zone whose nodes disagree is in the region that comes first by name.
		if n.region != "" && (s.region == "" || n.region < s.region) {
			s.region = n.region
		}
		if !n.ready {
			continue
		}
		s.live = true
		s.all += float64(n.nanoCPU)
		if !n.excluded && !n.evicting {
			s.counted += float64(n.nanoCPU)
		}
	}
	c := &cluster{ratios: auto.RatiosOf(list)}
	counted := 0.0
	for _, s := range byZone {
		counted += s.counted
	}
	for _, zone := range sortedKeys(byZone) {
		s := byZone[zone]
		c.zones = append(c.zones, planner.Zone{Name: zone, Region: s.region})
		c.names = append(c.names, zone)
		c.noNodes = append(c.noNodes, !s.live)
		prior := s.counted
		if counted == 0 { // all run the control plane, or are being emptied
			prior = s.all
		}
		c.prior = append(c.prior, prior)
	}
	return c
}

// samePlans: plans made with either would be equal.
func (c *cluster) samePlans(d *cluster) bool {
	return slices.Equal(c.zones, d.zones) && slices.Equal(c.noNodes, d.noNodes) && slices.Equal(c.prior, d.prior)
}

// sameRatios: the heuristic would not notice.
func (c *cluster) sameRatios(d *cluster) bool {
	return (c.ratios == nil) == (d.ratios == nil) && maps.Equal(c.ratios, d.ratios)
}

// nodesOf takes a delta's nodes in, and says whether any fact changed.
func nodesOf(known map[string]facts, d catalog.Delta) (changed bool) {
	for _, n := range d.Nodes {
		was, ok := known[n.Key.Name]
		if n.New == nil {
			delete(known, n.Key.Name)
			changed = changed || ok
			continue
		}
		if is := factsOf(n.New); !ok || is != was {
			known[n.Key.Name], changed = is, true
		}
	}
	return changed
}

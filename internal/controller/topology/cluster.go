package topology

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// facts are all that is read of a Node. Nodes whose facts are equal are alike, so
// heartbeats cost nothing.
type facts struct {
	zone, region string
	ready        bool
	// excluded by the role of its label; evicting by a taint that drives workloads off.
	excluded, evicting bool
	nanoCPU            int64
}

func factsOf(n *corev1.Node) facts {
	f := facts{
		zone: n.Labels[corev1.LabelTopologyZone], region: n.Labels[corev1.LabelTopologyRegion],
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

// cluster is what all nodes together say. It is made anew when one of them says
// something else, and never changed.
type cluster struct {
	// zones of all nodes, ascending.
	zones []planner.Zone
	names []string
	// noNodes are the zones without a node that is ready; prior is the CPU of those
	// whose workloads make traffic, in the order of zones.
	noNodes []bool
	prior   []float64
	ratios  auto.Ratios
}

func clusterOf(nodes map[string]facts) *cluster {
	type sum struct {
		region       string
		live         bool
		counted, all float64
	}
	byZone := map[string]*sum{}
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

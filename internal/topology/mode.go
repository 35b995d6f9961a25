package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Adaptive is the mode in which the planner plans.
const Adaptive = "proxima.dev/Adaptive"

// Kind of a Mode.
type Kind uint8

const (
	// Distribution: spec.trafficDistribution decides, if it is set.
	Distribution Kind = iota
	// Auto is Kubernetes' heuristic.
	Auto
	// Planned is Adaptive.
	Planned
	// Custom is a heuristic of that name.
	Custom
)

// planned says whether Services of the mode have a TrafficPlan, or may have one.
func (m Mode) planned() bool { return m.Kind == Planned || m.Kind == Custom }

// Level names what decided over the mode of a Service.
type Level string

// The levels, the first that says something wins. LevelNone: none of them does.
const (
	LevelNone         Level = ""
	LevelService      Level = "Service"
	LevelNamespace    Level = "Namespace"
	LevelMesh         Level = "Mesh"
	LevelControlPlane Level = "ControlPlane"
)

// text behind the name of a mode; empty where the Service itself, or nothing, named it.
func (l Level) text() string {
	switch l {
	case LevelNamespace:
		return ", the default of its namespace"
	case LevelMesh:
		return ", the default of its mesh"
	case LevelControlPlane:
		return ", the default of the control plane (--default-topology-mode)"
	}
	return ""
}

// Mode is how a Service is to be routed.
type Mode struct {
	Kind Kind
	// Name is the value that chose it: of an annotation, of a Mesh, of the control plane's
	// default, or of spec.trafficDistribution; empty if there is none.
	Name string
	// Level that the value is from.
	Level Level
}

// ofService reads a Service alone. Of its annotations the older one wins where it is there,
// whatever its value, as in Kubernetes (k8s.io/endpointslice, hintsEnabled); any mode
// that a value chooses wins over spec.trafficDistribution, even if it yields nothing.
func ofService(service *corev1.Service) Mode {
	value, ok := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		value = service.Annotations[corev1.AnnotationTopologyMode]
	}
	mode, ok := ofValue(value, LevelService)
	if d := service.Spec.TrafficDistribution; d != nil && mode.Kind == Distribution {
		return Mode{Distribution, *d, LevelService}
	}
	if ok {
		return mode
	}
	return Mode{}
}

// ofValue of an annotation, or of another place that names a mode; ok is false if it names
// none: it is empty, or a word that only Kubernetes may define.
func ofValue(value string, from Level) (m Mode, ok bool) {
	switch {
	case value == "Auto" || value == "auto":
		return Mode{Auto, value, from}, true
	case value == Adaptive:
		return Mode{Planned, value, from}, true
	case meshv1alpha1.TopologyDisabled(value):
		return Mode{Distribution, "", from}, true
	case domainPrefixed(value):
		return Mode{Custom, value, from}, true
	}
	return Mode{}, false
}

// CheckDefault says what is wrong with a default topology mode; nil: nothing, also if it is
// empty.
func CheckDefault(value string) error {
	if _, ok := ofValue(value, LevelControlPlane); !ok && value != "" {
		return fmt.Errorf("%q is no topology mode; it must be %s", value, meshv1alpha1.TopologyModes)
	}
	return nil
}

// Modes says which modes hold for the Services of one snapshot. A Service that says nothing
// takes the mode of its namespace's annotation, else of its Mesh, else of the control plane.
type Modes struct {
	snapshot *catalog.Snapshot
	fallback string
	// several: there are several zones to choose from.
	several bool
}

// ModesOf a snapshot. fallback is the default of the control plane; empty: none.
func ModesOf(snapshot *catalog.Snapshot, fallback string) Modes {
	return Modes{snapshot: snapshot, fallback: fallback, several: severalZones(snapshot)}
}

// AcrossSites are the modes where the Services in question are offered to other sites.
func (m Modes) AcrossSites() Modes {
	m.several = true
	return m
}

// Of a Service. A default holds only where there is something to choose: for Services with
// virtual IPs, where nodes are in several zones or other sites offer the Service, too. Not for
// that of the API, whose few endpoints are in no zone: each control plane would have a plan that
// says nothing, and that changes with its nodes.
func (m Modes) Of(service *corev1.Service) Mode {
	if mode := ofService(service); mode.Level != LevelNone {
		return mode
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.ClusterIP == corev1.ClusterIPNone || kind.IsAPI(resource.KeyOf(service)) {
		return Mode{}
	}
	if _, imported := sites.ImportOf(service); !imported && !m.several {
		return Mode{}
	}
	var name string
	if ns, ok := m.snapshot.Namespaces.Get(resource.Key{Name: service.Namespace}); ok {
		if mode, ok := ofValue(ns.Annotations[corev1.AnnotationTopologyMode], LevelNamespace); ok {
			return mode
		}
		name = kind.MeshOf(ns)
	}
	if mesh, ok := m.snapshot.Meshes.Get(resource.Key{Name: name}); ok && mesh.Spec.Routing != nil {
		if mode, ok := ofValue(mesh.Spec.Routing.TopologyMode, LevelMesh); ok {
			return mode
		}
	}
	mode, _ := ofValue(m.fallback, LevelControlPlane)
	return mode
}

// ModeCount is how many Services have a mode that was chosen at a level.
type ModeCount struct {
	// Mode: Auto, proxima.dev/Adaptive, custom (rules of one's own), or the value of
	// spec.trafficDistribution; empty: all ready endpoints alike.
	Mode     string `json:"mode"`
	Level    Level  `json:"level"`
	Services int    `json:"services"`
}

// Count the Services of the snapshot by mode and level, ordered by both.
func (m Modes) Count() []ModeCount {
	counts := map[ModeCount]int{}
	for _, service := range m.snapshot.Services.All() {
		mode := m.Of(service)
		key := ModeCount{Mode: mode.Name, Level: mode.Level}
		switch mode.Kind {
		case Auto:
			key.Mode = "Auto"
		case Custom:
			key.Mode = "custom"
		}
		counts[key]++
	}
	out := make([]ModeCount, 0, len(counts))
	for key, n := range counts {
		key.Services = n
		out = append(out, key)
	}
	slices.SortFunc(out, func(a, b ModeCount) int {
		return cmp.Or(strings.Compare(a.Mode, b.Mode), strings.Compare(string(a.Level), string(b.Level)))
	})
	return out
}

// Modes counts the Services of the catalog by mode and level.
func (c *Controller) Modes() []ModeCount { return c.modes(c.config.Catalog.Snapshot()).Count() }

// severalZones says whether nodes are in more than one zone.
func severalZones(snapshot *catalog.Snapshot) bool {
	var first locality.Zone
	for _, node := range snapshot.Nodes.All() {
		switch zone := locality.ZoneOf(node.Labels); {
		case zone == "" || zone == first:
		case first == "":
			first = zone
		default:
			return true
		}
	}
	return false
}

// modes of a snapshot of the controller's catalog. Whether there are several zones is what
// the model says, once it knows: it queues all Services when that changes.
func (c *Controller) modes(snapshot *catalog.Snapshot) Modes {
	if cluster, ready := c.model.current(); ready {
		return Modes{snapshot: snapshot, fallback: c.config.DefaultMode, several: len(cluster.names) > 1}
	}
	return ModesOf(snapshot, c.config.DefaultMode)
}

// modeOf one Service.
func (c *Controller) modeOf(snapshot *catalog.Snapshot, service *corev1.Service) Mode {
	return c.modes(snapshot).Of(service)
}

// dispatchModes queues the Services whose namespace or mesh names another mode.
func (c *Controller) dispatchModes(d *catalog.Delta) {
	for _, change := range d.Namespaces {
		if change.New == nil || change.Old != nil &&
			change.Old.Annotations[corev1.AnnotationTopologyMode] == change.New.Annotations[corev1.AnnotationTopologyMode] &&
			kind.MeshOf(change.Old) == kind.MeshOf(change.New) {
			continue
		}
		for key, service := range d.After.Services.Namespace(change.Key.Name) {
			c.modeChanged(key, service)
		}
		c.dispatchUses(d.After)
	}
	for _, change := range d.Meshes {
		if topologyModeOf(change.Old) == topologyModeOf(change.New) {
			continue
		}
		for key, service := range d.After.Services.All() {
			c.modeChanged(key, service)
		}
		c.dispatchUses(d.After)
		return
	}
}

// modeChanged queues a Service whose default may be another.
func (c *Controller) modeChanged(key resource.Key, service *corev1.Service) {
	if ofService(service).Level != LevelNone {
		return
	}
	c.replan(key)
	c.advised.Publish(key)
	c.status.Add(key)
}

func topologyModeOf(m *meshv1alpha1.Mesh) string {
	if m == nil || m.Spec.Routing == nil {
		return ""
	}
	return m.Spec.Routing.TopologyMode
}

// domainPrefixed distinguishes example.com/Name from a value that Kubernetes may define.
func domainPrefixed(value string) bool {
	domain, name, ok := strings.Cut(value, "/")
	return ok && domain != "" && name != ""
}

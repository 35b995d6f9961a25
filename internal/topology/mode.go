package topology

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// Mode is how a Service wants to be routed.
type Mode struct {
	Kind Kind
	// Name is the value that chose it: of the annotation, or of
	// spec.trafficDistribution; empty if there is neither.
	Name string
}

// ModeOf reads the annotations of a Service. The older one wins where it is there,
// whatever its value, as in Kubernetes (k8s.io/endpointslice, hintsEnabled); any mode
// that a value chooses wins over spec.trafficDistribution, even if it yields nothing.
func ModeOf(service *corev1.Service) Mode {
	value, ok := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		value = service.Annotations[corev1.AnnotationTopologyMode]
	}
	switch {
	case value == "Auto" || value == "auto":
		return Mode{Auto, value}
	case value == Adaptive:
		return Mode{Planned, value}
	case domainPrefixed(value):
		return Mode{Custom, value}
	case service.Spec.TrafficDistribution != nil:
		return Mode{Distribution, *service.Spec.TrafficDistribution}
	}
	return Mode{}
}

// domainPrefixed distinguishes example.com/Name from a value that Kubernetes may define.
func domainPrefixed(value string) bool {
	domain, name, ok := strings.Cut(value, "/")
	return ok && domain != "" && name != ""
}

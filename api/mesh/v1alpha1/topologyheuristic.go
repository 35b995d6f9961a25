package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TopologyHeuristicPrefix comes before the name of a TopologyHeuristic in the
// annotation service.kubernetes.io/topology-mode of Services that use it.
const TopologyHeuristicPrefix = "heuristic.proxima.dev/"

// TopologyModes is what may stand where a topology mode is named, for messages.
const TopologyModes = "Auto, Disabled, proxima.dev/Adaptive, heuristic.proxima.dev/NAME or another DOMAIN/NAME"

// TopologyDisabled reports whether a value of the annotation service.kubernetes.io/topology-mode
// asks for no mode, where another one would be the default.
func TopologyDisabled(value string) bool { return value == "Disabled" || value == "disabled" }

// What becomes of a zone that a TopologyHeuristic allows no endpoint.
const (
	HeuristicFallbackAll  = "All"
	HeuristicFallbackFail = "Fail"
	HeuristicFallbackNone = "None"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TopologyHeuristic is a rule, in CEL, for which topology zones should use which
// endpoints of a Service. Services choose one by the annotation service.kubernetes.io/topology-mode
// with the value heuristic.proxima.dev/NAME.
type TopologyHeuristic struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The rule.
	Spec TopologyHeuristicSpec `json:"spec"`
	// Whether the rule is in use, as this control plane and those of zones observe it.
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TopologyHeuristicList is a list of TopologyHeuristics.
type TopologyHeuristicList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The TopologyHeuristics.
	Items []TopologyHeuristic `json:"items"`
}

// TopologyHeuristicSpec is a rule. Its expressions see service, zones and endpoints, and
// nothing else. Zones, weight or both are needed.
type TopologyHeuristicSpec struct {
	// Variables are evaluated once for a Service, in order. Each may use those before it.
	// +optional
	// +listType=atomic
	Variables []TopologyHeuristicVariable `json:"variables,omitempty"`
	// Zones is an expression of type list(string), evaluated for each ready endpoint: the names of the zones
	// that should use it. It sees endpoint, too.
	// +optional
	Zones string `json:"zones,omitempty"`
	// Weight is an expression of type double, int or uint, evaluated for each ready endpoint and each zone that
	// may use it: a number from 0 to 1000000, in proportion to which agents divide the zone's connections. A zone
	// does not use an endpoint for which it is 0. It sees endpoint and zone, too.
	// +optional
	Weight string `json:"weight,omitempty"`
	// Fallback is what becomes of a zone that may use no endpoint: All (it may use all of them), Fail (hints stay
	// as they are and an event says why) or None (it stays without). Defaults to All.
	// +optional
	Fallback string `json:"fallback,omitempty"`
}

// TopologyHeuristicVariable is a value with a name.
type TopologyHeuristicVariable struct {
	// Name by which expressions find it.
	Name string `json:"name"`
	// Expression whose value it has, of any type.
	Expression string `json:"expression"`
}

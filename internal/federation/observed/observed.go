// Package observed carries what zones observe of the policies of global to global.
//
// Each control plane writes the status of a policy, or of its copy, itself. A zone's
// Reporter follows its copies and sends their conditions to global; the Recorder of global
// keeps them in the status of the policy, under the name of the zone. Enter at NewReporter
// and NewRecorder. The package opens no connection, and never touches what a control plane
// observes itself.
package observed

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Kinds of policies whose status has a place for what zones observe. Routes are of the Gateway API, whose
// status has none.
func Kinds() []*resource.Descriptor {
	return []*resource.Descriptor{
		kind.Mesh, kind.ExternalService, kind.ZoneCosts, kind.TopologyHeuristic,
		kind.TrafficPermission, kind.BackendPolicy, kind.WorkloadPolicy, kind.ProxyPatch,
	}
}

// Status is what a zone observes of one policy.
type Status struct {
	// Type is the group and kind, as between control planes.
	Type string
	// Policy as global names it.
	Policy resource.Key
	// Conditions, encoded as Encode does.
	Conditions []byte
}

// statusOf returns what a control plane observes of an object itself, and where the
// observations of zones are; nil: its kind has none.
func statusOf(obj resource.Object) (own []metav1.Condition, zones *[]v1alpha1.PolicyZoneStatus) {
	switch o := obj.(type) {
	case *v1alpha1.Mesh:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.ExternalService:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.ZoneCosts:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.TopologyHeuristic:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.TrafficPermission:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.BackendPolicy:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.WorkloadPolicy:
		return o.Status.Conditions, &o.Status.Zones
	case *v1alpha1.ProxyPatch:
		return o.Status.Conditions, &o.Status.Zones
	}
	return nil, nil
}

const (
	// maxConditions of a policy, and maxEncoded bytes of them together.
	maxConditions = 16
	maxEncoded    = 64 << 10
)

// encode conditions. The generation that they are of is that of the copy, which means
// nothing elsewhere.
func encode(conditions []metav1.Condition) ([]byte, error) {
	out := slices.Clone(conditions)
	for i := range out {
		out[i].ObservedGeneration = 0
	}
	slices.SortFunc(out, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return json.Marshal(out)
}

// decode what a zone has sent.
func decode(data []byte) ([]metav1.Condition, error) {
	if len(data) > maxEncoded {
		return nil, fmt.Errorf("conditions of %d bytes: the limit is %d", len(data), maxEncoded)
	}
	var out []metav1.Condition
	if len(data) > 0 {
		if err := json.Unmarshal(data, &out); err != nil {
			return nil, fmt.Errorf("decode conditions: %w", err)
		}
	}
	if len(out) > maxConditions {
		return nil, fmt.Errorf("%d conditions: the limit is %d", len(out), maxConditions)
	}
	seen := map[string]bool{}
	for i := range out {
		if out[i].Type == "" || seen[out[i].Type] {
			return nil, errors.New("conditions without a type, or with the same one")
		}
		seen[out[i].Type] = true
		out[i].ObservedGeneration = 0
	}
	return out, nil
}

// set what a zone observes; without conditions nothing is kept. It reports whether that is
// another status than before.
func set(all *[]v1alpha1.PolicyZoneStatus, zone string, conditions []metav1.Condition) bool {
	i, found := slices.BinarySearchFunc(*all, zone, func(s v1alpha1.PolicyZoneStatus, zone string) int {
		return strings.Compare(s.Zone, zone)
	})
	switch {
	case len(conditions) == 0 && !found:
		return false
	case len(conditions) == 0:
		*all = slices.Delete(*all, i, i+1)
	case !found:
		*all = slices.Insert(*all, i, v1alpha1.PolicyZoneStatus{Zone: zone, Conditions: conditions})
	case equality.Semantic.DeepEqual((*all)[i].Conditions, conditions):
		return false
	default:
		(*all)[i].Conditions = conditions
	}
	return true
}

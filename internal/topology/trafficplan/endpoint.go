package trafficplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
)

// DefaultWeight of an endpoint: that of a Dataplane that names none, and of everything that
// is no Dataplane.
const DefaultWeight = uint32(meshv1alpha1.DefaultWeight)

// OwnWeights are the weights of a slice's endpoints, which their Dataplanes name, one for
// each; nil: all are DefaultWeight. The weight of an endpoint is relative to the others of
// the Service, in whichever zones.
func OwnWeights(s *catalog.Snapshot, slice *discoveryv1.EndpointSlice) []uint32 {
	return weightsOf(s, slice.Namespace, slice.Endpoints)
}

func weightsOf(s *catalog.Snapshot, namespace string, endpoints []discoveryv1.Endpoint) []uint32 {
	var out []uint32
	for i := range endpoints {
		d := dataplaneOf(s, namespace, &endpoints[i])
		if d == nil || d.Spec.Weight == nil {
			continue
		}
		// A Service that publishes endpoints which are not ready has those of weight 0, too.
		w := max(1, backend.WeightOf(d))
		if w == DefaultWeight {
			continue
		}
		if out == nil {
			out = make([]uint32, len(endpoints))
			for i := range out {
				out[i] = DefaultWeight
			}
		}
		out[i] = w
	}
	return out
}

func dataplaneOf(s *catalog.Snapshot, namespace string, e *discoveryv1.Endpoint) *meshv1alpha1.Dataplane {
	if e.TargetRef == nil || e.TargetRef.Kind != "Dataplane" {
		return nil
	}
	d, _ := s.Dataplanes.Get(targetKey(namespace, e.TargetRef))
	return d
}

func targetKey(namespace string, ref *corev1.ObjectReference) catalog.Key {
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return catalog.Key{Namespace: namespace, Name: ref.Name}
}

// identity of an endpoint: workloads of one machine may share its address.
type identity struct{ address, namespace, name string }

func identityOf(e *discoveryv1.Endpoint) identity {
	id := identity{address: e.Addresses[0]}
	if e.TargetRef != nil {
		id.namespace, id.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return id
}

// ReadySince is when the endpoints of a slice became ready, in seconds since 1970, one for
// each; 0: not known. It is the last transition of the condition Ready of their Pods and
// Dataplanes.
func ReadySince(s *catalog.Snapshot, slice *discoveryv1.EndpointSlice) []int64 {
	out := make([]int64, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if e.TargetRef == nil {
			continue
		}
		var since time.Time
		switch e.TargetRef.Kind {
		case "Dataplane":
			since = dataplaneSince(dataplaneOf(s, slice.Namespace, e))
		case "Pod":
			pod, _ := s.Pods.Get(targetKey(slice.Namespace, e.TargetRef))
			since = podSince(pod)
		}
		if !since.IsZero() {
			out[i] = max(1, since.Unix())
		}
	}
	return out
}

// podSince is when a pod became ready; zero: it is not, or there is none.
func podSince(pod *corev1.Pod) time.Time {
	if pod == nil {
		return time.Time{}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func dataplaneSince(d *meshv1alpha1.Dataplane) time.Time {
	if d == nil || !meta.IsStatusConditionTrue(d.Status.Conditions, meshv1alpha1.DataplaneReady) {
		return time.Time{}
	}
	return meta.FindStatusCondition(d.Status.Conditions, meshv1alpha1.DataplaneReady).LastTransitionTime.Time
}

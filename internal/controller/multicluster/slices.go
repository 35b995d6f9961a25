package multicluster

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// sliceManager marks the EndpointSlices that this package writes.
const sliceManager = "multicluster.mesh.proxima.dev"

// annotationSource on such a slice names the one that it is a copy of.
const annotationSource = "mesh.proxima.dev/source-slice"

// SlicePlan is what has to be written, in this order.
type SlicePlan struct{ Create, Update, Delete []*discoveryv1.EndpointSlice }

// ReconcileSlices copies the slices of a Service without a selector, whose endpoints others
// write, for the derived Service. local is empty where there is nothing to copy. Only slices
// of this package are in have.
func ReconcileSlices(derived *corev1.Service, local, have []*discoveryv1.EndpointSlice) SlicePlan {
	var p SlicePlan
	copies := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range have {
		copies[s.Name] = s
	}
	for _, s := range local {
		name := mcs.DerivedServiceName(derived.Name, s.Name)
		was := copies[name]
		delete(copies, name)
		next := &discoveryv1.EndpointSlice{AddressType: s.AddressType}
		if was != nil {
			next = was.DeepCopy()
		}
		next.Namespace, next.Name = derived.Namespace, name
		next.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(derived, corev1.SchemeGroupVersion.WithKind("Service"))}
		next.Labels = map[string]string{discoveryv1.LabelServiceName: derived.Name, discoveryv1.LabelManagedBy: sliceManager}
		next.Annotations = map[string]string{annotationSource: s.Name}
		next.Endpoints, next.Ports = s.Endpoints, s.Ports
		switch {
		case was == nil:
			p.Create = append(p.Create, next)
		case !equality.Semantic.DeepEqual(was, next):
			p.Update = append(p.Update, next)
		}
	}
	for _, s := range have {
		if copies[s.Name] != nil {
			p.Delete = append(p.Delete, s)
		}
	}
	return p
}

// copied reports whether this package wrote a slice.
func copied(s *discoveryv1.EndpointSlice) bool {
	return s != nil && s.Labels[discoveryv1.LabelManagedBy] == sliceManager
}

func serviceOf(s *discoveryv1.EndpointSlice) resource.Key {
	return resource.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

package registered

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Keep is how long the Service of a name stays after its last instance has gone: an application that
// is restarted as a whole finds it, with its addresses.
const Keep = time.Hour

const (
	// labelDerived is on the Services that this package makes.
	labelDerived = registry.GroupName + "/derived"
	// annotationUnusedSince is when the last instance went.
	annotationUnusedSince = registry.GroupName + "/unused-since"
)

func derived(s *corev1.Service) bool { return s != nil && s.Labels[labelDerived] != "" }

// input is what the Service of a name is made of.
type input struct {
	key       resource.Key
	service   *corev1.Service // nil: there is none
	instances []*registry.Instance
	now       time.Time
	slices    bool // as in Config
}

// reconcile returns what the Service should be: in.service itself where nothing is to change, nil
// where there should be none. after is when it will be another one by itself; 0: never.
func reconcile(in input) (service *corev1.Service, after time.Duration) {
	serving := slices.DeleteFunc(slices.Clone(in.instances), func(i *registry.Instance) bool { return i.Port == 0 })
	if len(serving) > 0 {
		return in.used(serving), 0
	}
	if in.service == nil || !in.service.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	since, err := time.Parse(time.RFC3339, in.service.Annotations[annotationUnusedSince])
	if err != nil || since.After(in.now) {
		next := in.service.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationUnusedSince, in.now.UTC().Format(time.RFC3339))
		return next, Keep
	}
	if left := Keep - in.now.Sub(since); left > 0 {
		return in.service, left
	}
	return nil, 0
}

// settled reports whether an instance shows that the Service is what it should be, whatever others there
// are. So a change among many instances does not read them all.
func (in input) settled(i *registry.Instance) bool {
	return derived(in.service) && in.service.Annotations[annotationUnusedSince] == "" && i.Port != 0 &&
		(!needsName(i.Service) || in.service.Annotations[registry.AnnotationService] == i.Service.Grouped())
}

// used is the Service of a name with instances. The number of its port is that of the instance that
// was registered first, and stays: clients know it. What users set is theirs.
func (in input) used(serving []*registry.Instance) *corev1.Service {
	first := slices.MinFunc(serving, func(a, b *registry.Instance) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Compare(b))
	})
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: in.key.Namespace, Name: in.key.Name, Labels: map[string]string{labelDerived: "true"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
			Selector: map[string]string{registry.LabelService: in.key.Name},
			Ports: []corev1.ServicePort{{
				Name: registry.PortName, Port: int32(first.Port), TargetPort: intstr.FromString(registry.PortName),
			}},
		},
	}
	if in.slices {
		out.Spec.Selector = nil
	}
	if in.service != nil {
		out = in.service.DeepCopy()
		delete(out.Annotations, annotationUnusedSince)
	}
	if needsName(first.Service) {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, registry.AnnotationService, first.Service.Grouped())
	}
	if in.service != nil && maps.Equal(out.Annotations, in.service.Annotations) {
		return in.service
	}
	return out
}

// needsName reports whether a Service has another name than the registry's service.
func needsName(s registry.Service) bool { return s.Grouped() != s.ServiceName() }

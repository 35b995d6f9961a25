// Package tagged keeps the Services of service tags: of workloads that no Service has to
// select, as their tag names the service they are part of.
//
// For each tag of a mesh there is one Service, in a namespace that the control plane keeps for
// the mesh. Its workloads are those with the tag in all namespaces of the mesh; the
// controllers of slices find them (backend.Selected). Everything else follows from there being
// a Service: virtual IPs, plans, exports to other zones. Enter at New; Reconcile is pure.
// Package servicetag has the names and ports, controller/virtualip the name below "mesh".
package tagged

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Keep is how long the Service of a tag stays after its last workload has gone: a workload
// that restarts finds it, with its addresses.
const Keep = time.Hour

// annotationUnusedSince is when the last workload went.
const annotationUnusedSince = meshv1alpha1.GroupName + "/unused-since"

// Input is what there is of one tag. Reconcile changes none of it.
type Input struct {
	backend.Tag
	// Workloads are the ports that are part of the service, of each workload.
	Workloads [][]servicetag.Inbound
	// Service as it is; nil: there is none.
	Service *corev1.Service
	Now     time.Time
}

// Reconcile returns the Service that there should be; nil: none. One that is as it should be
// is that of the input. after is when it will be another one by itself; 0: never.
func Reconcile(in Input) (service *corev1.Service, after time.Duration) {
	ports := servicetag.Ports(in.Workloads)
	if len(ports) > 0 {
		return in.used(ports), 0
	}
	if in.Service == nil || !in.Service.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	since, err := time.Parse(time.RFC3339, in.Service.Annotations[annotationUnusedSince])
	if err != nil || since.After(in.Now) {
		next := in.Service.DeepCopy()
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[annotationUnusedSince] = in.Now.UTC().Format(time.RFC3339)
		return next, Keep
	}
	if left := Keep - in.Now.Sub(since); left > 0 {
		return in.Service, left
	}
	return nil, 0
}

// used is the Service of a tag with workloads. What users set is theirs: annotations and
// policies stay.
func (in Input) used(ports []corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: servicetag.Namespace(in.Mesh), Name: servicetag.ServiceName(in.Host),
	}}
	if in.Service != nil {
		s = in.Service.DeepCopy()
	} else {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	maps.Copy(s.Labels, map[string]string{
		labelManagedBy: managedBy, meshv1alpha1.LabelService: in.Host, meshv1alpha1.LabelMesh: in.Mesh,
	})
	delete(s.Annotations, annotationUnusedSince)
	s.Spec.Selector = servicetag.Selector(in.Host)
	if !samePorts(s.Spec.Ports, ports) {
		s.Spec.Ports = ports
	}
	if in.Service != nil && equality.Semantic.DeepEqual(s, in.Service) {
		return in.Service
	}
	return s
}

// samePorts leaves what the API fills in, such as node ports.
func samePorts(have, want []corev1.ServicePort) bool {
	if len(have) != len(want) {
		return false
	}
	for i := range have {
		h, w := have[i], want[i]
		h.NodePort, w.NodePort = 0, 0
		if !equality.Semantic.DeepEqual(h, w) {
			return false
		}
	}
	return true
}

// Labels of the objects that this package creates.
const (
	labelManagedBy = meshv1alpha1.GroupName + "/managed-by"
	managedBy      = "tags"
)

func owned(labels map[string]string) bool { return labels[labelManagedBy] == managedBy }

// namespaceFor is the namespace of the Services of a mesh.
func namespaceFor(mesh string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: servicetag.Namespace(mesh), Labels: map[string]string{labelManagedBy: managedBy},
	}}
	if mesh != meshv1alpha1.DefaultMesh {
		n.Labels[meshv1alpha1.LabelMesh] = mesh
	}
	return n
}

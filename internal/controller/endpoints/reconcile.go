// Package endpoints keeps the Endpoints object of every Service that has a
// selector, for readers that do not know EndpointSlices.
//
// Reconcile is the whole of the rules, a pure function from what there is to
// what has to be written; Controller runs it and writes. The facts come from
// package backend, as those of EndpointSlices do. Endpoints of Services without
// a selector, and those that carry a leader election, belong to others and
// never touched.
package endpoints

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
)

const (
	// LabelManagedBy and ManagedBy mark the objects that this package keeps, as
	// Kubernetes does since 1.33 (KEP-4974).
	LabelManagedBy = "endpoints.kubernetes.io/managed-by"
	ManagedBy      = "endpoint-controller"
	// LeaderAnnotation marks Endpoints that are used as a lock
	// (k8s.io/client-go/tools/leaderelection/resourcelock).
	LeaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
	// MaxAddresses of an object; more are cut off and the object is annotated
	// (k8s.io/kubernetes/pkg/controller/endpoint: maxCapacity).
	MaxAddresses = 1000

	truncated = "truncated"
)

// Input is what there is. Reconcile changes none of it.
type Input struct {
	Service *corev1.Service
	// Pods and Dataplanes that the Service selects.
	Pods       []*corev1.Pod
	Dataplanes []*meshv1alpha1.Dataplane
	// Node finds a Node by name, nil if there is none; nil: none is known.
	Node func(name string) *corev1.Node
	// Shifts in effect.
	Shifts backend.Shifts
	// Existing object of the Service's name; nil: none.
	Existing *corev1.Endpoints
	// TriggerTime of the change, to be noted if something is written; zero:
	// unknown, an older note is removed.
	TriggerTime time.Time
}

// Applies reports whether a Service's Endpoints are kept by this package.
func Applies(service *corev1.Service) bool {
	return service.Spec.Type != corev1.ServiceTypeExternalName && len(service.Spec.Selector) > 0
}

// Reconcile returns what the object must be. write is false if it is so already;
// if the outcome is written, the next one needs no write. A resourceVersion in
// it means an update of what it was planned from. The object may share parts
// with the Input and must not be changed.
func Reconcile(in Input) (object *corev1.Endpoints, write bool) {
	if !Applies(in.Service) {
		return nil, false
	}
	subsets, cut := truncate(Repack(in.subsets()), MaxAddresses)
	labels := objectLabels(in.Service)
	if in.Existing != nil && in.correct(subsets, labels, cut) {
		return in.Existing, false
	}
	now := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: in.Service.Namespace, Name: in.Service.Name}}
	if in.Existing != nil {
		*now = *in.Existing
	}
	now.Subsets, now.Labels = subsets, labels
	now.Annotations = in.annotations(now.Annotations, cut)
	return now, true
}

// correct compares what readers act on. The trigger time is news about a write,
// and no reason for one.
func (in *Input) correct(subsets []corev1.EndpointSubset, labels map[string]string, cut bool) bool {
	note, noted := in.Existing.Annotations[corev1.EndpointsOverCapacity]
	return noted == cut && (!cut || note == truncated) &&
		maps.Equal(in.Existing.Labels, labels) &&
		sameSubsets(in.Existing.Subsets, subsets)
}

// sameSubsets ignores order, which means nothing, and the version of the target,
// which another controller may have noted.
func sameSubsets(a, b []corev1.EndpointSubset) bool {
	if equality.Semantic.DeepEqual(a, b) {
		return true
	}
	return equality.Semantic.DeepEqual(withoutVersions(Repack(a)), withoutVersions(b))
}

func withoutVersions(in []corev1.EndpointSubset) []corev1.EndpointSubset {
	strip := func(in []corev1.EndpointAddress) []corev1.EndpointAddress {
		out := make([]corev1.EndpointAddress, 0, len(in))
		for _, a := range in {
			if a.TargetRef != nil && a.TargetRef.ResourceVersion != "" {
				ref := *a.TargetRef
				ref.ResourceVersion = ""
				a.TargetRef = &ref
			}
			out = append(out, a)
		}
		return out
	}
	out := make([]corev1.EndpointSubset, 0, len(in))
	for _, s := range in {
		s.Addresses, s.NotReadyAddresses = strip(s.Addresses), strip(s.NotReadyAddresses)
		out = append(out, s)
	}
	return out
}

// annotations belong to others but for two.
func (in *Input) annotations(was map[string]string, cut bool) map[string]string {
	now := maps.Clone(was)
	if now == nil {
		now = make(map[string]string, 2)
	}
	delete(now, corev1.EndpointsOverCapacity)
	delete(now, corev1.EndpointsLastChangeTriggerTime)
	if cut {
		now[corev1.EndpointsOverCapacity] = truncated
	}
	if !in.TriggerTime.IsZero() {
		now[corev1.EndpointsLastChangeTriggerTime] = in.TriggerTime.UTC().Format(time.RFC3339Nano)
	}
	return now
}

// objectLabels are the Service's, with the reserved ones as they must be.
func objectLabels(service *corev1.Service) map[string]string {
	labels := maps.Clone(service.Labels)
	if labels == nil {
		labels = make(map[string]string, 2)
	}
	delete(labels, corev1.IsHeadlessService)
	if ip := service.Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[LabelManagedBy] = ManagedBy
	return labels
}

// subsets has one for every backend and port. Unlike an EndpointSlice, Endpoints
// know one family, no terminating ones, and need no Node to be there.
func (in *Input) subsets() []corev1.EndpointSubset {
	var out []corev1.EndpointSubset
	publish := in.Service.Spec.PublishNotReadyAddresses
	for _, b := range in.backends() {
		if b.Terminating && !publish {
			continue
		}
		address, ok := in.address(&b)
		if !ok {
			continue
		}
		ports := endpointPorts(b.Ports(in.Service))
		if len(ports) == 0 && (len(in.Service.Spec.Ports) > 0 || in.Service.Spec.ClusterIP != corev1.ClusterIPNone) {
			continue
		}
		s := corev1.EndpointSubset{Ports: ports}
		if b.Ready(in.Service) {
			s.Addresses = []corev1.EndpointAddress{address}
		} else {
			s.NotReadyAddresses = []corev1.EndpointAddress{address}
		}
		out = append(out, s)
	}
	return out
}

func (in *Input) backends() []backend.Backend {
	out := make([]backend.Backend, 0, len(in.Pods)+len(in.Dataplanes))
	add := func(b backend.Backend) {
		var node *corev1.Node
		if b.Node != "" && in.Node != nil {
			node = in.Node(b.Node)
		}
		b.Place(node, in.Shifts)
		out = append(out, b)
	}
	for _, pod := range in.Pods {
		if b, ok := backend.OfPod(pod, in.Service.Name); ok {
			add(b)
		}
	}
	for _, dataplane := range in.Dataplanes {
		add(backend.OfDataplane(dataplane, in.Service.Name))
	}
	return out
}

func (in *Input) address(b *backend.Backend) (corev1.EndpointAddress, bool) {
	ip, ok := b.Address(in.family(b))
	if !ok {
		return corev1.EndpointAddress{}, false
	}
	a := corev1.EndpointAddress{IP: ip, Hostname: b.Hostname, TargetRef: &b.Ref}
	if b.Node != "" {
		a.NodeName = &b.Node
	}
	return a, true
}

// family is the Service's first one. Where it has none, as objects of an older
// API, it is that of its address, or of the backend's first one.
func (in *Input) family(b *backend.Backend) discoveryv1.AddressType {
	if len(in.Service.Spec.IPFamilies) > 0 {
		return discoveryv1.AddressType(in.Service.Spec.IPFamilies[0])
	}
	for _, ip := range append([]string{in.Service.Spec.ClusterIP}, b.Addresses...) {
		if family, ok := backend.FamilyOf(ip); ok {
			return family
		}
	}
	return discoveryv1.AddressTypeIPv4
}

func endpointPorts(in []discoveryv1.EndpointPort) []corev1.EndpointPort {
	var out []corev1.EndpointPort
	for _, p := range in {
		out = append(out, corev1.EndpointPort{
			Name: ptr.Deref(p.Name, ""), Port: ptr.Deref(p.Port, 0), Protocol: ptr.Deref(p.Protocol, ""), AppProtocol: p.AppProtocol,
		})
	}
	return out
}

// Package endpointslice keeps the EndpointSlices of every Service that has a
// selector, as Kubernetes' own controller does, for Pods and Dataplanes alike.
//
// Reconcile is the whole of the rules: a pure function from what there is to
// what has to be written. Controller runs it for every Service that a change in
// the catalog concerns, and writes. Invariants are in DESIGN.md. The package
// never touches a slice that another controller manages, and does not write
// Endpoints objects.
package endpointslice

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
)

const (
	// ManagedBy marks the slices that this package keeps, with the value that
	// Kubernetes' controller uses, so that either can take over from the other.
	ManagedBy = "endpointslice-controller.k8s.io"
	// DefaultMaxEndpoints per slice, and the limit of the API on it (KEP-752).
	DefaultMaxEndpoints = 100
	LimitMaxEndpoints   = 1000
)

// Options of Reconcile. The zero value means the defaults.
type Options struct {
	// MaxEndpoints per slice; 0: DefaultMaxEndpoints. Clamped to 1…LimitMaxEndpoints.
	MaxEndpoints int
	// Hints computes the topology hints; nil: TrafficDistribution.
	Hints HintFunc
	// ManagedBy marks the slices; empty: the constant of this name.
	ManagedBy string
}

// Input is what there is. Reconcile changes none of it.
type Input struct {
	Service *corev1.Service
	// Pods and Dataplanes that the Service selects.
	Pods       []*corev1.Pod
	Dataplanes []*meshv1alpha1.Dataplane
	// Backends are further ones.
	Backends []backend.Backend
	// Node finds a Node by name; nil if there is none.
	Node func(name string) *corev1.Node
	// Shifts in effect.
	Shifts backend.Shifts
	// Slices of the Service that carry the mark of Options.ManagedBy.
	Slices []*discoveryv1.EndpointSlice
	// TriggerTime of the change, to be noted on slices that are written; zero:
	// unknown, an older note is removed.
	TriggerTime time.Time
	Options     Options
}

// Plan is what has to be written, in this order. The objects may share parts
// with the Input and must not be changed.
type Plan struct {
	Create []*discoveryv1.EndpointSlice
	// Update carries the resourceVersion that the plan was made from.
	Update []*discoveryv1.EndpointSlice
	Delete []*discoveryv1.EndpointSlice
	// Skipped workloads name a Node that does not exist. They are left out, and
	// the Service should be looked at again later.
	Skipped []SkippedWorkload
}

// SkippedWorkload is a workload that could not be published.
type SkippedWorkload struct{ Workload, Node string }

// Empty reports whether there is nothing to write.
func (p Plan) Empty() bool { return len(p.Create)+len(p.Update)+len(p.Delete) == 0 }

// Applies reports whether a Service's slices are kept by this package: those of
// ExternalName, or without a selector, belong to others.
func Applies(service *corev1.Service) bool {
	return service.Spec.Type != corev1.ServiceTypeExternalName && len(service.Spec.Selector) > 0
}

// Reconcile plans what brings the slices to what they should be, touching as
// few as possible. If the plan is carried out, the next one is empty.
func Reconcile(in Input) Plan {
	var plan Plan
	if !Applies(in.Service) {
		return plan
	}
	families := addressTypes(in.Service)
	existing := make(map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice, len(families))
	for _, slice := range byName(in.Slices) {
		if slices.Contains(families, slice.AddressType) && ownedBy(slice, in.Service) {
			existing[slice.AddressType] = append(existing[slice.AddressType], slice)
		} else {
			plan.Delete = append(plan.Delete, slice)
		}
	}
	backends, skipped := in.backends()
	plan.Skipped = skipped
	for _, family := range families {
		f := familyReconciler{Input: &in, family: family, labels: sliceLabels(in.Service, cmp.Or(in.Options.ManagedBy, ManagedBy))}
		f.reconcile(existing[family], backends, &plan)
	}
	if in.Service.DeletionTimestamp != nil {
		plan.Create = nil
	}
	return plan
}

// familyReconciler plans the slices of one address type.
type familyReconciler struct {
	*Input
	family discoveryv1.AddressType
	labels map[string]string
}

func (f *familyReconciler) reconcile(existing []*discoveryv1.EndpointSlice, backends []backend.Backend, plan *Plan) {
	groups := f.groups(backends)
	byPorts := make(map[string][]*discoveryv1.EndpointSlice)
	var drafts []*draft
	for _, slice := range existing {
		key := portsKey(slice.Ports)
		if _, wanted := groups[key]; wanted {
			byPorts[key] = append(byPorts[key], slice)
		} else {
			drafts = append(drafts, &draft{was: slice, deleted: true})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		p := packer{max: f.Options.maxEndpoints(), labels: f.labels, group: groups[key], fresh: f.fresh}
		drafts = append(drafts, p.pack(byPorts[key])...)
	}
	drafts = f.withPlaceholder(drafts)
	applyHints(f.Options.Hints, f.Service, f.family, drafts)
	f.finish(drafts, plan)
}

// withPlaceholder makes sure that one slice is left, so that readers can tell a
// Service without endpoints from one not looked at yet.
func (f *familyReconciler) withPlaceholder(drafts []*draft) []*draft {
	for _, d := range drafts {
		if !d.deleted {
			return drafts
		}
	}
	for _, d := range drafts {
		if len(d.was.Ports) == 0 && len(d.was.Endpoints) == 0 && maps.Equal(d.was.Labels, f.labels) {
			d.deleted = false
			return drafts
		}
	}
	return append(drafts, &draft{now: f.fresh(nil)})
}

// finish turns the drafts into writes. A slice to be deleted is reused for one
// to be created, which readers follow more cheaply.
func (f *familyReconciler) finish(drafts []*draft, plan *Plan) {
	var created, deleted []*discoveryv1.EndpointSlice
	for _, d := range drafts {
		switch {
		case d.deleted:
			deleted = append(deleted, d.was)
		case d.now == nil:
		case d.was == nil:
			created = append(created, f.stamped(d.now))
		default:
			plan.Update = append(plan.Update, f.stamped(d.now))
		}
	}
	reused := min(len(created), len(deleted))
	for i := range reused {
		created[i].ObjectMeta = inherit(created[i].ObjectMeta, deleted[i].ObjectMeta)
	}
	plan.Update = append(plan.Update, created[:reused]...)
	plan.Create = append(plan.Create, created[reused:]...)
	plan.Delete = append(plan.Delete, deleted[reused:]...)
}

// inherit gives a new slice the identity of an old one.
func inherit(now, was metav1.ObjectMeta) metav1.ObjectMeta {
	now.Name, now.GenerateName = was.Name, was.GenerateName
	now.UID, now.ResourceVersion = was.UID, was.ResourceVersion
	now.Generation, now.CreationTimestamp = was.Generation, was.CreationTimestamp
	return now
}

// stamped notes the trigger time on a slice that is about to be written.
func (f *familyReconciler) stamped(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice.Annotations = maps.Clone(slice.Annotations)
	if f.TriggerTime.IsZero() {
		delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
		return slice
	}
	if slice.Annotations == nil {
		slice.Annotations = make(map[string]string, 1)
	}
	slice.Annotations[corev1.EndpointsLastChangeTriggerTime] = f.TriggerTime.UTC().Format(time.RFC3339Nano)
	return slice
}

// fresh is a new slice of the Service without endpoints.
func (f *familyReconciler) fresh(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	if ports == nil {
		ports = []discoveryv1.EndpointPort{}
	}
	owner := metav1.NewControllerRef(f.Service, corev1.SchemeGroupVersion.WithKind("Service"))
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       f.Service.Namespace,
			GenerateName:    f.Service.Name + "-",
			Labels:          f.labels,
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		AddressType: f.family,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
}

func (o Options) maxEndpoints() int {
	if o.MaxEndpoints == 0 {
		return DefaultMaxEndpoints
	}
	return min(max(o.MaxEndpoints, 1), LimitMaxEndpoints)
}

// sliceLabels are the Service's labels with the reserved ones as they must be.
func sliceLabels(service *corev1.Service, managedBy string) map[string]string {
	labels := maps.Clone(service.Labels)
	if labels == nil {
		labels = make(map[string]string, 3)
	}
	delete(labels, corev1.IsHeadlessService)
	if ip := service.Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = service.Name
	labels[discoveryv1.LabelManagedBy] = managedBy
	return labels
}

// addressTypes are the families of a Service. One that says nothing gets those
// of its addresses, or both if it has none.
func addressTypes(service *corev1.Service) []discoveryv1.AddressType {
	var types []discoveryv1.AddressType
	for _, family := range service.Spec.IPFamilies {
		types = append(types, discoveryv1.AddressType(family))
	}
	if len(types) > 0 {
		return types
	}
	ips := service.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{service.Spec.ClusterIP}
	}
	for _, ip := range ips {
		if family, ok := backend.FamilyOf(ip); ok {
			types = append(types, family)
		}
	}
	if len(types) > 0 {
		return types
	}
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

// ownedBy distinguishes a Service's slices from those of an earlier one of its name.
func ownedBy(slice *discoveryv1.EndpointSlice, service *corev1.Service) bool {
	return slices.ContainsFunc(slice.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.UID == service.UID && ref.Kind == "Service" && ref.APIVersion == "v1"
	})
}

func byName(in []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(in), func(a, b *discoveryv1.EndpointSlice) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// Package mirroring copies Endpoints that others write, of Services
// without a selector, into EndpointSlices, so that readers need to know slices
// only.
//
// Reconcile is the whole of the rules, a pure function from what there is to
// what has to be written; Controller runs it, writes, and reports what was left
// out. The package never writes Endpoints, nor a slice of another controller.
package mirroring

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
)

const (
	// ManagedBy marks the slices that this package keeps, with the value that
	// Kubernetes' controller uses, so that either can take over from the other.
	ManagedBy = "endpointslicemirroring-controller.k8s.io"
	// DefaultMaxAddresses per subset, which is also what the API allows in a slice.
	DefaultMaxAddresses = 1000

	// Reasons of events (k8s.io/kubernetes/pkg/controller/endpointslicemirroring).
	reasonTooMany   = "TooManyAddressesToMirror"
	reasonInvalidIP = "InvalidIPAddress"
)

// Input is what there is. Reconcile changes none of it.
type Input struct {
	// Endpoints and the Service of one name; nil: there is none.
	Endpoints *corev1.Endpoints
	Service   *corev1.Service
	// Slices of that name that carry ManagedBy.
	Slices []*discoveryv1.EndpointSlice
	// MaxAddresses of a subset; 0: DefaultMaxAddresses. Clamped to
	// 1…DefaultMaxAddresses.
	MaxAddresses int
}

// Plan is what has to be written, in this order. The objects may share parts
// with the Input and must not be changed.
type Plan struct {
	Create []*discoveryv1.EndpointSlice
	// Update carries the resourceVersion that the plan was made from.
	Update []*discoveryv1.EndpointSlice
	Delete []*discoveryv1.EndpointSlice
	// Warnings are for the author of the Endpoints.
	Warnings []Warning
}

// Warning is an event in the making.
type Warning struct{ Reason, Message string }

// Empty reports whether there is nothing to write.
func (p Plan) Empty() bool { return len(p.Create)+len(p.Update)+len(p.Delete) == 0 }

// Applies reports whether Endpoints are to be mirrored: there is a Service of
// their name and it has no selector, they are no lock of a leader election, and
// no opt-out.
func Applies(e *corev1.Endpoints, service *corev1.Service) bool {
	if e == nil || service == nil || len(service.Spec.Selector) > 0 {
		return false
	}
	_, lock := e.Annotations[endpoints.LeaderAnnotation]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// Reconcile plans what brings the slices to what they should be. If the plan is
// carried out, the next one is empty.
func Reconcile(in Input) Plan {
	if !Applies(in.Endpoints, in.Service) {
		return Plan{Delete: in.Slices}
	}
	want, plan := in.wanted()
	left := make(map[sliceKey][]*discoveryv1.EndpointSlice)
	for _, slice := range byName(in.Slices) {
		key := keyOf(slice)
		left[key] = append(left[key], slice)
	}
	var missing []*discoveryv1.EndpointSlice
	for _, w := range want {
		key := keyOf(w)
		have := left[key]
		if len(have) == 0 {
			missing = append(missing, w)
			continue
		}
		left[key] = have[1:]
		if now, different := brought(have[0], w); different {
			plan.Update = append(plan.Update, now)
		}
	}
	plan.place(missing, left)
	if in.Endpoints.DeletionTimestamp != nil {
		plan.Create = nil
	}
	return plan
}

// place turns slices that are not needed any more into those that are missing,
// which readers follow more cheaply; the address type of a slice is immutable.
func (p *Plan) place(missing []*discoveryv1.EndpointSlice, left map[sliceKey][]*discoveryv1.EndpointSlice) {
	spare := make(map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice)
	for _, list := range left {
		for _, slice := range list {
			spare[slice.AddressType] = append(spare[slice.AddressType], slice)
		}
	}
	for family := range spare {
		spare[family] = byName(spare[family])
	}
	for _, w := range missing {
		list := spare[w.AddressType]
		if len(list) == 0 {
			p.Create = append(p.Create, w)
			continue
		}
		now, _ := brought(list[0], w)
		p.Update = append(p.Update, now)
		spare[w.AddressType] = list[1:]
	}
	for _, family := range slices.Sorted(maps.Keys(spare)) {
		p.Delete = append(p.Delete, spare[family]...)
	}
}

// brought is a slice as it is wanted, under the identity that it has.
func brought(was, want *discoveryv1.EndpointSlice) (now *discoveryv1.EndpointSlice, different bool) {
	now = &discoveryv1.EndpointSlice{}
	*now = *was
	now.Labels, now.Annotations, now.OwnerReferences = want.Labels, want.Annotations, want.OwnerReferences
	now.Ports, now.Endpoints = want.Ports, want.Endpoints
	same := maps.Equal(was.Labels, now.Labels) && maps.Equal(was.Annotations, now.Annotations) &&
		equality.Semantic.DeepEqual(was.OwnerReferences, now.OwnerReferences) &&
		keyOf(was) == keyOf(now) && equality.Semantic.DeepEqual(was.Endpoints, now.Endpoints)
	return now, !same
}

// wanted are the slices that there should be: one for each subset and family.
func (in *Input) wanted() ([]*discoveryv1.EndpointSlice, Plan) {
	var out []*discoveryv1.EndpointSlice
	limit := in.MaxAddresses
	if limit == 0 {
		limit = DefaultMaxAddresses
	}
	limit = min(max(limit, 1), DefaultMaxAddresses)
	skipped, invalid := 0, 0
	for _, subset := range endpoints.Repack(in.Endpoints.Subsets) {
		m := mirror{limit: limit}
		m.add(subset.Addresses, true)
		m.add(subset.NotReadyAddresses, false)
		skipped += len(subset.Addresses) + len(subset.NotReadyAddresses) - m.added
		invalid += m.invalid
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			if all := m.byFamily[family]; len(all) > 0 {
				out = append(out, in.slice(family, slicePorts(subset.Ports), all))
			}
		}
	}
	var plan Plan
	if invalid > 0 {
		plan.Warnings = append(plan.Warnings, Warning{Reason: reasonInvalidIP,
			Message: fmt.Sprintf("Skipped %d invalid IP addresses when mirroring to EndpointSlices", invalid)})
	}
	if skipped > invalid {
		plan.Warnings = append(plan.Warnings, Warning{Reason: reasonTooMany,
			Message: fmt.Sprintf("A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
				limit, skipped)})
	}
	return out, plan
}

// mirror takes the addresses of one subset, as many as fit.
type mirror struct {
	limit, added, invalid int
	byFamily              map[discoveryv1.AddressType][]discoveryv1.Endpoint
}

func (m *mirror) add(all []corev1.EndpointAddress, ready bool) {
	for i := range all {
		if m.added == m.limit {
			return
		}
		family, e, ok := endpointOf(&all[i], ready)
		if !ok {
			m.invalid++
			continue
		}
		if m.byFamily == nil {
			m.byFamily = make(map[discoveryv1.AddressType][]discoveryv1.Endpoint, 2)
		}
		m.byFamily[family] = append(m.byFamily[family], e)
		m.added++
	}
}

// endpointOf translates an address. Endpoints know no more of a backend's state
// than ready, and no zone.
func endpointOf(a *corev1.EndpointAddress, ready bool) (discoveryv1.AddressType, discoveryv1.Endpoint, bool) {
	// Older objects may hold addresses in an irregular form ("010.0.0.1").
	ip := netutils.ParseIPSloppy(a.IP)
	if ip == nil {
		return "", discoveryv1.Endpoint{}, false
	}
	family := discoveryv1.AddressTypeIPv6
	if ip.To4() != nil {
		family = discoveryv1.AddressTypeIPv4
	}
	e := discoveryv1.Endpoint{
		Addresses:  []string{ip.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)},
		TargetRef:  a.TargetRef,
		NodeName:   a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return family, e, true
}

func slicePorts(in []corev1.EndpointPort) []discoveryv1.EndpointPort {
	out := make([]discoveryv1.EndpointPort, 0, len(in))
	for i := range in {
		p := &in[i]
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return out
}

// slice is a new one, with everything that the Endpoints hand down.
func (in *Input) slice(
	family discoveryv1.AddressType,
	ports []discoveryv1.EndpointPort,
	all []discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	e := in.Endpoints
	labels := maps.Clone(e.Labels)
	if labels == nil {
		labels = make(map[string]string, 2)
	}
	labels[discoveryv1.LabelServiceName] = e.Name
	labels[discoveryv1.LabelManagedBy] = ManagedBy
	annotations := maps.Clone(e.Annotations)
	delete(annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: e.Name + "-", Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family,
		Ports:       ports,
		Endpoints:   all,
	}
}

// sliceKey distinguishes the slices of one Endpoints object.
type sliceKey struct {
	family discoveryv1.AddressType
	ports  string
}

// keyOf is equal for the same set of ports in any order.
func keyOf(s *discoveryv1.EndpointSlice) sliceKey {
	keys := make([]string, len(s.Ports))
	for i, p := range s.Ports {
		keys[i] = fmt.Sprintf("%q %d %s %q", ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, corev1.ProtocolTCP),
			ptr.Deref(p.AppProtocol, ""))
	}
	slices.Sort(keys)
	return sliceKey{family: s.AddressType, ports: strings.Join(keys, ",")}
}

func byName(in []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(in), func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
}

// Package kind describes every kind of object that Proxima serves: its names,
// its defaults, what is refused and why, and
// how a row of it is printed.
//
// It owns the rules alone. All functions are pure: they do no I/O, read no clock
// (except to print an age) and allocate no addresses; those are given out by the
// registry that calls Prepare. The rules, field paths and messages for kinds of
// Kubernetes are those of Kubernetes 1.37, so that its users and tools see no
// difference. Enter at All, or at the variable named as the kind.
//
// The types are k8s.io/api's external ones, used as internal types too.
// Functions never keep or share parts of the objects they are given, and never
// panic on an object that was decoded from JSON or protobuf.
package kind

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// All returns the descriptor of every kind, in the order in which a server should
// install them. The slice is the caller's, the descriptors are shared and never
// changed.
func All() []*resource.Descriptor {
	return []*resource.Descriptor{
		Namespace,
		Service,
		Endpoints,
		Node,
		Pod,
		ConfigMap,
		Secret,
		Event,
		EventsV1Event,
		EndpointSlice,
		Lease,
		IPAddress,
		ServiceCIDR,
		Dataplane,
		ZoneCosts,
		TopologyHeuristic,
		TrafficPlan,
		Mesh,
		ExternalService,
		GlobalSecret,
		Zone,
		ZoneInsight,
		ZoneIngress,
		ZoneIngressInsight,
		ZoneEgress,
		ZoneEgressInsight,
		DataplaneInsight,
		ServiceExport,
		ServiceImport,
		VirtualIP,
		IPAddressPool,
		ZoneShift,
		TrafficPermission,
		BackendPolicy,
		WorkloadPolicy,
		ProxyPatch,
		HTTPRoute,
		GRPCRoute,
		TCPRoute,
		ReferenceGrant,
		RegistryConfig,
	}
}

// on lets a function of one type serve a field of Descriptor. The API machinery
// guarantees the type: an object only reaches the functions of its own kind.
func on[T resource.Object](f func(obj T)) func(resource.Object) {
	return func(obj resource.Object) { f(obj.(T)) }
}

// of is on for functions with a result.
func of[T resource.Object, R any](f func(obj T) R) func(resource.Object) R {
	return func(obj resource.Object) R { return f(obj.(T)) }
}

// change is on for functions of a new and an old object; old is nil on create.
func change[T resource.Object](f func(obj, old T)) func(obj, old resource.Object) {
	return func(obj, old resource.Object) {
		o, _ := old.(T)
		f(obj.(T), o)
	}
}

// compare is change for functions with a result.
func compare[T resource.Object, R any](f func(obj, old T) R) func(obj, old resource.Object) R {
	return func(obj, old resource.Object) R {
		o, _ := old.(T)
		return f(obj.(T), o)
	}
}

// parts returns pointers to the spec and the status of an object.
type parts[T resource.Object, Spec, Status any] func(T) (*Spec, *Status)

// prepare a write of an object with a status: its status stays, and its generation counts
// how often the spec was another.
func (p parts[T, Spec, Status]) prepare(obj, old resource.Object) {
	spec, status := p(obj.(T))
	before, ok := old.(T)
	if !ok {
		var none Status
		*status = none
		obj.SetGeneration(1)
		return
	}
	wasSpec, wasStatus := p(before.DeepCopyObject().(T))
	*status = *wasStatus
	obj.SetGeneration(before.GetGeneration())
	if !equality.Semantic.DeepEqual(spec, wasSpec) {
		obj.SetGeneration(before.GetGeneration() + 1)
	}
}

// prepareStatus prepares a write of the status: all else stays, labels too, as who reports a
// status does not decide who selects the object.
func (p parts[T, Spec, Status]) prepareStatus(obj, old resource.Object) {
	before := old.DeepCopyObject().(T)
	spec, _ := p(obj.(T))
	wasSpec, _ := p(before)
	*spec = *wasSpec
	obj.SetGeneration(before.GetGeneration())
	obj.SetLabels(before.GetLabels())
	obj.SetAnnotations(before.GetAnnotations())
	obj.SetOwnerReferences(before.GetOwnerReferences())
	obj.SetFinalizers(before.GetFinalizers())
}

// counted prepares a kind that has no status: its generation counts how often the
// spec was another.
func counted[T resource.Object](spec func(T) any) func(obj, old resource.Object) {
	return func(obj, old resource.Object) {
		before, ok := old.(T)
		switch {
		case !ok:
			obj.SetGeneration(1)
		case equality.Semantic.DeepEqual(spec(obj.(T)), spec(before)):
			obj.SetGeneration(before.GetGeneration())
		default:
			obj.SetGeneration(before.GetGeneration() + 1)
		}
	}
}

package access

import (
	"fmt"
	"net/netip"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// isLocal: loopback addresses, and those of the interfaces of the machine that
// the control plane runs on.
func (p *WritePolicy) isLocal(a netip.Addr) bool {
	return a.IsValid() && (a.IsLoopback() || p.Local != nil && p.Local(a))
}

// allowLoopback lets requests of the control plane's own machine alone bring a
// loopback address: it means another machine everywhere else. It holds for every
// user.
func (p *WritePolicy) allowLoopback(w Write) error {
	obj, _ := w.Object.(*meshv1alpha1.Dataplane)
	if obj == nil || w.Subresource != "" || p.isLocal(w.From) {
		return nil
	}
	old, _ := w.Old.(*meshv1alpha1.Dataplane)
	for _, addr := range added(obj, old) {
		if addr.IsLoopback() {
			return fmt.Errorf("address %s of Dataplane %s/%s is a loopback address, and the request comes from %s: such an address is "+
				"written on the control plane's own machine only. Register an address by which other machines reach this one",
				addr, obj.Namespace, obj.Name, orUnknown(w.From))
		}
	}
	return nil
}

// setMachine notes whose loopback interface a Dataplane's address is on. A write
// from elsewhere that leaves the address alone leaves that alone, too.
func (p *WritePolicy) setMachine(obj, old *meshv1alpha1.Dataplane, from netip.Addr) {
	machine := ""
	if slices.ContainsFunc(parseAddresses(obj.Spec.Addresses), netip.Addr.IsLoopback) {
		switch {
		case p.isLocal(from):
			machine = p.MachineID
		case old != nil:
			machine = old.Annotations[meshv1alpha1.AnnotationMachineID]
		}
	}
	annotate(obj, meshv1alpha1.AnnotationMachineID, machine)
}

// annotate sets an annotation; an empty value removes it.
func annotate(dp *meshv1alpha1.Dataplane, key, value string) {
	switch {
	case value == "":
		delete(dp.Annotations, key)
	case dp.Annotations == nil:
		dp.Annotations = map[string]string{key: value}
	default:
		dp.Annotations[key] = value
	}
}

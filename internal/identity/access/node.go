package access

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
)

// allowClaims checks what a node writes to its own Node: new addresses must be those
// that the request comes from, in the token's ranges, or of no other Node; ranges
// of workloads must be set by administrators, or lie in the token's ranges.
func (p *WritePolicy) allowClaims(w Write, name string) error {
	obj, _ := w.Object.(*corev1.Node)
	if obj == nil {
		return nil
	}
	old, _ := w.Old.(*corev1.Node)
	if old == nil {
		old = &corev1.Node{}
	}
	if w.Old != nil {
		if err := allowDrain(obj, old); err != nil {
			return err
		}
	}
	bounds := identity.BoundsOf(w.User.GetExtra())
	if !slices.Equal(obj.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		for _, p := range podCIDRs(obj) {
			if !within(p, bounds.Addresses) {
				return fmt.Errorf("node %s may not set spec.podCIDRs to %s: an administrator does, or its token is made with --addresses", name, p)
			}
		}
	}
	before := nodeAddresses(old)
	for _, addr := range nodeAddresses(obj) {
		if slices.Contains(before, addr) {
			continue
		}
		if err := p.allowClaim(w, bounds, name, addr); err != nil {
			return err
		}
	}
	return nil
}

// allowDrain refuses a node's change of whether it is in use, which is an administrator's to
// decide (Kubernetes' NodeRestriction keeps taints so).
func allowDrain(obj, old *corev1.Node) error {
	what := ""
	switch {
	case !equality.Semantic.DeepEqual(obj.Spec.Taints, old.Spec.Taints):
		what = "spec.taints"
	case obj.Spec.Unschedulable != old.Spec.Unschedulable:
		what = "spec.unschedulable"
	case obj.Annotations[meshv1alpha1.AnnotationDrain] != old.Annotations[meshv1alpha1.AnnotationDrain]:
		what = "the annotation " + meshv1alpha1.AnnotationDrain
	default:
		return nil
	}
	return fmt.Errorf("node %s may not change %s: an administrator drains and cordons nodes", old.Name, what)
}

func (p *WritePolicy) allowClaim(w Write, bounds identity.Bounds, name string, addr netip.Addr) error {
	if len(bounds.Addresses) > 0 {
		if !bounds.AllowsAddress(addr) {
			return fmt.Errorf("address %s of node %s is not in the ranges that its token names", addr, name)
		}
		return nil
	}
	if p.comesFrom(w.From, addr) || p.Cluster == nil {
		return nil
	}
	other, err := p.Cluster.Holder(addr, name)
	if err != nil {
		return err
	}
	if other != "" {
		return fmt.Errorf("node %s may not claim address %s: node %s has it, and the request comes from %s", name, addr, other, orUnknown(w.From))
	}
	return nil
}

// HoldsAddress reports whether a Node has an address, or its podCIDRs cover it.
func HoldsAddress(n *corev1.Node, addr netip.Addr) bool {
	return slices.Contains(nodeAddresses(n), addr) || inPodCIDRs(n, addr)
}

// nodeAddresses are the addresses in a Node's status; names are left out.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

func inPodCIDRs(n *corev1.Node, addr netip.Addr) bool {
	return slices.ContainsFunc(podCIDRs(n), func(p netip.Prefix) bool { return p.Contains(addr) })
}

func podCIDRs(n *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// within reports whether one of the ranges covers p.
func within(p netip.Prefix, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.IsValid() && r.Bits() <= p.Bits() && r.Contains(p.Addr())
	})
}

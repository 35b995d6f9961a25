package access

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// allowNodesDataplane checks both the old and the new object: a node neither takes a
// workload from another nor gives it one, and both objects are within its bounds.
func (p *WritePolicy) allowNodesDataplane(ctx context.Context, w Write, node string) error {
	bounds := identity.BoundsOf(w.User.GetExtra())
	obj, old, err := dataplanes(w, "node "+node)
	if err != nil {
		return err
	}
	for _, dp := range present(obj, old) {
		switch {
		case dp.Spec.NodeName != node:
			return fmt.Errorf("node %s may write Dataplanes with spec.nodeName %s only; %s/%s has %q",
				node, node, dp.Namespace, dp.Name, dp.Spec.NodeName)
		case !bounds.AllowsNamespace(dp.Namespace):
			return fmt.Errorf("node %s registers workloads in %s only, not in namespace %s: make its token with --namespaces",
				node, namespaces(bounds), dp.Namespace)
		}
		if err := bounds.CheckLabels(dp.Labels); err != nil {
			return fmt.Errorf("node %s may not write Dataplane %s/%s: %w, as its token requires", node, dp.Namespace, dp.Name, err)
		}
	}
	if accountOf(obj) != accountOf(old) && accountOf(obj) != "" {
		return fmt.Errorf("node %s may not set spec.serviceAccount or the annotation %s: use a token of kind workload",
			node, meshv1alpha1.AnnotationServiceAccount)
	}
	return p.allowAddresses(ctx, w, node, bounds)
}

// allowWorkload lets a workload's credential write the Dataplanes of its
// namespace and service account, and nothing else.
func (p *WritePolicy) allowWorkload(ctx context.Context, w Write, namespace, account string) error {
	who := "workload " + namespace + "/" + account
	if w.Kind != (schema.GroupKind{Group: meshGroup, Kind: "Dataplane"}) {
		return fmt.Errorf("%s may not write %s: a workload writes its own Dataplanes", who, w.Kind)
	}
	bounds := identity.BoundsOf(w.User.GetExtra())
	obj, old, err := dataplanes(w, who)
	if err != nil {
		return err
	}
	for _, dp := range present(obj, old) {
		switch {
		case dp.Namespace != namespace:
			return fmt.Errorf("%s may write Dataplanes of namespace %s only, not of %s", who, namespace, dp.Namespace)
		case accountOf(dp) != account:
			return fmt.Errorf("%s may write Dataplanes of its own service account only; %s/%s has %q",
				who, dp.Namespace, dp.Name, accountOf(dp))
		}
		if err := bounds.CheckLabels(dp.Labels); err != nil {
			return fmt.Errorf("%s may not write Dataplane %s/%s: %w, as its token requires", who, dp.Namespace, dp.Name, err)
		}
	}
	return p.allowAddresses(ctx, w, "", bounds)
}

// dataplanes are the two sides of a write; nil: that side is missing.
func dataplanes(w Write, who string) (obj, old *meshv1alpha1.Dataplane, err error) {
	if obj, err = dataplane(w.Object, who); err == nil {
		old, err = dataplane(w.Old, who)
	}
	return obj, old, err
}

func dataplane(o resource.Object, who string) (*meshv1alpha1.Dataplane, error) {
	dp, ok := o.(*meshv1alpha1.Dataplane)
	if !ok && o != nil {
		return nil, fmt.Errorf("%s may not write a Dataplane as %T", who, o)
	}
	return dp, nil
}

func present(all ...*meshv1alpha1.Dataplane) []*meshv1alpha1.Dataplane {
	return slices.DeleteFunc(all, func(dp *meshv1alpha1.Dataplane) bool { return dp == nil })
}

// accountOf is the service account that a Dataplane names; empty: none.
func accountOf(dp *meshv1alpha1.Dataplane) string {
	if dp == nil {
		return ""
	}
	if dp.Spec.ServiceAccount != "" {
		return dp.Spec.ServiceAccount
	}
	return dp.Annotations[meshv1alpha1.AnnotationServiceAccount]
}

func namespaces(b identity.Bounds) string {
	if len(b.Namespaces) == 0 {
		return "namespace default"
	}
	return "namespaces " + strings.Join(b.Namespaces, ", ")
}

// allowAddresses requires every address that the write adds to belong to the machine
// of the credential: see owns. nodeName is the node that writes; empty: a workload
// does, on the Node that it names.
func (p *WritePolicy) allowAddresses(ctx context.Context, w Write, nodeName string, bounds identity.Bounds) error {
	obj, _ := w.Object.(*meshv1alpha1.Dataplane)
	old, _ := w.Old.(*meshv1alpha1.Dataplane)
	if obj == nil || w.Subresource != "" {
		return nil
	}
	var node *corev1.Node // read when it is needed
	for _, addr := range added(obj, old) {
		if addr.IsLoopback() {
			continue // allowLoopback has decided
		}
		if len(bounds.Addresses) > 0 {
			if !bounds.AllowsAddress(addr) {
				return fmt.Errorf("address %s is not in the ranges that the token names", addr)
			}
			continue
		}
		if p.comesFrom(w.From, addr) {
			continue
		}
		if name := obj.Spec.NodeName; node == nil && name != "" && p.Cluster != nil {
			var err error
			if node, err = p.Cluster.Node(ctx, name); err != nil {
				return err
			}
		}
		if err := p.owns(node, nodeName != "", addr, w.From); err != nil {
			return err
		}
	}
	return nil
}

// comesFrom reports whether a request proves that its sender has an address:
// it comes from it, or from this machine, which has it, too.
func (p *WritePolicy) comesFrom(from, addr netip.Addr) bool {
	return from.IsValid() && (from == addr || p.isLocal(from) && p.isLocal(addr))
}

// owns returns nil if an address is the Node's: in its podCIDRs, which
// administrators set, or among its own addresses and of no other Node. A
// workload's credential (self is false) must prove besides that it is on the Node.
func (p *WritePolicy) owns(node *corev1.Node, self bool, addr, from netip.Addr) error {
	refused := fmt.Errorf("address %s is not of this machine: the request comes from %s. Use an address of the machine, "+
		"set spec.podCIDRs of its Node, or make the token with --addresses", addr, orUnknown(from))
	if node == nil {
		return refused
	}
	own := nodeAddresses(node)
	if !self && !slices.ContainsFunc(own, func(a netip.Addr) bool { return p.comesFrom(from, a) }) {
		return refused
	}
	if inPodCIDRs(node, addr) {
		return nil
	}
	if !slices.Contains(own, addr) {
		return refused
	}
	other, err := p.Cluster.Holder(addr, node.Name)
	if err != nil {
		return err
	}
	if other != "" {
		return fmt.Errorf("address %s is of node %s, too: register from that address, or make the token with --addresses", addr, other)
	}
	return nil
}

func orUnknown(a netip.Addr) string {
	if !a.IsValid() {
		return "an unknown address"
	}
	return a.String()
}

// added are the addresses that a write brings.
func added(obj, old *meshv1alpha1.Dataplane) []netip.Addr {
	var before []netip.Addr
	if old != nil {
		before = parseAddresses(old.Spec.Addresses)
	}
	return slices.DeleteFunc(parseAddresses(obj.Spec.Addresses), func(a netip.Addr) bool { return slices.Contains(before, a) })
}

// parseAddresses leaves out what is no address: validation refuses it.
func parseAddresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

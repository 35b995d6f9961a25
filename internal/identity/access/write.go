package access

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Write is one create, update, patch or delete of an object over HTTP.
type Write struct {
	User        user.Info
	Kind        schema.GroupKind
	Subresource string
	// Object as it is to be; nil for a deletion. Old as it is; nil for a creation.
	Object, Old resource.Object
	// From is the address that the request comes from. The zero Addr: it is not
	// known, as behind a proxy.
	From netip.Addr
	// DryRun: nothing is stored.
	DryRun bool
	// Command of kubectl that sends the request, as "kubectl drain"; empty: another client, or
	// one that does not say.
	Command string
	// Warn tells the user something beside the answer; nil: nobody is told.
	Warn func(text string)
}

// CommandHeader is the header in which kubectl names its command (KEP-859).
const CommandHeader = "Kubectl-Command"

// Cluster is the part of the cluster's state that a WritePolicy reads.
type Cluster interface {
	// Node of a name, in its newest state; nil: there is none. It may block for a
	// read of the store.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Holder is a Node other than the named one that has an address, or in whose
	// podCIDRs it lies; "": there is none. It does not block. An error means that
	// the Nodes are not known yet.
	Holder(address netip.Addr, other string) (string, error)
}

// WritePolicy decides about writes what the authorizer cannot, for want of the
// object: whether a node or a workload writes what is its own, within the bounds
// of its credential. Safe for concurrent use.
type WritePolicy struct {
	// Cluster resolves addresses to Nodes. Nil: there are no Nodes.
	Cluster Cluster
	// MachineID of the machine that the control plane runs on.
	MachineID string
	// Local reports whether an address is one of that machine's. Nil: loopback
	// addresses alone are.
	Local func(netip.Addr) bool
	// Site of the control plane among several.
	Site Site
}

// Prepare sets what the server alone decides, before Allow: the annotations of a
// Dataplane that name its machine and its service account, and the labels that name its
// zone.
func (p *WritePolicy) Prepare(w Write) {
	p.Site.prepare(w)
	dp, ok := w.Object.(*meshv1alpha1.Dataplane)
	if !ok || w.Subresource != "" {
		return
	}
	old, _ := w.Old.(*meshv1alpha1.Dataplane)
	p.setMachine(dp, old, w.From)
	if w.User == nil {
		return
	}
	if _, account, ok := identity.WorkloadName(w.User.GetName(), w.User.GetGroups()); ok {
		annotate(dp, meshv1alpha1.AnnotationServiceAccount, account)
	}
}

// Allow must be called for every write, after mutation and before the store. A plain
// error is the reason of a 403; an error with an API status is the answer itself.
// Allow reads the store for Dataplanes of nodes and workloads that have a new
// address.
func (p *WritePolicy) Allow(ctx context.Context, w Write) error {
	if w.User == nil {
		return fmt.Errorf("a write of %s without a user", w.Kind)
	}
	if w.Kind.Group == plannerGroup {
		return fmt.Errorf("%s is written by the planner alone: change the annotations of its Service instead", w.Kind.Kind)
	}
	if slices.Contains(observed, w.Kind) {
		return fmt.Errorf("%s is written by control planes alone", w.Kind.Kind)
	}
	if err := p.Site.Allow(w); err != nil {
		return err
	}
	if err := p.allowLoopback(w); err != nil {
		return err
	}
	name, groups := w.User.GetName(), w.User.GetGroups()
	switch {
	case slices.Contains(groups, identity.GroupAdmins):
		return nil
	case slices.Contains(groups, identity.GroupNodes):
		node, ok := identity.NodeName(name, groups)
		if !ok {
			return fmt.Errorf("user %s is in group %s but names no node", name, identity.GroupNodes)
		}
		return p.allowNode(ctx, w, node)
	case slices.Contains(groups, identity.GroupWorkloads):
		namespace, account, ok := identity.WorkloadName(name, groups)
		if !ok {
			return fmt.Errorf("user %s is in group %s but names no service account", name, identity.GroupWorkloads)
		}
		return p.allowWorkload(ctx, w, namespace, account)
	}
	return nil // the authorizer has decided
}

// observed are the kinds that hold what control planes found or computed.
var observed = []schema.GroupKind{
	{Group: meshGroup, Kind: "ZoneInsight"},
	{Group: meshGroup, Kind: "ZoneIngressInsight"},
	{Group: meshGroup, Kind: "ZoneEgressInsight"},
	{Group: meshGroup, Kind: "DataplaneInsight"},
	{Group: multiclusterGroup, Kind: "ServiceImport"},
	{Group: meshGroup, Kind: "VirtualIP"},
}

func (p *WritePolicy) allowNode(ctx context.Context, w Write, node string) error {
	switch w.Kind {
	case schema.GroupKind{Kind: "Node"}:
		if err := ownName(node, w.Kind, w.Object, w.Old); err != nil {
			return err
		}
		return p.allowClaims(w, node)
	case schema.GroupKind{Group: coordinationGroup, Kind: "Lease"}:
		for _, o := range []resource.Object{w.Object, w.Old} {
			if o != nil && o.GetNamespace() != LeaseNamespace {
				return fmt.Errorf("node %s may write Leases in namespace %s only, not %s", node, LeaseNamespace, o.GetNamespace())
			}
		}
		return ownName(node, w.Kind, w.Object, w.Old)
	case schema.GroupKind{Group: meshGroup, Kind: "Dataplane"}:
		return p.allowNodesDataplane(ctx, w, node)
	case schema.GroupKind{Group: meshGroup, Kind: "ZoneIngress"}, schema.GroupKind{Group: meshGroup, Kind: "ZoneEgress"}:
		return ownName(node, w.Kind, w.Object, w.Old)
	case schema.GroupKind{Kind: "Event"}, schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}:
		return nil
	}
	return fmt.Errorf("node %s may not write %s: a node writes its own Node, Lease, Dataplanes, gateway and events", node, w.Kind)
}

func ownName(node string, kind schema.GroupKind, obj, old resource.Object) error {
	for _, o := range []resource.Object{obj, old} {
		if o != nil && o.GetName() != node {
			return fmt.Errorf("node %s may write the %s of its own name only, not %q", node, kind.Kind, o.GetName())
		}
	}
	return nil
}

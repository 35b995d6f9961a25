package access

import (
	"fmt"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

// AllowWrite decides what the authorizer cannot, for want of the object: whether
// a node writes what is its own. It is to run for every create (old is nil),
// update, patch and delete (obj is nil), after mutation and before the store;
// the error is the reason of a 403. Kinds of the planner are refused to every user,
// as the planner does not write over HTTP. For all else it has no objection to users
// that are not nodes: the authorizer has decided.
func AllowWrite(u user.Info, kind schema.GroupKind, obj, old resource.Object) error {
	if u == nil {
		return fmt.Errorf("a write of %s without a user", kind)
	}
	if kind.Group == plannerGroup {
		return fmt.Errorf("%s is written by the planner alone: change the annotations of its Service instead", kind.Kind)
	}
	groups := u.GetGroups()
	if !slices.Contains(groups, identity.GroupNodes) || slices.Contains(groups, identity.GroupAdmins) {
		return nil
	}
	node, ok := identity.NodeName(u.GetName(), groups)
	if !ok {
		return fmt.Errorf("user %s is in group %s but names no node", u.GetName(), identity.GroupNodes)
	}
	switch kind {
	case schema.GroupKind{Kind: "Node"}:
		return ownName(node, kind, obj, old)
	case schema.GroupKind{Group: coordinationGroup, Kind: "Lease"}:
		for _, o := range []resource.Object{obj, old} {
			if o != nil && o.GetNamespace() != LeaseNamespace {
				return fmt.Errorf("node %s may write Leases in namespace %s only, not %s", node, LeaseNamespace, o.GetNamespace())
			}
		}
		return ownName(node, kind, obj, old)
	case schema.GroupKind{Group: meshGroup, Kind: "Dataplane"}:
		return ownDataplane(node, obj, old)
	case schema.GroupKind{Kind: "Event"}, schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}:
		return nil
	}
	return fmt.Errorf("node %s may not write %s: a node writes its own Node, Lease, Dataplanes and events", node, kind)
}

func ownName(node string, kind schema.GroupKind, obj, old resource.Object) error {
	for _, o := range []resource.Object{obj, old} {
		if o != nil && o.GetName() != node {
			return fmt.Errorf("node %s may write the %s of its own name only, not %q", node, kind.Kind, o.GetName())
		}
	}
	return nil
}

// ownDataplane looks at both sides: a node neither takes a workload from another
// nor gives it one.
func ownDataplane(node string, obj, old resource.Object) error {
	for _, o := range []resource.Object{obj, old} {
		if o == nil {
			continue
		}
		dp, ok := o.(*meshv1alpha1.Dataplane)
		if !ok {
			return fmt.Errorf("node %s may not write a Dataplane as %T", node, o)
		}
		if dp.Spec.NodeName != node {
			return fmt.Errorf("node %s may write Dataplanes with spec.nodeName %s only; %s/%s has %q",
				node, node, dp.Namespace, dp.Name, dp.Spec.NodeName)
		}
	}
	return nil
}

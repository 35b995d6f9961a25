package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// node is what is known of one object.
type node struct {
	uid    types.UID
	kind   *resource.Descriptor
	key    resource.Key
	owners []metav1.OwnerReference
	// foreground: it is being deleted, once what depends on it is gone.
	foreground bool
	// orphaning: it is being deleted, once nothing names it as an owner.
	orphaning bool
}

func nodeOf(kind *resource.Descriptor, obj resource.Object) *node {
	deleting := !obj.GetDeletionTimestamp().IsZero()
	return &node{
		uid: obj.GetUID(), kind: kind, key: resource.KeyOf(obj), owners: obj.GetOwnerReferences(),
		foreground: deleting && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphaning:  deleting && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

// is reports whether an owner reference of an object in a namespace (empty: of a
// cluster-scoped one) means this node: an uid alone does not, as its kind and
// name are what people read.
func (n *node) is(ref metav1.OwnerReference, namespace string) bool {
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && group.Group == n.kind.GVK.Group && ref.Kind == n.kind.GVK.Kind && ref.Name == n.key.Name &&
		(n.key.Namespace == "" || n.key.Namespace == namespace)
}

func (n *node) names(owner types.UID) bool {
	return slices.ContainsFunc(n.owners, func(r metav1.OwnerReference) bool { return r.UID == owner })
}

// blocks reports whether a node keeps an owner that is deleted in the foreground.
func (n *node) blocks(owner types.UID) bool {
	return slices.ContainsFunc(n.owners, func(r metav1.OwnerReference) bool {
		return r.UID == owner && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
	})
}

// graph is who owns whom, by uid. It is pure state: no I/O, no locks.
type graph struct {
	nodes map[types.UID]*node
	// dependents of each uid that is named as an owner, whether or not there is
	// such an object.
	dependents map[types.UID]uidSet
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, dependents: map[types.UID]uidSet{}}
}

// set takes in an object as it is now, and returns which ones must be processed.
func (g *graph) set(n *node) (look []types.UID) {
	old := g.nodes[n.uid]
	g.nodes[n.uid] = n
	if old == nil {
		old = &node{}
	}
	for _, ref := range old.owners {
		if !n.names(ref.UID) {
			g.unlink(ref.UID, n.uid)
		}
		if old.blocks(ref.UID) && !n.blocks(ref.UID) {
			look = append(look, g.waiting(ref.UID)...)
		}
	}
	for _, ref := range n.owners {
		if !old.names(ref.UID) {
			g.link(ref.UID, n.uid)
		}
	}
	if !slices.EqualFunc(old.owners, n.owners, equalRefs) && g.doubtful(n) {
		look = append(look, n.uid)
	}
	if n.orphaning && !old.orphaning {
		look = append(look, n.uid)
	}
	if n.foreground && !old.foreground {
		look = append(append(look, n.uid), g.dependentsOf(n.uid)...)
	}
	return look
}

// doubtful: an owner is not known, or on its way out.
func (g *graph) doubtful(n *node) bool {
	return slices.ContainsFunc(n.owners, func(ref metav1.OwnerReference) bool {
		owner := g.nodes[ref.UID]
		return owner == nil || owner.foreground || !owner.is(ref, n.key.Namespace)
	})
}

// allDoubtful are all nodes that must be looked at once everything is known.
func (g *graph) allDoubtful() (look []types.UID) {
	for uid, n := range g.nodes {
		if n.foreground || n.orphaning || g.doubtful(n) {
			look = append(look, uid)
		}
	}
	return look
}

// remove forgets an object that is gone, and returns which ones must be processed:
// those it owned, and owners that waited for it.
func (g *graph) remove(uid types.UID) (look []types.UID) {
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	delete(g.nodes, uid)
	for _, ref := range n.owners {
		g.unlink(ref.UID, uid)
		look = append(look, g.waiting(ref.UID)...)
	}
	return append(look, g.dependentsOf(uid)...)
}

// waiting is the owner itself if it waits for what depends on it.
func (g *graph) waiting(owner types.UID) []types.UID {
	if n := g.nodes[owner]; n != nil && n.foreground {
		return []types.UID{owner}
	}
	return nil
}

func (g *graph) dependentsOf(owner types.UID) []types.UID {
	return slices.Collect(g.dependents[owner].all())
}

func (g *graph) link(owner, dependent types.UID) {
	g.dependents[owner] = g.dependents[owner].with(dependent)
}

func (g *graph) unlink(owner, dependent types.UID) {
	if left := g.dependents[owner].without(dependent); left.empty() {
		delete(g.dependents, owner)
	} else {
		g.dependents[owner] = left
	}
}

// ofKind are the uids of all nodes of a kind.
func (g *graph) ofKind(kind schema.GroupVersionKind) (uids []types.UID) {
	for uid, n := range g.nodes {
		if n.kind.GVK == kind {
			uids = append(uids, uid)
		}
	}
	return uids
}

func equalRefs(a, b metav1.OwnerReference) bool {
	blocks := func(r metav1.OwnerReference) bool { return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion }
	return a.UID == b.UID && a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && blocks(a) == blocks(b)
}

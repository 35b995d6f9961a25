package app

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/authorities"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// meshMembers keep workloads of two meshes apart on a node: agents tell them by their
// addresses. The catalog is set before the server runs.
type meshMembers struct{ catalog *catalog.Catalog }

// allow refuses a Dataplane whose address another one of its node has, in another mesh.
// It reads the tables, so of two that are written at the same moment both may pass; the
// agent then gives neither an identity.
func (m *meshMembers) allow(w access.Write) error {
	dp, ok := w.Object.(*meshv1alpha1.Dataplane)
	if !ok || dp == nil || w.Subresource != "" || dp.Spec.NodeName == "" || m.catalog == nil {
		return nil
	}
	if old, ok := w.Old.(*meshv1alpha1.Dataplane); ok && old != nil && old.Spec.Mesh == dp.Spec.Mesh && old.Spec.NodeName == dp.Spec.NodeName &&
		slices.Equal(old.Spec.Addresses, dp.Spec.Addresses) {
		return nil // it is there already
	}
	s := m.catalog.Snapshot()
	meshName := meshOf(s, resource.KeyOf(dp), dp)
	for key, other := range s.DataplanesOn(dp.Spec.NodeName) {
		of := meshOf(s, key, other)
		if key == resource.KeyOf(dp) || of == meshName || !other.DeletionTimestamp.IsZero() {
			continue
		}
		if shareAddress(dp, other) && !(inCgroup(dp) && inCgroup(other)) {
			return fmt.Errorf("the Dataplane %s of mesh %s has the same address on node %s: a workload of mesh %s could not be told from it; "+
				"give this one an address of its own (proxima run --address), or start both with \"proxima run\" as root, which gives them cgroups", key, of, dp.Spec.NodeName, meshName)
		}
	}
	return nil
}

// unenforced are the workloads of a mesh, and the nodes of the site, for which its isolation
// does not hold.
func unenforced(s *catalog.Snapshot, mesh *meshv1alpha1.Mesh) authorities.Unenforced {
	out := authorities.Unenforced{Apart: s.Meshes.Len() > 1}
	closed := !kind.MeshPassthrough(mesh)
	for key, dp := range s.Dataplanes.All() {
		if dp.Spec.NodeName == "" || meshOf(s, key, dp) != mesh.Name {
			continue
		}
		node, _ := s.Nodes.Get(resource.Key{Name: dp.Spec.NodeName})
		onNode := sharesNode(dp, node) && !toldApart(dp, node)
		if out.Apart {
			if other, of := rival(s, key, dp, mesh.Name, onNode); of != "" {
				out.Isolation = append(out.Isolation, fmt.Sprintf("%s: its connections cannot be told from those of %s of mesh %s, at an address of node %s that both use",
					key, other, of, dp.Spec.NodeName))
			}
		}
		if !closed {
			continue
		}
		switch mode := modeOf(node); {
		case onNode:
			out.Passthrough = append(out.Passthrough, fmt.Sprintf("%s: it has an address of node %s, as the agent has", key, dp.Spec.NodeName))
		case mode == userspaceMode:
			out.Passthrough = append(out.Passthrough, fmt.Sprintf("%s: node %s is in userspace mode, which sees only what is sent to Services", key, dp.Spec.NodeName))
		case mode == "":
			out.Passthrough = append(out.Passthrough, fmt.Sprintf("%s: the agent of node %s does not say its mode, as an older version does not", key, dp.Spec.NodeName))
		}
	}
	for key, pod := range s.Pods.All() {
		namespace, _ := s.Namespaces.Get(resource.Key{Name: key.Namespace})
		if closed && pod.Spec.NodeName != "" && pod.Spec.HostNetwork && kind.PodMesh(pod, namespace) == mesh.Name {
			out.Passthrough = append(out.Passthrough, fmt.Sprintf("%s: it is in the network of node %s", key, pod.Spec.NodeName))
		}
	}
	for key, node := range s.Nodes.All() {
		if out.Apart && modeOf(node) == "" && hasAgent(s, key.Name) {
			out.Isolation = append(out.Isolation, fmt.Sprintf("node %s: its agent does not say its mode, as an older version does not, and refuses nothing", key.Name))
		}
	}
	slices.Sort(out.Isolation)
	slices.Sort(out.Passthrough)
	return out
}

// rival is a workload of another mesh on the node of one, from which that cannot be told: it
// has the same address, or both have addresses of the node itself, of which the kernel chooses.
func rival(s *catalog.Snapshot, key resource.Key, dp *meshv1alpha1.Dataplane, mesh string, onNode bool) (other resource.Key, of string) {
	node, _ := s.Nodes.Get(resource.Key{Name: dp.Spec.NodeName})
	for other, o := range s.DataplanesOn(dp.Spec.NodeName) {
		of := meshOf(s, other, o)
		if other != key && of != mesh && (shareAddress(dp, o) && !(toldApart(dp, node) && toldApart(o, node)) ||
			onNode && sharesNode(o, node) && !toldApart(o, node)) {
			return other, of
		}
	}
	return resource.Key{}, ""
}

// inCgroup reports whether a workload has a cgroup by which its agent said to know it.
func inCgroup(dp *meshv1alpha1.Dataplane) bool {
	return dp.Annotations[meshv1alpha1.AnnotationCgroup] != ""
}

// toldApart reports whether the agent tells a workload's connections by its cgroup. The mode may
// be another one since.
func toldApart(dp *meshv1alpha1.Dataplane, node *corev1.Node) bool {
	return inCgroup(dp) && byNftables(modeOf(node))
}

// sharesNode reports whether a workload has an address that its node has too.
func sharesNode(dp *meshv1alpha1.Dataplane, node *corev1.Node) bool {
	return slices.ContainsFunc(dp.Spec.Addresses, func(text string) bool {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return false
		}
		return addr.IsLoopback() || node != nil && slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
			own, err := netip.ParseAddr(a.Address)
			return err == nil && own.Unmap() == addr.Unmap()
		})
	})
}

func modeOf(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	return node.Labels[meshv1alpha1.LabelProxyMode]
}

// hasAgent reports whether workloads of a node could call anybody.
func hasAgent(s *catalog.Snapshot, node string) bool {
	for range s.DataplanesOn(node) {
		return true
	}
	for range s.PodsOn(node) {
		return true
	}
	return false
}

func shareAddress(a, b *meshv1alpha1.Dataplane) bool {
	return slices.ContainsFunc(a.Spec.Addresses, func(text string) bool {
		addr, err := netip.ParseAddr(text)
		return err == nil && hasAddress(b, addr.Unmap())
	})
}

package backend

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// On adds what follows from the node that the backend runs on; nil: it is not there. The
// backends of a drained node are terminating: they serve their connections and get new ones
// only where no other endpoint is left (KEP-1669).
func (b *Backend) On(node *corev1.Node) {
	if node == nil {
		return
	}
	if b.Zone == "" {
		b.Zone = node.Labels[corev1.LabelTopologyZone]
	}
	if kind.EvictingTaint(node, b.tolerations) != nil {
		b.Terminating = true
	}
}

// NodeMatters reports whether a change of a node can change what On adds.
func NodeMatters(was, is *corev1.Node) bool {
	if was == nil || is == nil {
		return true
	}
	return was.Labels[corev1.LabelTopologyZone] != is.Labels[corev1.LabelTopologyZone] || TaintsMatter(was, is)
}

// TaintsMatter reports whether a change of a node's taints can take workloads out of it, or
// put them back. nil stands for a node that is not there.
func TaintsMatter(was, is *corev1.Node) bool {
	return !slices.EqualFunc(evicting(was), evicting(is), func(a, b corev1.Taint) bool {
		return a.Key == b.Key && a.Value == b.Value
	})
}

func evicting(n *corev1.Node) (out []corev1.Taint) {
	if n == nil {
		return nil
	}
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}

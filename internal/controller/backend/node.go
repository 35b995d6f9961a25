package backend

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Place adds what follows from where the backend runs: from its node, nil if that is not
// there or it has none, and from the shifts in effect. The backends of a drained node, and
// those that a shift takes out, are terminating: they serve their connections and get new
// ones only where no other endpoint is left (KEP-1669).
func (b *Backend) Place(node *corev1.Node, shifts Shifts) {
	if node != nil {
		if b.Zone == "" {
			b.Zone = node.Labels[corev1.LabelTopologyZone]
		}
		if kind.EvictingTaint(node, b.tolerations) != nil {
			b.Terminating = true
		}
	}
	if shifts.Of(b.Zone, b.Node) != nil {
		b.Terminating = true
	}
}

// NodeMatters reports whether a change of a node can change what Place adds.
func NodeMatters(was, is *corev1.Node) bool {
	if was == nil || is == nil {
		return true
	}
	return was.Labels[corev1.LabelTopologyZone] != is.Labels[corev1.LabelTopologyZone] || taintsMatter(was, is)
}

// taintsMatter reports whether a change of a node's taints can take workloads out of it, or
// put them back. nil stands for a node that is not there.
func taintsMatter(was, is *corev1.Node) bool {
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

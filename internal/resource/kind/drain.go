package kind

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// DrainRecord is what a Node's annotation mesh.AnnotationDrain holds: who drained the node,
// and what undraining it restores.
type DrainRecord struct {
	// Since is when the drain began.
	Since time.Time `json:"since,omitzero"`
	// By is the user who drained the node; empty: not known, as for a taint that was set
	// without the command.
	By string `json:"by,omitempty"`
	// Cordoned: the node was unschedulable before.
	Cordoned bool `json:"cordoned,omitempty"`
	// Force: Services may lose their last endpoint by it.
	Force bool `json:"force,omitempty"`
	// Drained is when nothing was left that a reboot would interrupt; zero: not yet.
	Drained time.Time `json:"drained,omitzero"`
}

// NodeDrain is the drain of a node, as its Node tells it.
type NodeDrain struct {
	DrainRecord
	// Taint by which the node's workloads are taken out; nil: the node is not drained.
	Taint *corev1.Taint
}

// State is Draining or Drained, for people; empty: the node is not drained.
func (d NodeDrain) State() string {
	switch {
	case d.Taint == nil:
		return ""
	case d.Drained.IsZero():
		return "Draining"
	}
	return "Drained"
}

// String describes it: since when the node is drained, by whom, and by which taint.
func (d NodeDrain) String() string {
	if d.Taint == nil {
		return "not drained"
	}
	text := "drained"
	if !d.Since.IsZero() {
		text += " since " + d.Since.UTC().Format(time.RFC3339)
	}
	if d.By != "" {
		text += " by " + d.By
	}
	return text + " (taint " + d.Taint.ToString() + ")"
}

// Undo is the command that puts a node of a name back into use.
func (d NodeDrain) Undo(name string) string {
	switch {
	case d.Taint == nil:
		return "kubectl uncordon " + name
	case d.Taint.Key == mesh.TaintDrain:
		return "proxima node undrain " + name
	}
	return fmt.Sprintf("kubectl taint node %s %s:%s-", name, d.Taint.Key, d.Taint.Effect)
}

// DrainOf reads the drain of a node. A taint of another program counts as well as that of
// "proxima node drain". An annotation that cannot be read counts as empty: the taint decides.
func DrainOf(n *corev1.Node) NodeDrain {
	d := NodeDrain{Taint: EvictingTaint(n, nil)}
	if d.Taint == nil {
		return NodeDrain{}
	}
	if text := n.Annotations[mesh.AnnotationDrain]; text != "" && json.Unmarshal([]byte(text), &d.DrainRecord) != nil {
		d.DrainRecord = DrainRecord{}
	}
	if d.Since.IsZero() && d.Taint.TimeAdded != nil {
		d.Since = d.Taint.TimeAdded.Time
	}
	return d
}

// healthTaints are set by Kubernetes on nodes whose agent is silent. They drain nothing: the
// leases of nodes and workloads decide about those.
var healthTaints = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// EvictingTaint is the first taint that takes workloads with these tolerations out of a
// node: one with effect NoExecute that none of them tolerates. That of "proxima node drain"
// comes before others. Nil: they stay; also for a node that is nil. Dataplanes have no
// tolerations. The taint is the node's and must not be changed.
func EvictingTaint(n *corev1.Node, tolerations []corev1.Toleration) *corev1.Taint {
	if n == nil {
		return nil
	}
	var found *corev1.Taint
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectNoExecute || slices.Contains(healthTaints, t.Key) || tolerated(t, tolerations) {
			continue
		}
		if t.Key == mesh.TaintDrain {
			return t
		}
		if found == nil {
			found = t
		}
	}
	return found
}

// tolerated by one of the tolerations, as Kubernetes matches them. A toleration for a time
// only (tolerationSeconds) does not count: what has to go later should get no new
// connections now.
func tolerated(t *corev1.Taint, by []corev1.Toleration) bool {
	return slices.ContainsFunc(by, func(o corev1.Toleration) bool {
		if o.TolerationSeconds != nil || o.Effect != "" && o.Effect != t.Effect {
			return false
		}
		if o.Key == "" {
			return o.Operator == corev1.TolerationOpExists
		}
		return o.Key == t.Key && (o.Operator == corev1.TolerationOpExists || o.Value == t.Value)
	})
}

// StartDrain taints and cordons a node, and records who did so. It reports whether that
// changed the node: one that is drained already keeps its record, but for force.
func StartDrain(n *corev1.Node, by string, force bool, now time.Time) bool {
	d := DrainOf(n)
	ours := d.Taint != nil && d.Taint.Key == mesh.TaintDrain
	if ours && n.Spec.Unschedulable && (d.Force || !force) {
		return false
	}
	if d.By == "" {
		if d.Since.IsZero() {
			d.Since = now.UTC().Truncate(time.Second)
		}
		d.By, d.Cordoned = by, n.Spec.Unschedulable
	}
	d.Force = d.Force || force
	if !ours {
		added := metav1.NewTime(now)
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: mesh.TaintDrain, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added})
	}
	n.Spec.Unschedulable = true
	SetDrainRecord(n, d.DrainRecord)
	return true
}

// EndDrain takes back what StartDrain did, and reports whether there was anything. A node
// that was cordoned before stays so, unless it was uncordoned meanwhile. Taints of other
// programs stay.
func EndDrain(n *corev1.Node) bool {
	d := DrainOf(n)
	if d.Taint == nil || d.Taint.Key != mesh.TaintDrain {
		return false
	}
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == mesh.TaintDrain && t.Effect == corev1.TaintEffectNoExecute
	})
	if len(n.Spec.Taints) == 0 {
		n.Spec.Taints = nil
	}
	n.Spec.Unschedulable = n.Spec.Unschedulable && d.Cordoned
	delete(n.Annotations, mesh.AnnotationDrain)
	return true
}

// SetDrainRecord writes the annotation; an empty record removes it.
func SetDrainRecord(n *corev1.Node, r DrainRecord) {
	if r == (DrainRecord{}) {
		delete(n.Annotations, mesh.AnnotationDrain)
		return
	}
	if n.Annotations == nil {
		n.Annotations = make(map[string]string, 1)
	}
	text, _ := json.Marshal(r) // a struct of times, texts and truth values
	n.Annotations[mesh.AnnotationDrain] = string(text)
}

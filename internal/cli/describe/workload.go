package describe

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// workload is what descriptions need of a Pod or a Dataplane.
type workload struct {
	kind string // Pod or Dataplane
	resource.Key
	labels map[string]string
	// mesh that it names; empty: that of its namespace. hosts are the names of the services
	// that it is part of by its tags.
	mesh      string
	hosts     []string
	node      string
	addresses []string
	ready     bool
	// weight among the endpoints of a Service, and since when it is ready; zero: not known.
	weight     int32
	readySince time.Time
	// done: it has ended and gets no endpoint.
	done bool
	// why it is not ready; empty if it is.
	why string
}

func (w *workload) title() string { return strings.ToLower(w.kind) + "/" + w.Name }

func workloads(dataplanes []*mesh.Dataplane, pods []*corev1.Pod) []workload {
	var out []workload
	for _, d := range dataplanes {
		out = append(out, ofDataplane(d))
	}
	for _, pod := range pods {
		out = append(out, ofPod(pod))
	}
	slices.SortFunc(out, func(a, b workload) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func ofDataplane(d *mesh.Dataplane) workload {
	w := workload{
		kind: "Dataplane", Key: resource.KeyOf(d), labels: d.Labels, node: d.Spec.NodeName, addresses: d.Spec.Addresses,
		mesh: d.Spec.Mesh, hosts: servicetag.OfDataplane(d), weight: ptr.Deref(d.Spec.Weight, mesh.DefaultWeight),
	}
	ready := meta.FindStatusCondition(d.Status.Conditions, mesh.DataplaneReady)
	switch {
	case d.DeletionTimestamp != nil:
		w.why = "it is draining"
	case d.Spec.Enabled != nil && !*d.Spec.Enabled:
		w.why = "it is disabled (spec.enabled is false): it keeps its connections, and gets new ones only if no endpoint is ready"
	case d.Spec.Weight != nil && *d.Spec.Weight == 0:
		w.why = "its weight is 0: it keeps its connections, and gets no new ones"
	case ready == nil:
		w.why = "it has not been reported ready yet"
	case ready.Status != metav1.ConditionTrue:
		w.why = because(ready.Reason, ready.Message)
	default:
		w.ready, w.readySince = true, ready.LastTransitionTime.Time
	}
	return w
}

func ofPod(pod *corev1.Pod) workload {
	w := workload{
		kind: "Pod", Key: resource.KeyOf(pod), labels: pod.Labels, node: pod.Spec.NodeName, hosts: servicetag.OfPod(pod),
		weight: mesh.DefaultWeight,
	}
	for _, ip := range pod.Status.PodIPs {
		w.addresses = append(w.addresses, ip.IP)
	}
	if len(w.addresses) == 0 && pod.Status.PodIP != "" {
		w.addresses = []string{pod.Status.PodIP}
	}
	w.done = pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	switch {
	case pod.DeletionTimestamp != nil:
		w.why = "it is terminating"
	case w.done:
		w.why = "it has ended: " + string(pod.Status.Phase)
	case i < 0:
		w.why = "it has not been reported ready yet"
	case pod.Status.Conditions[i].Status != corev1.ConditionTrue:
		w.why = because(pod.Status.Conditions[i].Reason, pod.Status.Conditions[i].Message)
	default:
		w.ready, w.readySince = true, pod.Status.Conditions[i].LastTransitionTime.Time
	}
	return w
}

// because of the reason and message of a condition.
func because(reason, message string) string {
	switch {
	case reason == "" && message == "":
		return "no reason is given"
	case message == "":
		return reason
	case reason == "":
		return message
	}
	return reason + ": " + message
}

// hasFamily reports whether a workload has an address of one of the families.
func (w *workload) hasFamily(families []corev1.IPFamily) bool {
	return slices.ContainsFunc(w.addresses, func(text string) bool {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return false
		}
		family := corev1.IPv6Protocol
		if addr.Unmap().Is4() {
			family = corev1.IPv4Protocol
		}
		return slices.Contains(families, family)
	})
}

// nodeReady reports whether a Node is ready, and if not, the reason.
func nodeReady(n *corev1.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, because(c.Reason, c.Message)
		}
	}
	return false, "it has not been reported ready yet"
}

// lease in words: who renewed it when, and whether it still holds.
func (p *page) lease(holder string, renewed time.Time, seconds int32) string {
	text := fmt.Sprintf("renewed %s by %s, lasts %ds", p.ago(renewed), cmp.Or(holder, "nobody"), seconds)
	if past := p.now.Sub(renewed) - time.Duration(seconds)*time.Second; past > 0 {
		text += ": it has run out"
	}
	return text
}

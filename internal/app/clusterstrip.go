package app

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// stripper takes from objects that come from the cluster what nobody reads. Make it with newStripper. It is
// safe for concurrent use.
type stripper struct{ labels, annotations *texts }

func newStripper() *stripper { return &stripper{labels: newTexts(), annotations: newTexts()} }

// strip what nobody reads. Of kinds that are written here, it takes managed fields alone: what is read is
// written back, and an update without them keeps them.
func (s *stripper) strip(obj resource.Object) {
	switch o := obj.(type) {
	case *corev1.Node, *discoveryv1.EndpointSlice:
		strip(obj)
	case *corev1.Pod:
		s.pod(o)
	default:
		obj.SetManagedFields(nil)
	}
}

// pod leaves of a Pod what tables are read for: whose it is, where, of which mesh, whether it is ready
// and since when, and its sidecar. A cluster has more Pods than anything else, and many of them have the
// same labels, node and account: equal texts, and equal maps of them, are kept once, and are read only.
func (s *stripper) pod(p *corev1.Pod) {
	ip := p.Status.PodIP
	*p = corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: interned(p.Namespace), Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Generation: p.Generation,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
			Labels: s.labels.share(p.Labels), Annotations: s.annotations.share(podAnnotations(p.Annotations)),
		},
		Spec: corev1.PodSpec{
			NodeName: interned(p.Spec.NodeName), HostNetwork: p.Spec.HostNetwork, ServiceAccountName: interned(p.Spec.ServiceAccountName),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPhase(interned(string(p.Status.Phase))), PodIP: ip, PodIPs: podIPs(ip, p.Status.PodIPs), Conditions: podReady(p.Status.Conditions),
		},
	}
}

// maxTexts are the maps that one generation of texts has: those of as many Deployments.
const maxTexts = 8192

// texts has the maps of some thousands of objects that came last, so that an equal one is in memory once.
// What was not met for a generation is forgotten, and equal maps may then be there twice.
type texts struct {
	seed maphash.Seed

	mu          sync.Mutex
	now, before map[uint64]map[string]string // by a sum of their entries
}

func newTexts() *texts {
	return &texts{seed: maphash.MakeSeed(), now: map[uint64]map[string]string{}}
}

// share returns an equal map, which must not be changed.
func (t *texts) share(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	var sum uint64
	for k, v := range m {
		var h maphash.Hash
		h.SetSeed(t.seed)
		_, _ = h.WriteString(k)
		_ = h.WriteByte(0)
		_, _ = h.WriteString(v)
		sum += h.Sum64() // in any order
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range []map[uint64]map[string]string{t.now, t.before} {
		if same := known[sum]; maps.Equal(same, m) {
			t.now[sum] = same
			return same
		}
	}
	if len(t.now) >= maxTexts {
		t.now, t.before = map[uint64]map[string]string{}, t.now
	}
	own := make(map[string]string, len(m))
	for k, v := range m {
		own[interned(k)] = interned(v)
	}
	t.now[sum] = own
	return own
}

// interned is a text that many objects have: equal ones are in memory once, for as long as one is used.
func interned(text string) string { return unique.Make(text).Value() }

// podAnnotations are those that are read: Proxima's and Kuma's. The authorities that a sidecar trusts, a
// certificate in each Pod, are the sidecar's own.
func podAnnotations(all map[string]string) map[string]string {
	var out map[string]string
	for k, v := range all {
		domain, _, _ := strings.Cut(k, "/")
		if k == meshv1alpha1.AnnotationServerCA || !within(domain, "proxima.dev") && !within(domain, "kuma.io") {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

// within reports whether a name is a domain, or below it.
func within(name, domain string) bool {
	before, ok := strings.CutSuffix(name, domain)
	return ok && (before == "" || strings.HasSuffix(before, "."))
}

// podIPs of a Pod, whose first address is kept once.
func podIPs(first string, all []corev1.PodIP) []corev1.PodIP {
	if len(all) == 0 || len(all) == 1 && all[0].IP == first {
		return nil
	}
	out := make([]corev1.PodIP, 0, len(all))
	for _, ip := range all {
		if ip.IP == first {
			ip.IP = first
		}
		out = append(out, ip)
	}
	return out
}

// podReady is the condition of that name without its words.
func podReady(all []corev1.PodCondition) []corev1.PodCondition {
	for _, c := range all {
		if c.Type == corev1.PodReady {
			return []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionStatus(interned(string(c.Status))), LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return nil
}

package workload

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestSidecarOfAnEarlierRun: a run without a sidecar takes back what was said of that of a run that crashed,
// also what is said of it later, and leaves alone what is said of other proxies.
func TestSidecarOfAnEarlierRun(t *testing.T) {
	connected := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{
			{Type: v1alpha1.DataplaneProxyConnected, Status: status, Reason: reason, LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.DataplaneProxyReady, Status: metav1.ConditionTrue, Reason: "Configured", LastTransitionTime: metav1.Now()},
		}
	}
	for name, test := range map[string]struct {
		by, reason string // of the sidecar before
		proxy      Proxy  // of this run
		stays      bool
	}{
		"of run":          {v1alpha1.SidecarOfRun, "Connected", nil, false},
		"one again":       {v1alpha1.SidecarOfRun, "Connected", &Sidecar{}, true},
		"a direct Envoy":  {"", "Connected", nil, true},
		"a gRPC program":  {v1alpha1.SidecarOfRun, v1alpha1.ReasonProgram, nil, true},
		"one after a run": {"", "Connected", &Sidecar{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, client := config(t, "exit", "")
			before := cfg.Dataplane.DeepCopy()
			if test.by != "" {
				before.Annotations = map[string]string{v1alpha1.AnnotationSidecar: test.by}
			}
			before.Status.Conditions = connected(metav1.ConditionTrue, test.reason)
			client.Seed(before)
			cfg.Proxy = test.proxy
			r := newRegistration(cfg)
			if err := r.announce(t.Context()); err != nil {
				t.Fatal(err)
			}
			check := func(step string) *v1alpha1.Dataplane {
				t.Helper()
				d, err := get(client)
				if err != nil {
					t.Fatal(err)
				}
				has := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DataplaneProxyConnected) != nil
				ready := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DataplaneProxyReady) != nil
				if has != test.stays || ready != test.stays {
					t.Errorf("%s: the conditions %+v; they stay: %t", step, d.Status.Conditions, test.stays)
				}
				if noted := d.Annotations[v1alpha1.AnnotationSidecar] == v1alpha1.SidecarOfRun; noted != (test.proxy != nil) {
					t.Errorf("%s: annotations %v", step, d.Annotations)
				}
				return d
			}
			// The control plane notices only then that the stream has ended.
			d := check("taken over").DeepCopy()
			for _, c := range connected(metav1.ConditionFalse, "Disconnected") {
				if test.reason == v1alpha1.ReasonProgram {
					c.Reason = test.reason
				}
				meta.SetStatusCondition(&d.Status.Conditions, c)
			}
			if _, err := client.UpdateStatus(t.Context(), kind.Dataplane, d); err != nil {
				t.Fatal(err)
			}
			if err := r.write(t.Context()); err != nil {
				t.Fatal(err)
			}
			check("noticed later")
		})
	}
}

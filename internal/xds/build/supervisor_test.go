package build

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// settingsIn what a connection has of its own; the zero value: there are none.
func settingsIn(t *testing.T, c *Connection) wire.SupervisorSettings {
	t.Helper()
	s := delta.NewLayered(c.Config)
	defer s.Close()
	if err := s.Step(delta.Request{Type: wire.Settings, Subscribe: []string{wire.Wildcard}}); err != nil {
		t.Fatal(err)
	}
	f, _ := s.Next(time.Time{})
	if f == nil {
		t.Fatal("no answer to a supervisor that asks for settings")
	}
	r, err := wire.ParseResponse(f.Data)
	if err != nil || len(r.Resources) == 0 {
		return wire.SupervisorSettings{}
	}
	body, err := r.Resources[0].Body()
	if err != nil {
		t.Fatal(err)
	}
	out, err := wire.ParseSettings(body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSettings of supervisors: what policies and the Dataplane say, the Dataplane's last, as it changes.
func TestSettings(t *testing.T) {
	plain := testDataplane("web", "10.0.0.1", nil)
	w := newWorld(t, plain, testDataplane("other", "10.0.0.2", nil))
	c, direct := w.connect("web", Sidecar), w.connect("other", Direct)
	want := func(what string, want wire.SupervisorSettings) {
		t.Helper()
		if diff := cmp.Diff(want, settingsIn(t, c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	want("nothing", wire.SupervisorSettings{})

	p := &meshv1alpha1.WorkloadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shown"}, Spec: meshv1alpha1.WorkloadPolicySpec{
		Metrics: &meshv1alpha1.WorkloadMetrics{Include: "^envoy_", Exclude: "x", Apps: []meshv1alpha1.MetricsApp{{Name: "web", Port: 9100}}},
	}}
	w.seed(p)
	metrics := &wire.MetricsSettings{Path: "/metrics", Include: "^envoy_", Exclude: "x", Apps: []wire.AppSettings{{Name: "web", Port: 9100}}}
	want("a policy without a port", wire.SupervisorSettings{Metrics: metrics})
	if got := settingsIn(t, direct); got.Metrics != nil {
		t.Errorf("an Envoy without a supervisor has settings of one: %+v", got)
	}

	own := plain.DeepCopy()
	own.Generation++
	own.Spec.Proxy = &meshv1alpha1.DataplaneProxy{
		Metrics: &meshv1alpha1.WorkloadMetrics{Port: new(int32(9000)), Path: "/m", MTLS: true},
		Probes: []meshv1alpha1.DataplaneProbe{
			{Path: "/live", Port: 8080, TargetPath: "/healthz"}, {Path: "/db", Type: meshv1alpha1.CheckTCP, Port: 5432},
			{Path: "/rpc", Type: meshv1alpha1.CheckGRPC, Port: 9000, Service: "shop.Cart"},
		},
	}
	w.seed(own)
	metrics.Port, metrics.Path, metrics.MTLS = 9000, "/m", true
	want("the Dataplane's own", wire.SupervisorSettings{Metrics: metrics, Probes: []wire.ProbeSettings{
		{Path: "/live", Kind: "http", Port: 8080, Target: "/healthz"}, {Path: "/db", Kind: "tcp", Port: 5432},
		{Path: "/rpc", Kind: "grpc", Port: 9000, Target: "shop.Cart"},
	}})
}

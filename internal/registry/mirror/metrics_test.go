package mirror

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// TestMetrics: what Status says, by registry.
func TestMetrics(t *testing.T) {
	m := New(Config{Follow: true})
	orders := registry.Service{Namespace: "default", Name: "orders"}
	in := &registry.Instance{Service: orders, Address: netip.MustParseAddr("10.0.0.1"), Port: 80}
	m.old.Set(orders, []*registry.Instance{in, in})
	m.here.Set(orders, []*registry.Instance{in})
	want := `
# HELP proxima_mirror_instances Instances that are registered in a registry that is mirrored, without copies; registry: old or here.
# TYPE proxima_mirror_instances gauge
proxima_mirror_instances{registry="here"} 1
proxima_mirror_instances{registry="old"} 2
# HELP proxima_mirror_copies Copies that the mirror has published in a registry; registry: old or here.
# TYPE proxima_mirror_copies gauge
proxima_mirror_copies{registry="here"} 0
proxima_mirror_copies{registry="old"} 0
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "proxima_mirror_instances", "proxima_mirror_copies"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

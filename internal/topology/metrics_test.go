package topology

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
)

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		auto := web(mode, "Auto")
		auto.Name, auto.UID = "auto", "svc-2"
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaaabbbbccc"), one(adaptive(), auto))...)
		const want = `
# HELP proxima_topology_in_zone_ratio Share of connections that stay in their zone, by the published plan under the present demand.
# TYPE proxima_topology_in_zone_ratio gauge
proxima_topology_in_zone_ratio{family="IPv4",namespace="shop",ports="http",service="web"} 0.9857575757575757
# HELP proxima_topology_replans_total Plans published, by reason.
# TYPE proxima_topology_replans_total counter
proxima_topology_replans_total{family="IPv4",namespace="shop",ports="http",reason="EndpointsChanged",service="web"} 1
proxima_topology_replans_total{family="IPv4",namespace="shop",ports="http",reason="LargeGap",service="web"} 0
proxima_topology_replans_total{family="IPv4",namespace="shop",ports="http",reason="LastingGap",service="web"} 0
# HELP proxima_topology_services Services with a topology mode, by mode and by the level that chose it: Service, Namespace, Mesh or ControlPlane.
# TYPE proxima_topology_services gauge
proxima_topology_services{level="Service",mode="Auto"} 1
proxima_topology_services{level="Service",mode="proxima.dev/Adaptive"} 1
`
		for _, unit := range r.c.entries[webKey].units {
			unit.replans = [4]uint64{1: 1} // how often it was planned while the rig began is left open
		}
		if err := testutil.CollectAndCompare(r.c, strings.NewReader(want),
			"proxima_topology_in_zone_ratio", "proxima_topology_replans_total", "proxima_topology_services"); err != nil {
			t.Error(err)
		}
		problems, err := testutil.CollectAndLint(r.c)
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
		// Series are of planned Services only, and go with them.
		if n := testutil.CollectAndCount(r.c, "proxima_topology_cost"); n != 1 {
			t.Errorf("%d series of cost", n)
		}
		r.annotateNamed("web", corev1.AnnotationTopologyMode, "Auto")
		if n := testutil.CollectAndCount(r.c, "proxima_topology_cost"); n != 0 {
			t.Errorf("%d series of cost without a plan", n)
		}
	})
}

// TestDashboard: the dashboards of all Services and of one show all metrics of plans.
func TestDashboard(t *testing.T) {
	shown := map[string]bool{}
	name := regexp.MustCompile(`proxima_topology_\w+`)
	for _, file := range []string{"overview.json", "service.json"} {
		body, err := os.ReadFile("../../deploy/grafana/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range name.FindAllString(string(body), -1) {
			shown[n] = true
		}
	}
	described := make(chan *prometheus.Desc, 32)
	New(Config{}).Describe(described)
	close(described)
	var there []string
	for d := range described {
		there = append(there, name.FindString(d.String()))
	}
	slices.Sort(there)
	if diff := cmp.Diff(there, slices.Sorted(maps.Keys(shown))); diff != "" {
		t.Errorf("metrics that there are, and those shown: %s", diff)
	}
}

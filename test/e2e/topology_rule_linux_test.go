package e2e

import (
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestTopologyRule: connections of real clients, through real agents, are divided by the
// weights of a rule; and stay so when the rule becomes one that cannot be used.
func TestTopologyRule(t *testing.T) {
	tr := startTraffic(t)
	rule := func(weight string) {
		t.Helper()
		tr.apply(fmt.Sprintf(`
apiVersion: mesh.proxima.dev/v1alpha1
kind: TopologyHeuristic
metadata: {name: thirds}
spec: {weight: %q}
`, weight))
	}
	rule(`zone.name == endpoint.zone ? 3 : 1`)
	tr.apply(`
apiVersion: v1
kind: Service
metadata:
  name: shop
  namespace: default
  annotations: {service.kubernetes.io/topology-mode: heuristic.proxima.dev/thirds}
spec:
  ports: [{name: http, port: 80}]
`)
	ip := tr.admin(testkit.Kubectl(t), "get", "service", "shop", "-o", "jsonpath={.spec.clusterIP}")
	tr.vip = net.JoinHostPort(strings.TrimSpace(ip), "80")
	counts := []int{2, 2, 0}
	tr.place(counts...)
	stop := tr.drive(60, 0, 0)
	defer stop()
	divided := func(what string) {
		t.Helper()
		x := tr.observe(6*time.Second, counts...)
		// Some 360 connections: three standard deviations are 7 points.
		if math.Abs(x.Load[0]-0.75) > 0.09 || x.Connections == 0 || x.Failed > 0 {
			t.Errorf("%s: 75 %% should stay in zone-a: %+v, failed %q", what, x, tr.failed)
		}
	}
	testkit.Eventually(t, "the condition says so", func() bool {
		return strings.Contains(tr.condition(), "weights are those of heuristic.proxima.dev/thirds")
	})
	testkit.Eventually(t, "agents follow", func() bool { return tr.observe(time.Second, counts...).Load[0] > 0.62 })
	divided("the rule's weights")
	if out := tr.admin(tr.bin, "explain", "service", "default/shop", "--from-zone", "zone-a"); !strings.Contains(out,
		"75.0 % stays, 25.0 % to zone-b") {
		t.Errorf("explain says\n%s", out)
	}
	rule(`zone.cpu - 5.0`)
	testkit.Eventually(t, "the condition says what is wrong", func() bool {
		return strings.Contains(tr.condition(), "not a number from 0 to 1000000") &&
			strings.Contains(tr.condition(), "the last good weights stay in effect")
	})
	divided("the weights before")
}

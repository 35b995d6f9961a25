package kube_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// nodeGrace is how long a node may be silent here; in Kubernetes 50 s.
const nodeGrace = 10 * time.Second

// TestZoneFailuresOfNodes: calls between a cluster and machines go on while a node of the cluster hangs, and others while the whole
// cluster loses power. What is called on the node fails until Kubernetes withdraws it, what another zone serves too until it is
// known that nothing answers.
func TestZoneFailuresOfNodes(t *testing.T) {
	need(t)
	b := newBenchOf(t, cluster.Config{Host: address, NodeGrace: nodeGrace})
	ns, addr := b.AddMachine(t, "m2")
	s := newSitesOf(t, b, nil)
	north := machine{zone: "north", node: "m2", dir: t.TempDir(), port: northPort, ns: ns, addr: addr, state: t.TempDir()}
	s.plane(north.dir, north.port, "--role=zone", "--zone=north", "--token-file="+s.token("north"), "--global="+s.globals())
	s.startMachine(north)
	shared := zoneObjects("shared", "selector: {app: web},")
	s.at(north.dir, shared, "apply", "-f", "-")
	s.kubectl(shared, "apply", "-f", "-")
	// What is on node third is on node ours, too.
	s.replica("shop", "web", "web-2", "ours")
	s.gatewayPod("ingress", 2, "ours")
	s.until("the machines know both gateways", func() bool {
		return len(strings.Fields(s.at(s.west, "", "get", "zoneingresses", "-l", "mesh.proxima.dev/zone=east", "-o", "name"))) == 2
	})
	s.wantBoth()
	s.hangNode("third")
	s.noPower(caller{ns.NS, addr.String() + ":10053"})
}

// readyIn are the ready endpoints of from-east in the cluster.
func (s *sites) readyIn() (n int) {
	s.t.Helper()
	all, err := s.client.DiscoveryV1().EndpointSlices("shop").List(s.t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=from-east"})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, slice := range all.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n++
			}
		}
	}
	return n
}

// hangNode stops all processes of a node, which has one of two Pods of a Service and one of two gateways. Its kernel takes connections,
// so that a caller waits for an answer that does not come. Calls that have nothing to do there do not fail.
func (s *sites) hangNode(node string) {
	s.t.Helper()
	var resume func()
	ways := s.between(false)
	ways[1].mayFail = true
	ways = append(ways, way{from: s.inEast(), names: []string{"from-east.shop.svc.cluster.local", "from-east_shop_svc_80.mesh"}, who: []string{"east"}, mayFail: true})
	s.withWays("a node hangs", 3*time.Second, time.Second, ways, func() {
		began := time.Now()
		resume = s.nodes[node].Hang(s.t)
		s.until("its Pod is withdrawn", func() bool { return s.readyIn() == 1 })
		withdrawn := time.Since(began)
		s.t.Logf("the Pod is withdrawn after %s", withdrawn.Round(time.Millisecond))
		// The controller manager looks five times within the grace period, and the Lease may just have been renewed.
		if limit := 2 * nodeGrace; withdrawn > limit || withdrawn < nodeGrace/2 {
			s.t.Errorf("the Pod is withdrawn after %s, not when its node has been silent for %s", withdrawn, nodeGrace)
		}
	})
	s.withCalls("the node goes on", 3*time.Second, func() {
		resume()
		s.until("its Pod is back", func() bool { return s.readyIn() == 2 })
	})
}

// noPower ends the cluster: its nodes, its API server with etcd, and the control plane there. Machines call each other as before,
// from and to north, too; they call in north what the cluster served besides it, and fail at once where the cluster alone served.
func (s *sites) noPower(north caller) {
	s.t.Helper()
	fromNorth := way{from: north, names: namesOf("from-west"), who: []string{"west"}}
	s.until("north calls west", func() bool { who, err := north.call(fromNorth.names[0]); return err == nil && who == "west" })
	answered := map[string]int{}
	s.until("both zones serve what is shared", func() bool {
		for range 20 {
			if who, err := s.inWest().call(namesOf("shared")[0]); err == nil {
				answered[who]++
			}
		}
		return answered["east"] > 0 && answered["north"] > 0
	})
	ways := []way{
		fromNorth,
		{from: s.inWest(), names: []string{"from-west.shop.svc.cluster.local"}, who: []string{"west"}},
		{from: s.inWest(), names: namesOf("shared"), who: []string{"east", "north"}, mayFail: true},
	}
	s.withWays("the cluster has no power", 20*time.Second, 2*time.Second, ways, func() {
		s.PowerOff(s.t)
		s.eastPlane.Kill()
	})
	for _, name := range namesOf("from-east") {
		began := time.Now()
		if who, err := s.inWest().call(name); err == nil || time.Since(began) > 2*time.Second {
			s.t.Errorf("%s is answered by %q, %v after %s", name, who, err, time.Since(began))
		}
	}
	s.until("global knows that the cluster is away", func() bool {
		out, err := s.run("", testkit.Binary(s.t), "zone", "list", "--kubeconfig", filepath.Join(s.global, "kubeconfig"))
		return err == nil && strings.Contains(fmt.Sprint(strings.Fields(out)), "east offline")
	})
}

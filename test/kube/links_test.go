package kube_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// cutLink drops packets in a namespace of the test, both ways, as a broken link does: nothing is answered and nothing reset. matches are
// expressions of nft, as "tcp dport 6444". heal ends it.
func (s *sites) cutLink(ns *kernelnetns.NS, matches ...string) (heal func()) {
	s.t.Helper()
	nft := func(script string) {
		s.t.Helper()
		err := ns.Do(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	script := "table inet cut {\n"
	for _, hook := range []string{"prerouting", "output"} {
		script += fmt.Sprintf("chain %s { type filter hook %s priority -350;\n", hook, hook)
		for _, m := range matches {
			script += m + " drop\n"
		}
		script += "}\n"
	}
	nft(script + "}\n")
	healed := false
	heal = func() {
		if !healed {
			healed = true
			nft("delete table inet cut\n")
		}
	}
	s.t.Cleanup(heal)
	return heal
}

// ports are expressions for the ports of a control plane.
func ports(first int) []string {
	return []string{fmt.Sprintf("tcp dport {%d, %d}", first, first+1), fmt.Sprintf("tcp sport {%d, %d}", first, first+1)}
}

func address4(a string) []string { return []string{"ip daddr " + a, "ip saddr " + a} }

// inside calls a Service of the own cluster.
func (s *sites) inside() error {
	who, err := s.inEast().call("from-east_shop_svc_80.mesh")
	if err == nil && who != "east" {
		err = fmt.Errorf("%q answers", who)
	}
	return err
}

// TestZoneLinks: packets are lost between a cluster, machines and global, where TestZoneFailures kills processes.
func TestZoneLinks(t *testing.T) {
	s := newSites(t)
	s.wantBoth()
	const away = 8 * time.Second
	outer, err := kernelnetns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	s.linkToGlobal(outer, away)
	heal := s.cutLink(s.machine.NS, ports(westPort)...)
	s.withCalls("the machines are cut from their control plane", away, func() {})
	heal()
	s.linkOfZones(away)
	s.egressPath()
}

// linkToGlobal is cut for both zones: each goes on inside, also with what is new, and catches up.
func (s *sites) linkToGlobal(outer *kernelnetns.NS, away time.Duration) {
	s.t.Helper()
	s.atGlobal("", "create", "namespace", "shop")
	heal := s.cutLink(outer, ports(globalPort)...)
	s.withCalls("the zones are cut from global", away, func() {
		s.at(s.west, zoneObjects("while-cut", "selector: {app: web},"), "apply", "-f", "-")
		s.shopPod("late", "third")
		s.kubectl(`
apiVersion: v1
kind: Service
metadata: {name: late, namespace: shop}
spec: {selector: {app: late}, ports: [{name: http, port: 80, targetPort: 8080}]}
`, "apply", "-f", "-")
		s.until("a Service that is new answers inside the cluster", func() bool {
			who, err := s.inEast().call("late_shop_svc_80.mesh")
			return err == nil && who == "east"
		})
	})
	imported := func() bool {
		_, err := s.run("", testkit.Kubectl(s.t), "--namespace", "shop", "get", "serviceimport", "while-cut")
		return err == nil
	}
	if imported() {
		s.t.Error("an export came to the cluster while global was cut off")
	}
	heal()
	s.until("the cluster has the export of the other zone", imported)
}

// linkOfZones: machines lose one of two gateways of the cluster, then both.
func (s *sites) linkOfZones(away time.Duration) {
	s.t.Helper()
	second := s.gatewayPod("ingress", 2, "ours")
	s.until("the machines know both gateways", func() bool {
		out := s.at(s.west, "", "get", "zoneingresses", "-l", "mesh.proxima.dev/zone=east", "-o", "name")
		return len(strings.Fields(out)) == 2
	})
	s.wantBoth()
	// They are advertised by the addresses of their nodes, and a node port.
	first, other := s.nodes[s.ingress.Spec.NodeName].Addr, s.nodes[second.Spec.NodeName].Addr
	healOne := s.cutLink(s.machine.NS, address4(first)...)
	s.withCallsBut("packets to one of two gateways are lost", away, 2*time.Second, func() {})
	healOne()
	healBoth := s.cutLink(s.machine.NS, append(address4(first), address4(other)...)...)
	s.until("calls that only the cut-off zone serves fail fast", func() bool {
		began := time.Now()
		_, err := s.inWest().call(namesOf("from-east")[0])
		return err != nil && time.Since(began) < 2*time.Second
	})
	if err := s.inside(); err != nil {
		s.t.Errorf("inside the cluster: %v", err)
	}
	healBoth()
	s.wantBoth()
}

// egressPath: where the mesh routes by egresses, calls to other zones leave the cluster by them alone; without one they fail at once.
func (s *sites) egressPath() {
	s.t.Helper()
	s.install("--set", "egress.replicas=1")
	egress := s.gatewayPod("egress", 1, "third")
	s.until("the object of the egress is there", func() bool {
		out, err := s.run("", testkit.Kubectl(s.t), "get", "zoneegresses", "-l", "mesh.proxima.dev/managed-by=gateway", "-o", "name")
		return err == nil && strings.Contains(out, egress.Name)
	})
	s.atGlobal(strings.Replace(defaultMesh, "spec: {", "spec: {routing: {zoneEgress: true}, ", 1), "apply", "-f", "-")
	// The node of the caller does not reach the other zone itself.
	heal := s.cutLink(s.nodes["ours"].NS.NS, address4(s.machineAddr.String())...)
	s.until("calls leave by the egress", func() bool {
		who, err := s.inEast().call(namesOf("from-west")[0])
		return err == nil && who == "west"
	})
	heal()
	s.nodes["third"].KillPod(s.t, egress.UID)
	s.kubectl("", "--namespace", manifests.Namespace, "delete", "pod", egress.Name, "--wait=false")
	failed := 0
	s.until("calls without an egress fail at once", func() bool {
		began := time.Now()
		_, err := s.inEast().call(namesOf("from-west")[0])
		if err != nil && time.Since(began) < time.Second {
			failed++
		}
		return failed >= 5
	})
	for range 20 {
		if who, err := s.inEast().call(namesOf("from-west")[1]); err == nil {
			s.t.Errorf("%q answers past the egress", who)
		}
	}
	if err := s.inside(); err != nil {
		s.t.Errorf("inside the cluster: %v", err)
	}
}

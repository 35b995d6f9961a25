package lab_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestKernelModes: in the kernel's modes every zone is served, one that is cut
// off serves itself, and the death of agents interrupts no client.
func TestKernelModes(t *testing.T) {
	for _, c := range []struct {
		mode, chosen string
		zones        int
	}{{"auto", "nftables", 2}, {"iptables", "iptables", 1}, {"ebpf", "ebpf", 1}} {
		t.Run(c.mode, func(t *testing.T) {
			if c.mode == ebpf.Name {
				needsLayer(t)
			}
			before := tables(t)
			l := start(t, lab.Spec{Zones: c.zones, Nodes: 2, Mode: c.mode})
			testkit.Eventually(t, "everything is well, and each zone is served by its own", func() bool {
				s := l.Status(t.Context())
				return well(s) && modes(s) == c.chosen && near(s)
			})
			for _, node := range l.Nodes() { // nodes are clients, too, also of themselves
				for _, vip := range []string{l.VIP(), l.VIP6()} {
					if vip != "" {
						testkit.Eventually(t, "node "+node+" reaches "+vip, func() bool { return reaches(t, node, vip) })
					}
				}
			}
			if c.mode == ebpf.Name {
				shellIsOfNode(t)
			}
			traceTells(t, l)
			if c.zones > 1 {
				weightsInZone(t, l)
				cutHeal(t, l)
			}
			if c.mode != ebpf.Name || os.Getenv("PROXIMA_SOAK") != "" { // else by the tests of the layer
				killAgents(t, l)
			}
			if got := tables(t); got != before {
				t.Errorf("this machine's own tables changed from\n%s\nto\n%s", before, got)
			}
		})
	}
}

// needsLayer skips where the kernel, or this machine, has no eBPF layer.
func needsLayer(t *testing.T) {
	t.Helper()
	if err := ebpf.Check(ebpf.Options{}); err != nil {
		t.Skip(err)
	}
	if _, err := cgroup.Root(); err != nil {
		t.Skip(err)
	}
}

// shellIsOfNode: what "proxima lab exec" starts is in the cgroup of the node, whose sockets the layer translates.
func shellIsOfNode(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), testkit.Binary(t), "lab", "exec", "--lab", labName(), "a-1", "cat", "/proc/self/cgroup").CombinedOutput()
	if err != nil || !strings.Contains(string(out)+"\n", "0::/pxlab-"+labName()+"-a-1\n") {
		t.Errorf("lab exec: %v: cgroups %s, want that of the node", err, out)
	}
}

// traceTells where the endpoints and the client are, from the agent's own view.
func traceTells(t *testing.T, l *lab.Lab) {
	t.Helper()
	ns, err := netns.Open("pxlab-" + labName() + "-a-1")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	for _, vip := range []string{l.VIP(), l.VIP6()} {
		if vip == "" { // this machine has no IPv6
			continue
		}
		from := "10.200.1.12"
		if vip == l.VIP6() {
			from = "fd00:200:1::12"
		}
		out, err := ns.Output(t.Context(), testkit.Binary(t), "trace", vip, "--from", from, "-o", "json", "--data-dir", l.DataDir("a-1"))
		if err != nil {
			t.Fatal(err)
		}
		var trace diag.Trace
		if err := json.Unmarshal(out, &trace); err != nil {
			t.Fatal(err)
		}
		nodes := map[string]bool{}
		for _, e := range trace.Endpoints {
			nodes[e.Node] = true
			if e.Zone != "zone-a" {
				t.Errorf("trace %s: endpoint %+v, want one in zone-a", vip, e)
			}
		}
		if !nodes["a-1"] || !nodes["a-2"] {
			t.Errorf("trace %s: endpoints %+v, want one on a-1 and one on a-2", vip, trace.Endpoints)
		}
		if want := (diag.Source{Node: "a-2", Zone: "zone-a"}); trace.Source != want {
			t.Errorf("trace %s from %s: source %+v, want %+v", vip, from, trace.Source, want)
		}
	}
}

// weightsInZone: with both names of the distribution that keeps connections in their zone,
// weights hold among its endpoints, whatever those of other zones have.
func weightsInZone(t *testing.T, l *lab.Lab) {
	t.Helper()
	client, err := l.Client("")
	if err != nil {
		t.Fatal(err)
	}
	edit := func(d *resource.Descriptor, name string, change func(resource.Object)) {
		t.Helper()
		object, err := client.Get(t.Context(), d, resource.Key{Namespace: "default", Name: name})
		if err == nil {
			change(object)
			_, err = client.Update(t.Context(), d, object)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	weigh := func(weights map[string]*int32) {
		t.Helper()
		for name, w := range weights {
			edit(kind.Dataplane, name, func(o resource.Object) { o.(*meshv1alpha1.Dataplane).Spec.Weight = w })
		}
	}
	distribute := func(name string) {
		t.Helper()
		edit(kind.Service, "web", func(o resource.Object) { o.(*corev1.Service).Spec.TrafficDistribution = &name })
	}
	const n = 300
	within := .01 + 3*math.Sqrt(.05*.95/n)
	for distribution, light := range map[string]string{
		corev1.ServiceTrafficDistributionPreferSameZone: "web-a-1", corev1.ServiceTrafficDistributionPreferClose: "web-a-2",
	} {
		distribute(distribution)
		weights := map[string]*int32{"web-a-1": new(int32(95)), "web-a-2": new(int32(95)), "web-b-1": new(int32(1000)), "web-b-2": new(int32(1000))}
		weights[light] = new(int32(5))
		weigh(weights)
		got := map[string]int{}
		testkit.Eventually(t, distribution+": 5 % of the connections of zone-a go to "+light+", and none to zone-b", func() bool {
			clear(got)
			for range n {
				who, err := l.Ask(t.Context(), "zone-a")
				if err != nil {
					t.Fatal(err)
				}
				got[who]++
			}
			return got["web-a-1"]+got["web-a-2"] == n && math.Abs(float64(got[light])/n-.05) <= within
		})
		t.Logf("%s: %v", distribution, got)
	}
	distribute(corev1.ServiceTrafficDistributionPreferSameZone)
	weigh(map[string]*int32{"web-a-1": nil, "web-a-2": nil, "web-b-1": nil, "web-b-2": nil})
}

func cutHeal(t *testing.T, l *lab.Lab) {
	t.Helper()
	if err := l.Cut("zone-b"); err != nil {
		t.Fatal(err)
	}
	if reaches(t, "b-1", "10.200.0.2:6443") {
		t.Error("what is cut off reaches the control plane")
	}
	for _, z := range l.Status(t.Context()).Zones {
		for family, by := range map[string]*lab.Served{"IPv4": &z.Served, "IPv6": z.IPv6} {
			if by != nil && by.Failed > 0 {
				t.Errorf("%s is not served by %s while zone-b is cut off: %s", z.Name, family, by.Error)
			}
		}
	}
	if err := l.Heal(t.Context(), "zone-b"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "everything is well again", func() bool { return well(l.Status(t.Context())) })
}

// killAgents of all nodes, while every zone sends requests without a pause.
func killAgents(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	zones := l.Status(ctx).Zones
	asked := make([]int, len(zones))
	var asking sync.WaitGroup
	for i, z := range zones {
		asking.Go(func() {
			for ctx.Err() == nil {
				if _, err := l.Ask(ctx, z.Name); err != nil && ctx.Err() == nil {
					t.Errorf("%s, question %d, while agents die: %v", z.Name, asked[i], err)
					return
				}
				asked[i]++
			}
		})
	}
	for _, n := range l.Nodes() {
		if err := l.Kill(ctx, n); err != nil {
			t.Error(err)
		}
	}
	s := l.Status(ctx) // sends twelve more requests, with no agent alive
	cancel()
	asking.Wait()
	for i, z := range s.Zones {
		if z.Failed > 0 || asked[i] == 0 || (z.IPv6 != nil && z.IPv6.Failed > 0) {
			t.Errorf("%s with its agents dead: %+v; %d questions meanwhile", z.Name, z, asked[i])
		}
		for _, n := range z.Nodes {
			if n.Agent != "dead" {
				t.Errorf("the agent of %s is %s", n.Name, n.Agent)
			}
		}
	}
	t.Logf("questions while agents died: %v", asked)
	if err := l.Heal(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "everything is well with new agents", func() bool { return well(l.Status(t.Context())) })
}

// modes of all agents, where it is one and the same.
func modes(s *lab.Status) string {
	mode := s.Zones[0].Nodes[0].Mode
	for _, z := range s.Zones {
		for _, n := range z.Nodes {
			if n.Mode != mode {
				return "different"
			}
		}
	}
	return mode
}

// near: every zone is served by each of its own workloads, and by no other.
func near(s *lab.Status) bool {
	for _, z := range s.Zones {
		for _, by := range []*lab.Served{&z.Served, z.IPv6} {
			if by == nil { // this machine has no IPv6
				continue
			}
			if len(by.Answered) != len(z.Nodes) {
				return false
			}
			for who := range by.Answered {
				if !strings.HasPrefix(who, "web-"+strings.TrimPrefix(z.Name, "zone-")+"-") {
					return false
				}
			}
		}
	}
	return true
}

// tables of nftables in the namespace that the test runs in; iptables has its
// rules there, too.
func tables(t *testing.T) string {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		return "" // no tool to read them
	}
	cmd := exec.CommandContext(t.Context(), nft, "list", "tables")
	cmd.Env = os.Environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

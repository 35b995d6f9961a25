package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// kernelModes program the kernel; the rest of the agent's life is the same.
var kernelModes = []string{"nftables", "iptables"}

// ebpfMode is a layer above nftables, with which it is tested where the layer makes a difference.
const ebpfMode = "ebpf"

// soak chooses between a quick look and the full figure.
func soak(quick, full int) int {
	if os.Getenv("PROXIMA_SOAK") == "1" {
		return full
	}
	return quick
}

// kernelNode is an agent whose process is started by mode, again and again.
type kernelNode struct {
	*node
	// cgroup whose sockets mode ebpf translates; empty: that mode is not run.
	cgroup string
}

func (p *plane) newKernelNode(name string) *kernelNode {
	p.t.Helper()
	n := &node{plane: p, name: name, zone: "zone-a", dir: p.t.TempDir(), health: testkit.FreePort(p.t), metrics: testkit.FreePort(p.t)}
	n.token = filepath.Join(n.dir, "token")
	if err := os.WriteFile(n.token, []byte(p.proxima("token", "create", "--kind", "node", "--name", name)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return &kernelNode{node: n}
}

// run starts the agent in a mode and waits until it serves.
func (n *kernelNode) run(mode string) {
	n.plane.t.Helper()
	args := []string{
		"node", "--server", n.plane.apiAddress(),
		"--token-file", n.token, "--node-name", n.name, "--zone", n.zone, "--mode", mode, "--data-dir", n.dir,
		"--health-port", strconv.Itoa(n.health), "--metrics-port", strconv.Itoa(n.metrics), "--dns-port", "0",
	}
	if mode == ebpfMode {
		args = append(args, "--cgroup", n.cgroup)
	}
	n.process = testkit.Start(n.plane.t, nil, testkit.Binary(n.plane.t), args...)
	if line := n.process.FirstLine(); !strings.Contains(line, "mode="+mode) {
		n.plane.t.Fatalf("the agent says %q, want mode %s", line, mode)
	}
}

// startKernel lays the network and starts a control plane in it with services of
// four backends each.
func startKernel(t *testing.T, services int) (*kernelNet, *plane, *cluster) {
	t.Helper()
	network := layKernelNet(t)
	p := startPlaneWith(t, kernelServices)
	c := p.cluster()
	for s := range services {
		c.addService(s)
		c.mustPut(sliceOf(s, 0, 1, 2, 3))
	}
	return network, p, c
}

func at(vip string) string { return net.JoinHostPort(vip, strconv.Itoa(servicePort)) }

// serves waits until all backends of a service have answered, and no others.
func (n *kernelNet) serves(t testing.TB, s int, backends ...int) {
	t.Helper()
	want := map[string]bool{}
	for _, i := range backends {
		want[backendAt(s, i)] = true
	}
	testkit.Eventually(t, fmt.Sprintf("answers of service %d by %v", s, backends), func() bool {
		heard := map[string]bool{}
		for range 50 {
			c, name, err := ask(t.Context(), n.here, at(vipAt(s)))
			if err != nil || !want[name] {
				if err == nil {
					_ = c.Close()
				}
				return false
			}
			_ = c.Close()
			if heard[name] = true; len(heard) == len(want) {
				return true
			}
		}
		return false
	})
}

// kernelState is all that an agent of any mode could leave in this namespace.
func kernelState(t testing.TB) string {
	t.Helper()
	var out strings.Builder
	for _, args := range [][]string{
		{"nft", "list", "ruleset"}, {"iptables-nft-save"}, {"ip6tables-nft-save"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"},
		{"ip", "rule"}, {"ip", "route", "show", "table", "all"},
	} {
		data, err := exec.CommandContext(t.Context(), args[0], args[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		fmt.Fprintf(&out, "--- %s\n", strings.Join(args, " "))
		for line := range strings.Lines(string(data)) {
			// Comments have times, and addresses of a link come a moment after it.
			if !strings.HasPrefix(line, "#") && !strings.Contains(line, "fe80:") {
				out.WriteString(counters.ReplaceAllString(line, "[0:0]"))
			}
		}
	}
	sets, err := netlink.IpsetListAll()
	if err != nil {
		t.Fatalf("list sets: %v", err)
	}
	for _, s := range sets {
		fmt.Fprintf(&out, "--- set %s, %s, %d entries\n", s.SetName, s.TypeName, len(s.Entries))
	}
	return out.String()
}

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

// cleanup runs the command that removes what agents left.
func (n *kernelNode) cleanup() {
	n.plane.t.Helper()
	n.plane.proxima("node", "--cleanup")
}

// touchTables has iptables make its own chains, which stay without rules, as on
// any machine where it was ever used.
func touchTables(t testing.TB) {
	t.Helper()
	for _, program := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		for _, chain := range []string{"nat PREROUTING", "nat INPUT", "nat OUTPUT", "nat POSTROUTING", "filter INPUT", "filter FORWARD", "filter OUTPUT"} {
			table, name, _ := strings.Cut(chain, " ")
			for _, action := range []string{"-A", "-D"} {
				if out, err := exec.CommandContext(t.Context(), program, "-t", table, action, name, "-j", "ACCEPT").CombinedOutput(); err != nil {
					t.Fatalf("%s %s %s: %v: %s", program, action, chain, err, out)
				}
			}
		}
	}
}

// TestKernelAgentKilled: an agent is killed repeatedly under traffic, without
// failed connections; its rules can be removed completely.
func TestKernelAgentKilled(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	network, p, c := startKernel(t, 3)
	touchTables(t)
	n := p.newKernelNode("edge-1")
	before := kernelState(t)
	for _, mode := range kernelModes {
		t.Run(mode, func(t *testing.T) {
			n.run(mode)
			network.serves(t, 0, 0, 1, 2, 3)
			l := network.startLoad(t, at(vipAt(0)), at(vipAt(1)))
			for i := range soak(10, 100) {
				n.process.Kill()
				// What changed while there was no agent is in place when it serves again.
				want := []int{i % 4, (i + 1) % 4}
				c.mustPut(sliceOf(2, want...))
				n.run(mode)
				network.serves(t, 2, want...)
			}
			l.end(t)
			n.process.Kill()
			if kernelState(t) == before {
				t.Error("a killed agent left nothing: this test tests nothing")
			}
			n.cleanup()
			if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(kernelState(t), "\n")); diff != "" {
				t.Errorf("left by the agent (+), or taken (-):\n%s", diff)
			}
		})
	}
}

// TestKernelModeSwitch: the mode is changed on a machine that carries traffic, from each to each other, without failed or
// broken connections.
func TestKernelModeSwitch(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	group := joinCgroup(t)
	network, p, _ := startKernel(t, 2)
	n := p.newKernelNode("edge-1")
	n.cgroup = group
	n.run("nftables")
	network.serves(t, 0, 0, 1, 2, 3)
	l := network.startLoad(t, at(vipAt(0)), at(vipAt(1)))
	for _, mode := range []string{"iptables", "nftables", ebpfMode, "iptables", ebpfMode, "nftables"} {
		n.process.Stop()
		n.run(mode)
		if mode == ebpfMode {
			n.translates(t)
		}
		testkit.Eventually(t, "the rules of the other mode go", func() bool {
			state := kernelState(t)
			nft, ipt := strings.Contains(state, "table inet proxima") ||
				strings.Contains(state, "table ip proxima"), strings.Contains(
				state,
				"PROXIMA",
			)
			return nft == (mode != "iptables") && ipt == (mode == "iptables") && pinned(t) == (mode == ebpfMode)
		})
		made, _ := l.count()
		testkit.Eventually(t, "traffic goes on", func() bool { now, _ := l.count(); return now > made+50 })
	}
	l.end(t)
}

// TestKernelToUserspace: a kernel mode is left for the userspace mode on a machine
// that carries traffic: open connections continue by the kernel's conntrack entries.
func TestKernelToUserspace(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	group := joinCgroup(t)
	network, p, _ := startKernel(t, 2)
	touchTables(t)
	n := p.newKernelNode("edge-1")
	n.cgroup = group
	before := kernelState(t)
	for _, mode := range append(kernelModes, ebpfMode) {
		t.Run(mode, func(t *testing.T) {
			n.run(mode)
			network.serves(t, 0, 0, 1, 2, 3)
			end := network.holdSessions(t, at(vipAt(0)), at(vipAt(1)))
			n.process.Stop()
			n.run("userspace")
			testkit.Eventually(t, "the kernel sends no connection to a backend any more", func() bool { return len(backendsInKernel(t)) == 0 })
			network.serves(t, 0, 0, 1, 2, 3) // who is new is carried by the agent
			end()
			n.process.Stop()
			n.cleanup()
			if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(kernelState(t), "\n")); diff != "" {
				t.Errorf("left by the agent (+), or taken (-):\n%s", diff)
			}
		})
	}
}

// holdSessions uses a connection of the machine itself and one of the pod to each
// address, until end, which reports those that broke.
func (n *kernelNet) holdSessions(t *testing.T, addrs ...string) (end func()) {
	t.Helper()
	l := &load{stopping: make(chan struct{})}
	stop := sync.OnceFunc(func() { close(l.stopping); l.running.Wait() })
	t.Cleanup(stop)
	for _, a := range addrs {
		for _, from := range []*core.NS{n.here, n.pod.NS} {
			established := make(chan struct{})
			l.running.Go(func() { l.hold(from, a, established) })
			select {
			case <-established:
			case <-time.After(testkit.Timeout):
				t.Fatalf("no session from %s to %s", from.Name(), a)
			}
		}
	}
	return func() {
		t.Helper()
		was := l.exchanges()
		testkit.Eventually(t, "the sessions go on", func() bool { _, failed := l.count(); return failed > 0 || l.exchanges() > was+50 })
		stop()
		if len(l.failures) > 0 {
			t.Errorf("%d sessions broke:\n%s", len(l.failures), strings.Join(l.failures, "\n"))
		}
	}
}

func (l *load) exchanges() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.echoed
}

var backendText = regexp.MustCompile(`\b10\.200\.\d+\.\d+\b`)

// backendsInKernel are those that rules send traffic to.
func backendsInKernel(t testing.TB) []string {
	t.Helper()
	found := backendText.FindAllString(rulesOnly(kernelState(t)), -1)
	slices.Sort(found)
	return slices.Compact(found)
}

func rulesOnly(state string) string {
	before, _, _ := strings.Cut(state, "--- ip rule")
	return before
}

// TestKernelChurn: endpoints change by the thousand under traffic. No connection
// fails, as the backends that leave go on serving, and the kernel ends up with
// exactly what the API says.
func TestKernelChurn(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	const services, writers = 20, 4
	network, p, c := startKernel(t, services)
	n := p.newKernelNode("edge-1")
	for _, mode := range kernelModes {
		t.Run(mode, func(t *testing.T) {
			n.run(mode)
			network.serves(t, services-1, 0, 1, 2, 3)
			l := network.startLoad(t, at(vipAt(0)), at(vipAt(1)))
			changes := soak(1000, 10_000)
			pace := time.Duration(soak(6, 60)) * time.Second / time.Duration(changes)
			began := time.Now()
			tick := time.NewTicker(pace)
			defer tick.Stop()
			work := make(chan int)
			var running sync.WaitGroup
			for range writers {
				running.Go(func() {
					for i := range work {
						// One leaves and one comes; a service never has none.
						if err := c.put(t.Context(), sliceOf(i%services, churned(i/services)...)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for i := range changes {
				<-tick.C
				work <- i
			}
			close(work)
			running.Wait()
			t.Logf("%d changes in %s", changes, time.Since(began).Round(time.Millisecond))
			var want []string
			for s := range services { // writers of one service may have overtaken each other
				c.mustPut(sliceOf(s, churned(s)...))
				for _, i := range churned(s) {
					want = append(want, backendAt(s, i))
				}
			}
			slices.Sort(want)
			testkit.Eventually(t, "the kernel has what the API says", func() bool { return slices.Equal(backendsInKernel(t), want) })
			l.end(t)
			for _, s := range []int{0, 7, services - 1} {
				network.serves(t, s, churned(s)...)
			}
			n.process.Kill()
			n.cleanup()
			for s := range services {
				c.mustPut(sliceOf(s, 0, 1, 2, 3))
			}
		})
	}
}

// churned are the backends of a service after its i-th change: two to five.
func churned(i int) []int {
	var out []int
	for k := range 2 + i%4 {
		out = append(out, (i+k)%8)
	}
	return out
}

// TestKernelFlushed: another program removes all rules. The agent detects it.
func TestKernelFlushed(t *testing.T) {
	if !insideNamespace(t, false) {
		return
	}
	network, p, _ := startKernel(t, 2)
	n := p.newKernelNode("edge-1")
	for _, c := range []struct {
		mode  string
		flush []string
	}{
		{"nftables", []string{"nft", "flush", "ruleset"}},
		{"iptables", []string{"iptables", "-t", "nat", "-F"}},
		{"iptables", []string{"nft", "flush", "ruleset"}},
	} {
		t.Run(c.mode+" "+strings.Join(c.flush, " "), func(t *testing.T) {
			n.run(c.mode)
			network.serves(t, 0, 0, 1, 2, 3)
			for range 5 {
				if out, err := exec.CommandContext(t.Context(), c.flush[0], c.flush[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				// The goal is one second; on an overloaded machine the time is
				// logged, not checked.
				t.Logf("served again after %s", network.back(t, at(vipAt(0))).Round(time.Millisecond))
				network.serves(t, 1, 0, 1, 2, 3)
			}
			n.process.Kill()
			n.cleanup()
		})
	}
}

// back is how long it takes until a connection is answered again.
func (n *kernelNet) back(t testing.TB, to string) time.Duration {
	t.Helper()
	began, timeout := time.Now(), 50*time.Millisecond
	for {
		// A packet that was lost while there were no rules is not waited for; the
		// timeout grows each time, for a slow machine.
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		c, _, err := ask(ctx, n.here, to)
		cancel()
		timeout += timeout / 2
		if err == nil {
			_ = c.Close()
			return time.Since(began)
		}
		if time.Since(began) > testkit.Timeout {
			t.Fatalf("%s is not served again: %v", to, err)
		}
	}
}

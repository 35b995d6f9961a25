package lab_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestEgressDown: two zones whose mesh lets traffic leave by the egress alone. While all
// egresses of a zone are down its calls to the other zone fail at once, and nothing takes
// another way; the zone inside goes on.
func TestEgressDown(t *testing.T) {
	soak(t)
	l := &zonesLab{Lab: start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "auto", Global: true, Egress: true}), t: t}
	l.offer("only-b", "zone-b")
	l.reached(aOnlyB)
	bypassed := l.bypass(t, "a-1", "10.200.2.")
	w := l.load(aLocal, bLocal, aOnlyB)
	w.progress(aOnlyB, 100)
	down := time.Now()
	l.do(l.Kill(t.Context(), "egress-a"))
	w.progress(aOnlyB, 100)
	w.progress(aLocal, 100)
	healed := time.Now()
	if s := l.Status(t.Context()); s.Zones[0].Site.Egress != "dead" || s.Zones[1].Site.Egress != "running" {
		t.Errorf("egresses: %s and %s", s.Zones[0].Site.Egress, s.Zones[1].Site.Egress)
	}
	l.do(l.Heal(t.Context(), "egress-a"))
	w.answered(aOnlyB)
	l.equal("zone-a", "zone-b")
	w.stop()
	w.worked(time.Time{}, aLocal, bLocal)
	w.refused(down.Add(grace), healed, time.Second, aOnlyB)
	if before := w.of(aOnlyB, time.Time{}, down.Add(-patience)); slices.ContainsFunc(before, func(r request) bool { return r.err != nil }) {
		t.Error("requests failed while the egress was up")
	}
	l.resetIsSaid("a-1")
	if seen := bypassed(); len(seen) > 0 {
		t.Errorf("the node had connections of its own to the other zone: %v", seen)
	}
}

// bypass watches the TCP connections of a machine until the function that it returns is called,
// which returns those to addresses that begin so, in whatever state.
func (l *zonesLab) bypass(t *testing.T, machine, to string) func() []string {
	t.Helper()
	var want string // as in proc_net(5): the address in hex, in the machine's order
	for part := range strings.SplitSeq(strings.TrimSuffix(to, "."), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatal(err)
		}
		want = fmt.Sprintf("%02X", n) + want
	}
	ns := inNamespace(t, machine)
	end, done := make(chan struct{}), make(chan struct{})
	var seen []string
	looks := 0
	go func() {
		defer close(done)
		defer ns.Close()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var table []byte
			if err := ns.Do(func() (err error) {
				table, err = os.ReadFile("/proc/thread-self/net/tcp")
				return err
			}); err == nil {
				looks++
				for line := range strings.Lines(string(table)) {
					if f := strings.Fields(line); len(f) > 2 && strings.HasSuffix(strings.Split(f[2], ":")[0], want) {
						seen = append(seen, line)
					}
				}
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() []string {
		close(end)
		<-done
		if looks < 10 {
			t.Errorf("only %d looks at the connections of %s", looks, machine)
		}
		return seen
	}
}

// TestStandaloneOffline: the only control plane is offline. Traffic goes on, also over a restart
// of the agents; nothing joins, which is said; afterwards all is as before.
func TestStandaloneOffline(t *testing.T) {
	soak(t)
	l := start(t, lab.Spec{Zones: 2, Nodes: 2, Mode: "auto"})
	testkit.Eventually(t, "everything is well", func() bool { return well(l.Status(t.Context())) })
	m := &mesh{t: t, l: l, vip: hostOf(l.VIP()) + ":8080"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	asked, failed := [2]int{}, [2][]string{}
	for i, client := range []string{"client-a", "client-b"} {
		asking.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for ctx.Err() == nil {
				_, err := m.ask(client, patience)
				if asked[i]++; err != nil {
					failed[i] = append(failed[i], err.Error())
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// An agent writes its state to disk twice a second at most: one that is killed before has an
	// older one.
	testkit.Eventually(t, "the agents' states on disk are the newest", func() bool {
		return !slices.ContainsFunc(l.Nodes(), func(n string) bool {
			info, err := os.Stat(filepath.Join(l.DataDir(n), "node", "view"))
			return err != nil || time.Since(info.ModTime()) < 2*time.Second
		})
	})
	do(l.Kill(t.Context(), "control"))
	for _, n := range l.Nodes() {
		do(l.Kill(t.Context(), n))
	}
	for _, n := range l.Nodes() {
		do(l.Heal(t.Context(), n))
	}
	for _, z := range l.Status(t.Context()).Zones {
		for _, n := range z.Nodes {
			if n.Agent != "running" || len(n.Names) == 0 || n.Ready != "?" {
				t.Errorf("without a control plane node %s is %+v", n.Name, n)
			}
		}
	}
	ns := inNamespace(t, "a-1")
	defer ns.Close()
	if out, err := ns.Output(t.Context(), testkit.Binary(t), "get", "nodes", "--kubeconfig", kubeconfig()); err == nil || !strings.Contains(err.Error(), "nothing listens") {
		t.Errorf("a request to a control plane that is dead: %s, %v", out, err)
	}
	do(l.Heal(t.Context(), "control"))
	testkit.Eventually(t, "everything is as before", func() bool { return well(l.Status(t.Context())) && near(l.Status(t.Context())) })
	cancel()
	asking.Wait()
	for i := range asked {
		if len(failed[i]) > 0 || asked[i] < 50 {
			t.Errorf("client %d: %d requests, %d failed: %v", i, asked[i], len(failed[i]), failed[i][:min(3, len(failed[i]))])
		}
	}
	t.Logf("%v requests, %d and %d failed", asked, len(failed[0]), len(failed[1]))
}

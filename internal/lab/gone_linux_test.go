package lab_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// everywhere is a Service that all zones share, without any preference.
const everywhere = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "everywhere"}, "spec": {
  "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}`

// TestMachinesGone: in a kernel mode, where a connection to a dead machine hangs, under
// traffic. A machine that is stopped (SIGSTOP) and one that loses power get no new
// connection after 5 s; a zone that loses power is out of the Service after its leases and
// 10 s. Each comes back by itself. PROXIMA_SOAK=1: many times.
func TestMachinesGone(t *testing.T) {
	const lease = 10 * time.Second
	l := start(t, lab.Spec{Zones: 3, Nodes: 2, Mode: "nftables", IPv4Only: true, Lease: lease})
	m := &mesh{t: t, l: l, vip: createEverywhere(t)}
	testkit.Eventually(t, "all six answer", func() bool {
		s := m.status()
		return len(m.answering("client-a", 40)) == 6 && len(s.ControlPlane.Suspects)+len(s.ControlPlane.Unreachable) == 0
	})
	rounds := 1
	if os.Getenv("PROXIMA_SOAK") != "" {
		rounds = 20
	}
	var took []time.Duration
	for i := range rounds {
		for _, c := range []struct {
			what, node string
			do         func(string) error
		}{
			{"is stopped", []string{"a-2", "c-2"}[i%2], l.Stop},
			{"loses power", []string{"b-2", "b-1"}[i%2], func(name string) error { return l.PowerOff(t.Context(), name) }},
		} {
			took = append(took, m.goneWithin(c.what, c.node, c.do))
		}
	}
	slices.Sort(took)
	t.Logf("from the failure to the last connection that hung: %v", took)
	if last := took[len(took)*99/100]; last > 5*time.Second {
		t.Errorf("new connections to dead machines %s after they died, want 5 s at most (p99)", last)
	}
	m.zoneGone(lease)
}

// mesh is what the test has of a lab.
type mesh struct {
	t   *testing.T
	l   *lab.Lab
	vip string
}

func inNamespace(t *testing.T, where string) *netns.NS {
	t.Helper()
	ns, err := netns.Open("pxlab-" + labName() + "-" + where)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func createEverywhere(t *testing.T) (vip string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "service.json")
	if err := os.WriteFile(file, []byte(everywhere), 0o600); err != nil {
		t.Fatal(err)
	}
	ns := inNamespace(t, "control")
	defer ns.Close()
	run := func(args ...string) []byte {
		out, err := ns.Output(t.Context(), testkit.Binary(t), append(args, "--kubeconfig", kubeconfig())...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	run("apply", "-f", file)
	var service struct{ Spec struct{ ClusterIP string } }
	if err := json.Unmarshal(run("get", "services", "everywhere", "-o", "json"), &service); err != nil {
		t.Fatal(err)
	}
	return service.Spec.ClusterIP
}

func kubeconfig() string {
	return filepath.Join("/run/proxima/lab", labName(), "control", "kubeconfig")
}

// overview is the output of "proxima status".
type overview struct {
	ControlPlane struct {
		Suspects []struct {
			Node      string
			Witnesses []string
		}
		Unreachable []string
		Leases      struct {
			Held   bool
			Reason string
		}
	}
	Nodes []struct{ Name, Ready string }
}

func (m *mesh) status() (o overview) {
	ns := inNamespace(m.t, "control")
	defer ns.Close()
	out, err := ns.Output(m.t.Context(), testkit.Binary(m.t), "status", "-o", "json", "--data-dir", filepath.Dir(kubeconfig()), "--kubeconfig", kubeconfig())
	if err == nil {
		err = json.Unmarshal(out, &o)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return o
}

// ask sends a request to the Service from a zone's client, by a connection of its own.
func (m *mesh) ask(client string, timeout time.Duration) (string, error) {
	ns, err := netns.Open("pxlab-" + labName() + "-" + client)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	transport := &http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.vip+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var answer struct{ Name string }
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer.Name, err
}

// answering are the workloads that answer some connections.
func (m *mesh) answering(client string, connections int) map[string]int {
	out := map[string]int{}
	for range connections {
		if name, err := m.ask(client, time.Second); err == nil {
			out[name]++
		}
	}
	return out
}

// hung is a connection without an answer for so long: a machine that lives answers sooner,
// however busy the computer is.
const hung = 4 * time.Second

// traffic from the clients of zones until stop, which returns when the last connection
// began that was not answered; zero: all were.
func (m *mesh) traffic(clients ...string) (stop func() time.Time) {
	const workers = 12 // most of them wait while connections hang
	end := make(chan struct{})
	var mu sync.Mutex
	var last time.Time
	asked, start, failed := 0, time.Now(), map[time.Duration]int{}
	var asking sync.WaitGroup
	for _, client := range clients {
		for range workers {
			asking.Go(func() {
				for {
					select {
					case <-end:
						return
					case <-time.After(30 * time.Millisecond):
					}
					began := time.Now()
					_, err := m.ask(client, hung)
					mu.Lock()
					asked++
					if err != nil {
						failed[began.Sub(start).Truncate(time.Second)]++
						if began.After(last) {
							last = began
						}
					}
					mu.Unlock()
				}
			})
		}
	}
	return func() time.Time {
		close(end)
		asking.Wait()
		m.t.Logf("of %d connections some hung, by the second: %v", asked, failed)
		if asked < 20*len(clients) {
			m.t.Errorf("only %d connections were tried", asked)
		}
		return last
	}
}

// goneWithin breaks a machine and returns how long after that the last connection began
// that was not answered. The machine is healed, and trusted again.
func (m *mesh) goneWithin(what, node string, do func(string) error) time.Duration {
	m.t.Helper()
	stop := m.traffic("client-a", "client-c")
	died := time.Now()
	if err := do(node); err != nil {
		m.t.Fatal(err)
	}
	testkit.Eventually(m.t, node+" is suspect", func() bool {
		s := m.status().ControlPlane.Suspects
		return len(s) == 1 && s[0].Node == node && len(s[0].Witnesses) == 2
	})
	suspect := time.Since(died)
	time.Sleep(max(7*time.Second-time.Since(died), 0)) // traffic that should find nothing dead
	last := stop().Sub(died)
	m.t.Logf("%s %s: status said so after %s, the last connection that hung began after %s", node, what, suspect, last)
	if last < 0 {
		m.t.Errorf("%s %s, and no connection hung: this tests nothing", node, what)
	}
	if err := m.l.Heal(m.t.Context(), node); err != nil {
		m.t.Fatal(err)
	}
	testkit.Eventually(m.t, node+" is trusted again, and serves", func() bool {
		return len(m.status().ControlPlane.Suspects) == 0 && m.answering("client-a", 40)["web-"+node] > 0
	})
	return last
}

// zoneGone: zone-b loses power. Its nodes are not ready after the lease and 10 s, and get no
// connection from then on.
func (m *mesh) zoneGone(lease time.Duration) {
	m.t.Helper()
	stop := m.traffic("client-a", "client-c")
	died := time.Now()
	if err := m.l.PowerOff(m.t.Context(), "zone-b"); err != nil {
		m.t.Fatal(err)
	}
	ready := func() map[string]string {
		out := map[string]string{}
		for _, n := range m.status().Nodes {
			out[n.Name] = n.Ready
		}
		return out
	}
	testkit.Eventually(m.t, "both nodes of zone-b are suspect", func() bool { return len(m.status().ControlPlane.Suspects) == 2 })
	m.t.Logf("zone-b: suspect after %s", time.Since(died))
	testkit.Eventually(m.t, "the nodes of zone-b are marked", func() bool {
		r := ready()
		return r["b-1"] != "True" && r["b-2"] != "True"
	})
	if took := time.Since(died); took > lease+10*time.Second || took < lease/2 {
		m.t.Errorf("the nodes of zone-b were marked after %s, want %s and at most 10 s", took, lease)
	}
	if r := ready(); r["a-1"] != "True" || r["a-2"] != "True" || r["c-1"] != "True" || r["c-2"] != "True" {
		m.t.Errorf("ready: %v", r)
	}
	if held := m.status().ControlPlane.Leases; held.Held {
		m.t.Logf("still held: %s", held.Reason)
	}
	last := stop().Sub(died)
	m.t.Logf("zone-b: marked after %s, the last connection that hung began after %s", time.Since(died), last)
	if last > lease+10*time.Second {
		m.t.Errorf("a connection to zone-b %s after it lost power", last)
	}
	if err := m.l.Heal(m.t.Context(), ""); err != nil {
		m.t.Fatal(err)
	}
	testkit.Eventually(m.t, "all serve again", func() bool { return len(m.answering("client-a", 60)) == 6 })
}

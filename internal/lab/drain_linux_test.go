package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestDrain: in a kernel mode, under traffic of short and long connections from every zone, a
// zone is taken out for a time, and a node is drained, rebooted and undrained. No request
// fails, and no connection breaks before its time. PROXIMA_SOAK=1: every node, twice, and a
// node in each of the other modes.
func TestDrain(t *testing.T) {
	soak := os.Getenv("PROXIMA_SOAK") != ""
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "nftables" && !soak {
				t.Skip("other modes than nftables: with PROXIMA_SOAK=1")
			}
			l := start(t, lab.Spec{Zones: 3, Nodes: 2, Mode: mode, IPv4Only: true})
			d := &drainTest{mesh: &mesh{t: t, l: l, vip: createEverywhere(t)}}
			testkit.Eventually(t, "all six answer", func() bool { // each zone asks, as demand is to be even
				who := map[string]int{}
				for _, client := range []string{"client-a", "client-b", "client-c"} {
					maps.Copy(who, d.answering(client, 12))
				}
				return len(who) == 6
			})
			rounds := []string{"b-1"}
			switch {
			case mode == "userspace":
				// The agent of b-1 carries what its zone's client has open: that ends with the machine.
				rounds = []string{"b-2"}
			case soak && mode == "nftables":
				rounds = append(l.Nodes(), l.Nodes()...)
			}
			for _, node := range rounds {
				d.reboot(node)
			}
			d.shift("zone-b", "b-1", "b-2") // after a while of even demand, by which it is planned
			d.last("a-1")
		})
	}
}

type drainTest struct{ *mesh }

// proxima runs the command as an administrator, and returns what it prints, and its exit code.
func (d *drainTest) proxima(args ...string) (output string, ok bool) {
	d.t.Helper()
	ns := inNamespace(d.t, "control")
	defer ns.Close()
	const failed = "exit code"
	line := append([]string{"-c", `"$0" "$@" 2>&1 || echo "` + failed + ` $?"`, testkit.Binary(d.t)}, args...)
	out, err := ns.Output(d.t.Context(), "sh", append(line, "--kubeconfig", kubeconfig())...)
	if err != nil {
		d.t.Fatal(err)
	}
	if output, code, ok := strings.Cut(string(out), failed); ok {
		if strings.TrimSpace(code) != "1" {
			d.t.Errorf("proxima %s ended with %s", strings.Join(args, " "), code)
		}
		return output, false
	}
	return string(out), true
}

func (d *drainTest) must(args ...string) string {
	d.t.Helper()
	out, ok := d.proxima(args...)
	if !ok {
		d.t.Fatalf("proxima %s: %s", strings.Join(args, " "), out)
	}
	return out
}

// reboot a node the way that docs/how-to/drain.md describes, under traffic.
func (d *drainTest) reboot(node string) {
	t := d.t
	t.Helper()
	const open = 6 * time.Second // of the 30 s that the workloads' connections have
	long := d.hold(node, open)
	short := d.requests()

	// With so many connections it is not drained at once, and says why.
	out, ok := d.proxima("node", "drain", node, "--timeout", "3s")
	if ok || !strings.Contains(out, "do not reboot node "+node+" yet") || !strings.Contains(out, "open connection") {
		t.Errorf("a drain that ran out of time said, successful %t:\n%s", ok, out)
	}
	if who := d.answering("client-b", 40); who["web-"+node] > 0 {
		t.Errorf("new connections go to %v, though %s is draining", who, node)
	}
	if out := d.must("explain", "service", "everywhere", "--from-zone", "zone-a"); !strings.Contains(out, "its node "+node+" is drained since") {
		t.Errorf("explain does not say that %s is drained:\n%s", node, out)
	}
	long.begin() // they end from now on, by themselves
	began := time.Now()
	out = d.must("node", "drain", node)
	t.Logf("drained after another %s:\n%s", time.Since(began).Round(time.Millisecond), out)
	if !strings.Contains(out, "can be rebooted: no connection is open") {
		t.Errorf("drain said:\n%s", out)
	}
	long.check(node)

	if err := d.l.PowerOff(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := d.l.Heal(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if out := d.must("get", "nodes"); !strings.Contains(out, "SchedulingDisabled,Drained") {
		t.Errorf("after the reboot:\n%s", out)
	}
	if who := d.answering("client-b", 20); who["web-"+node] > 0 {
		t.Errorf("connections go to %v after the reboot, though %s is still drained", who, node)
	}
	d.must("node", "undrain", node)
	testkit.Eventually(t, node+" serves again", func() bool { return d.answering("client-b", 10)["web-"+node] > 0 })
	asked, failed := short.stop()
	t.Logf("%s: %d short connections, %d failed; %d long ones", node, asked, len(failed), long.count)
	if len(failed) > 0 {
		t.Errorf("%s was rebooted, and of %d requests %d failed, first: %s", node, asked, len(failed), failed[0])
	}
	if asked < 100 {
		t.Errorf("only %d requests were made", asked)
	}
}

// shift a zone out, and let its time end, under traffic.
func (d *drainTest) shift(zone string, nodes ...string) {
	t := d.t
	t.Helper()
	there := func(who map[string]int) (n int) {
		for _, node := range nodes {
			n += who["web-"+node]
		}
		return n
	}
	long, short := d.hold(nodes[0], 0), d.requests()
	if out := d.must("zone", "shift", zone, "--for", "1h", "--reason", "power work", "--dry-run"); !strings.Contains(out, "default/everywhere") {
		t.Errorf("the dry run said:\n%s", out)
	}
	t.Logf("%s", d.must("zone", "shift", zone, "--for", "1h", "--reason", "power work"))
	testkit.Eventually(t, "no new connection goes to "+zone, func() bool { return there(d.answering("client-b", 20)) == 0 })

	// The others get what they were said to get: each of the four a quarter, by at most a fifth more.
	const n = 600
	all := short.count(t, n)
	mean, noise := n/4.0, 3*math.Sqrt(n*0.25*0.75)
	if there(all) > 0 || len(all) != 4 {
		t.Errorf("while %s is out %v answer", zone, all)
	}
	for who, got := range all {
		if float64(got) > 1.2*mean+noise {
			t.Errorf("%s got %d connections, 1.2 times its share is %.0f: %v", who, got, 1.2*mean, all)
		}
	}
	if out := d.must("explain", "service", "everywhere", "--from-zone", "zone-a"); !strings.Contains(out, "zone "+zone+" is taken out until") {
		t.Errorf("explain does not say that %s is out:\n%s", zone, out)
	}

	// A shorter time: it ends by itself.
	d.must("zone", "shift", zone, "--for", "2s", "--reason", "done")
	testkit.Eventually(t, zone+" serves again", func() bool { return there(d.answering("client-b", 40)) > 0 })
	asked, failed := short.stop()
	t.Logf("%s: %d short connections, %d failed; %v while it was out", zone, asked, len(failed), all)
	if len(failed) > 0 {
		t.Errorf("%s was out, and of %d requests %d failed, first: %s", zone, asked, len(failed), failed[0])
	}
	long.check(nodes[0])
}

// last: every other node is drained at the same time, so that one has the last endpoint of
// each Service. Its drain is refused, and when it is forced, all endpoints go on serving.
func (d *drainTest) last(node string) {
	t := d.t
	t.Helper()
	short := d.requests()
	var drains sync.WaitGroup
	for _, other := range d.l.Nodes() {
		if other != node {
			drains.Go(func() { d.must("node", "drain", other) })
		}
	}
	drains.Wait()
	if who := d.answering("client-c", 20); who["web-"+node] != 20 {
		t.Errorf("of 20 connections, while all but %s are drained, %v were answered", node, who)
	}
	out, ok := d.proxima("node", "drain", node)
	if ok || !strings.Contains(out, "default/everywhere") || !strings.Contains(out, "--force") {
		t.Errorf("the drain of the last endpoint said, successful %t:\n%s", ok, out)
	}
	if out, ok := d.proxima("node", "drain", node, "--dry-run"); ok || !strings.Contains(out, "it would be refused") {
		t.Errorf("the dry run said, successful %t:\n%s", ok, out)
	}
	d.must("node", "drain", node, "--force", "--timeout", "60s")
	// All are terminating and serve, as there is nothing else (KEP-1669).
	if who := d.answering("client-c", 60); len(who) < 2 {
		t.Errorf("of 60 connections, while all nodes are drained, %v were answered", who)
	}
	for _, node := range d.l.Nodes() {
		d.must("node", "undrain", node)
	}
	if asked, failed := short.stop(); len(failed) > 0 {
		t.Errorf("of %d requests %d failed, first: %s", asked, len(failed), failed[0])
	}
}

// shortOnes are connections, each with one request.
type shortOnes struct {
	end    chan struct{}
	asking sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []string
	// answers by who gave them, since count.
	answers map[string]int
}

// requests go to the Service from the client of every zone, each by a connection of its own.
func (d *drainTest) requests() *shortOnes {
	r := &shortOnes{end: make(chan struct{}), answers: map[string]int{}}
	start := time.Now()
	for _, client := range []string{"client-a", "client-b", "client-c"} {
		r.asking.Go(func() {
			for {
				select {
				case <-r.end:
					return
				case <-time.After(40 * time.Millisecond):
				}
				began := time.Now()
				who, err := d.ask(client, 10*time.Second)
				r.mu.Lock()
				r.asked++
				if err != nil {
					r.failed = append(r.failed, fmt.Sprintf("%s at %s: %v", client, began.Sub(start).Round(time.Millisecond), err))
				} else {
					r.answers[who]++
				}
				r.mu.Unlock()
			}
		})
	}
	return r
}

// count until there were so many answers, and say whose they were.
func (r *shortOnes) count(t *testing.T, n int) (answers map[string]int) {
	t.Helper()
	r.mu.Lock()
	r.answers = map[string]int{}
	r.mu.Unlock()
	testkit.Eventually(t, fmt.Sprintf("%d answers", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		sum := 0
		for _, of := range r.answers {
			sum += of
		}
		answers = maps.Clone(r.answers)
		return sum >= n
	})
	return answers
}

// stop, and return the number of requests and the failures.
func (r *shortOnes) stop() (int, []string) {
	close(r.end)
	r.asking.Wait()
	return r.asked, r.failed
}

// held are long connections.
type held struct {
	t     *testing.T
	count int
	// ending is closed when those to the node may end.
	ending chan struct{}
	done   sync.WaitGroup
	// broken before they ended by themselves; atNode is how many were of the node.
	broken atomic.Int32
	atNode atomic.Int32
	end    chan struct{}
}

func (h *held) begin() { close(h.ending) }

// hold connections from every zone, a few of them to a node; those end by themselves, from
// when begin is called for some time.
func (d *drainTest) hold(node string, open time.Duration) *held {
	h := &held{t: d.t, count: 36, ending: make(chan struct{}), end: make(chan struct{})}
	var opened sync.WaitGroup
	for i := range h.count {
		client := []string{"client-a", "client-b", "client-c"}[i%3]
		opened.Add(1)
		h.done.Go(func() { h.use(d, client, node, open*time.Duration(i)/time.Duration(h.count), opened.Done) })
	}
	opened.Wait()
	if h.atNode.Load() == 0 {
		d.t.Fatalf("of %d long connections none is to %s", h.count, node)
	}
	return h
}

// use one connection, with a request every 200 ms.
func (h *held) use(d *drainTest, client, node string, open time.Duration, opened func()) {
	ns, err := netns.Open("pxlab-" + labName() + "-" + client)
	if err != nil {
		opened()
		h.t.Error(err)
		return
	}
	defer ns.Close()
	var conn atomic.Pointer[watched]
	// No timeout of the client: that ends the context of a request once it is answered, and with
	// it, now and then, a connection that is idle.
	transport := &http.Transport{MaxConnsPerHost: 1, ResponseHeaderTimeout: 10 * time.Second, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if before := conn.Load(); before != nil {
			return nil, fmt.Errorf("the connection broke: %w", before.last())
		}
		c, err := ns.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w := &watched{Conn: c}
		conn.Store(w)
		return w, nil
	}}
	defer transport.CloseIdleConnections()
	var who string
	request := func() bool {
		name, err := get(&http.Client{Transport: transport}, "http://"+d.vip+"/")
		if err != nil || who != "" && name != who {
			h.broken.Add(1)
			h.t.Errorf("a long connection from %s to %q: answered by %q, %v", client, who, name, err)
			return false
		}
		who = name
		return true
	}
	ok := request()
	ending := h.ending
	if who == "web-"+node {
		h.atNode.Add(1)
	} else {
		ending = nil
	}
	opened()
	var over <-chan time.Time
	for ok {
		select {
		case <-h.end:
			return
		case <-ending:
			ending, over = nil, time.After(open)
		case <-over:
			return
		case <-time.After(200 * time.Millisecond):
			ok = request()
		}
	}
}

// check that none broke, and end them.
func (h *held) check(node string) {
	close(h.end)
	h.done.Wait()
	if n := h.broken.Load(); n > 0 {
		h.t.Errorf("%d of %d long connections broke; %d were to %s", n, h.count, h.atNode.Load(), node)
	}
	h.t.Logf("%d long connections, %d of them to %s", h.count, h.atNode.Load(), node)
}

func get(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
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

// watched is a connection that keeps the error by which it ended.
type watched struct {
	net.Conn
	mu  sync.Mutex
	err error
}

// Read implements net.Conn.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = err
		}
	}
	return n, err
}

func (w *watched) last() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

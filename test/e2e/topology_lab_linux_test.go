package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// traffic is a lab of three zones in which a Service without a selector is planned,
// with endpoints that this process serves, and clients that it is, in the zones'
// namespaces. Only the agents in between are Proxima's.
type traffic struct {
	t     *testing.T
	lab   *lab.Lab
	name  string
	zones []*site
	vip   string
	bin   string

	mu     sync.Mutex
	failed []string
}

// site is a zone: its client, and the endpoints on its node.
type site struct {
	letter       string
	client, node *netns.NS
	first        netip.Addr
	endpoints    []net.Listener
	// served and sent connections, by endpoint and of the zone's client; near are
	// those that a zone's client was answered by its own zone.
	served     []int
	sent, near int
	// answered is by which zones the client was, since the test began.
	answered map[string]int
}

const shopPort = 9000

func startTraffic(t *testing.T) *traffic {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	tr := &traffic{t: t, name: fmt.Sprintf("p%d", os.Getpid()%10_000_000), bin: testkit.Binary(t)}
	l, err := lab.Start(t.Context(), lab.Spec{
		Name: tr.name, Zones: 3, Nodes: 1, Executable: tr.bin, Temporary: true, Progress: func(s string) { t.Log(s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.lab = l
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for i, letter := range []string{"a", "b", "c"} {
		s := &site{letter: letter, client: tr.open("client-" + letter), node: tr.open(letter + "-1"), answered: map[string]int{}}
		s.first = netip.AddrFrom4([4]byte{10, 200, byte(i) + 1, 101})
		tr.zones = append(tr.zones, s)
	}
	return tr
}

func (tr *traffic) open(name string) *netns.NS {
	tr.t.Helper()
	ns, err := netns.Open("pxlab-" + tr.name + "-" + name)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// admin runs a program on the control plane's machine, as an administrator.
func (tr *traffic) admin(path string, args ...string) string {
	tr.t.Helper()
	out, err := tr.open("control").Output(tr.t.Context(), path, append(args, "--kubeconfig", tr.lab.Kubeconfig())...)
	if err != nil {
		tr.t.Fatalf("%s %s: %v", filepath.Base(path), strings.Join(args, " "), err)
	}
	return string(out)
}

func (tr *traffic) apply(manifest string) {
	tr.t.Helper()
	file := filepath.Join(tr.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		tr.t.Fatal(err)
	}
	tr.admin(testkit.Kubectl(tr.t), "apply", "-f", file)
}

// serve makes a zone have so many endpoints that listen. What listens already goes on,
// so that those in flight are answered.
func (tr *traffic) serve(s *site, count int) {
	tr.t.Helper()
	for n := len(s.endpoints); n < count; n++ {
		address := s.first
		for range n {
			address = address.Next()
		}
		if err := s.node.AddAddr("eth0", netip.PrefixFrom(address, 32)); err != nil {
			tr.t.Fatal(err)
		}
		l, err := s.node.Listen("tcp", netip.AddrPortFrom(address, shopPort).String())
		if err != nil {
			tr.t.Fatal(err)
		}
		tr.t.Cleanup(func() { _ = l.Close() })
		tr.mu.Lock()
		s.endpoints, s.served = append(s.endpoints, l), append(s.served, 0)
		tr.mu.Unlock()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				tr.mu.Lock()
				s.served[n]++
				tr.mu.Unlock()
				_, _ = c.Write([]byte(s.letter)) // a client that does not get it fails
				_ = c.Close()
			}
		}()
	}
}

// place has the Service's slices name so many endpoints in each zone.
func (tr *traffic) place(counts ...int) {
	tr.t.Helper()
	var manifest strings.Builder
	for i, s := range tr.zones {
		tr.serve(s, counts[i])
		fmt.Fprintf(&manifest, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-%s, namespace: default, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: %d, protocol: TCP}]
endpoints:
`, s.letter, shopPort)
		if counts[i] == 0 {
			manifest.WriteString("  []\n")
		}
		address := s.first
		for range counts[i] {
			fmt.Fprintf(&manifest, "- {addresses: [%s], zone: zone-%s, conditions: {ready: true}}\n", address, s.letter)
			address = address.Next()
		}
	}
	tr.apply(manifest.String())
}

func (tr *traffic) createService() {
	tr.t.Helper()
	tr.apply(`
apiVersion: v1
kind: Service
metadata:
  name: shop
  namespace: default
  annotations: {service.kubernetes.io/topology-mode: proxima.dev/Adaptive}
spec:
  ports: [{name: http, port: 80}]
`)
	ip := tr.admin(testkit.Kubectl(tr.t), "get", "service", "shop", "-o", "jsonpath={.spec.clusterIP}")
	tr.vip = net.JoinHostPort(strings.TrimSpace(ip), "80")
}

// ask opens a connection from a zone and records which endpoint answered.
func (tr *traffic) ask(ctx context.Context, s *site) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := func() (string, error) {
		c, err := s.client.DialContext(ctx, "tcp", tr.vip)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 1)
		_, err = c.Read(buf)
		return string(buf), err
	}()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s.sent++
	s.answered[answer]++
	switch {
	case err != nil && ctx.Err() == nil || err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		tr.failed = append(tr.failed, fmt.Sprintf("%s zone-%s: %v", time.Now().Format(time.TimeOnly), s.letter, err))
	case answer == s.letter:
		s.near++
	}
}

// drive opens connections at these rates per second, one after the other in every
// zone, evenly spaced, until the returned function is called.
func (tr *traffic) drive(rates ...float64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, s := range tr.zones {
		if rates[i] == 0 {
			continue
		}
		running.Go(func() {
			ticker := time.NewTicker(time.Duration(float64(time.Second) / rates[i]))
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
					running.Go(func() { tr.ask(context.WithoutCancel(ctx), s) })
				}
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// sample is what was seen in a stretch of time.
type sample struct {
	Second float64 `json:"second"`
	// Demand and Load are shares by zone, of what was sent and what was served.
	Demand []float64 `json:"demand"`
	Load   []float64 `json:"load"`
	InZone float64   `json:"inZone"`
	// Worst is the load of the zone whose endpoints had most to do, by endpoint, as a
	// multiple of the mean.
	Worst       float64 `json:"worst"`
	Connections int     `json:"connections"`
	Failed      int     `json:"failed"`
	// Best and BestWorst are in-zone share and worst load of the exact plan for the demand as sent.
	Best      float64 `json:"best"`
	BestWorst float64 `json:"bestWorst"`
	Event     string  `json:"event,omitempty"`
}

// take what was counted since it was last called.
func (tr *traffic) take(counts ...int) sample {
	tr.t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var x sample
	near, endpoints, served := 0, 0, make([]int, len(tr.zones))
	for i, s := range tr.zones {
		for k, n := range s.served {
			served[i] += n
			s.served[k] = 0
		}
		x.Demand = append(x.Demand, float64(s.sent))
		x.Connections += s.sent
		near += s.near
		s.sent, s.near = 0, 0
		endpoints += counts[i]
	}
	x.Failed = len(tr.failed)
	total := float64(max(1, served[0]+served[1]+served[2]))
	weight := make([]int64, len(tr.zones))
	for i, n := range served {
		x.Load = append(x.Load, float64(n)/total)
		x.Demand[i] /= float64(max(1, x.Connections))
		if weight[i] = int64(counts[i]); counts[i] > 0 {
			x.Worst = max(x.Worst, x.Load[i]*float64(endpoints)/float64(counts[i]))
		}
	}
	x.InZone = float64(near) / float64(max(1, x.Connections))
	best := exact(tr.t, x.Demand, weight)
	x.Best, x.BestWorst = best.InZone, best.Worst
	return x
}

// exact is the best plan for a demand, with the limit that estimated demand gets.
func exact(t *testing.T, demand []float64, weight []int64) planner.Metrics {
	t.Helper()
	topology, err := planner.NewTopology([]planner.Zone{{Name: "zone-a"}, {Name: "zone-b"}, {Name: "zone-c"}}, planner.Costs{})
	if err != nil {
		t.Fatal(err)
	}
	var plan planner.Plan
	if err := (&planner.Solver{}).Solve(topology, &planner.Problem{Demand: demand, Weight: weight, Params: planner.DefaultParams(true)}, &plan); err != nil {
		t.Fatal(err)
	}
	return plan.Metrics()
}

// explained is of "proxima explain service -o json" what is asked about here.
type explained struct {
	Topology struct {
		Decision string
		Plans    []struct {
			Reason               string
			Measured             bool
			ConnectionsPerSecond float64
			Now                  planner.Metrics
			GapPoints            float64
			Plan                 struct {
				Zones []struct {
					Name string
					To   []struct {
						Zone  string
						Share float64
					}
				}
			}
		}
	}
}

func (tr *traffic) explain() (e explained) {
	tr.t.Helper()
	out := tr.admin(tr.bin, "explain", "service", "default/shop", "--from-zone", "zone-a", "-o", "json")
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		tr.t.Fatalf("%v:\n%s", err, out)
	}
	return e
}

func (tr *traffic) measured() bool {
	e := tr.explain()
	return len(e.Topology.Plans) == 1 && e.Topology.Plans[0].Measured && e.Topology.Plans[0].GapPoints < 1
}

// observe counts for a while, and fails where that is far from the best plan.
func (tr *traffic) observe(during time.Duration, counts ...int) sample {
	tr.t.Helper()
	tr.take(counts...)
	time.Sleep(during) // what is observed is time
	return tr.take(counts...)
}

// TestTopologyTraffic: connections of real clients, through real agents, are divided as
// the plan for the measured demand requires, and the explanations show it.
func TestTopologyTraffic(t *testing.T) {
	tr := startTraffic(t)
	tr.createService()
	counts := []int{4, 4, 3}
	tr.place(counts...)
	stop := tr.drive(120, 15, 15)
	defer stop()
	testkit.Eventually(t, "the demand is measured and planned for", tr.measured)
	testkit.Eventually(t, "the condition says so", func() bool {
		return strings.Contains(tr.condition(), "demand measured")
	})
	x := tr.observe(8*time.Second, counts...)
	t.Logf("%+v", x)
	tr.within(x, 0.08, 0.15)
	tr.follows(x)
	if e := tr.explain(); e.Topology.Plans[0].ConnectionsPerSecond < 30 ||
		!strings.Contains(e.Topology.Decision, "11 endpoints in 3 zones, demand measured") {
		t.Errorf("explain says %+v", e)
	}
	tr.simulateChangesNothing()
	if soak(0, 1) == 1 {
		tr.flowsAgree()
		tr.restartMovesNothing(counts)
	}
}

// flowsAgree: the flows that the console shows as measured are the connections that the backends answered. Agents read the kernel's table
// once a minute, so that the last connections are not in the flows; of many thousand, it makes no difference to how a zone's are divided.
func (tr *traffic) flowsAgree() {
	tr.t.Helper()
	var seen struct {
		Flows []struct {
			From, To string
			Measured float64
		}
	}
	read := func() map[string]float64 {
		text := tr.admin(testkit.Kubectl(tr.t), "get", "--raw", "/proxima/v1/summary/zones")
		if err := json.Unmarshal([]byte(text), &seen); err != nil {
			tr.t.Fatal(err)
		}
		sums := map[string]float64{}
		for _, f := range seen.Flows {
			sums[f.From] += f.Measured
		}
		return sums
	}
	time.Sleep(5 * time.Minute) // what is measured is time
	sums := read()
	for _, s := range tr.zones {
		from := "zone-" + s.letter
		tr.mu.Lock()
		answered, total := maps.Clone(s.answered), 0
		tr.mu.Unlock()
		delete(answered, "") // failed
		for _, n := range answered {
			total += n
		}
		if sums[from] == 0 {
			tr.t.Errorf("no connections of %s are measured: %+v", from, seen.Flows)
			continue
		}
		for _, to := range tr.zones {
			counted, measured := float64(answered[to.letter])/float64(total), 0.0
			for _, f := range seen.Flows {
				if f.From == from && f.To == "zone-"+to.letter {
					measured = f.Measured / sums[from]
				}
			}
			tr.t.Logf("%s → zone-%s: measured %.4f, counted %.4f of %d", from, to.letter, measured, counted, total)
			if math.Abs(measured-counted) > 0.02 {
				tr.t.Errorf("%s → zone-%s: the share measured is %.3f, that counted by backends %.3f of %d", from, to.letter, measured, counted, total)
			}
		}
	}
}

// restartMovesNothing: the control plane dies and comes back. Its plan is the one that
// it had, not one for what it would guess, which here is a third of the demand in each zone.
func (tr *traffic) restartMovesNothing(counts []int) {
	tr.t.Helper()
	before := tr.condition()
	control := tr.open("control")
	pids, err := control.Processes()
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, pid := range pids {
		if err := control.KillProcess(tr.t.Context(), pid); err != nil {
			tr.t.Fatal(err)
		}
	}
	if err := tr.lab.Heal(tr.t.Context(), ""); err != nil {
		tr.t.Fatal(err)
	}
	testkit.Eventually(tr.t, "it says that the plan is held", func() bool {
		return strings.Contains(tr.condition(), "demand held until all nodes have reported (zone-a ")
	})
	x := tr.observe(4*time.Second, counts...)
	tr.follows(x)
	tr.within(x, 0.1, 0.25)
	shares := regexp.MustCompile(`[0-9.]+ % stays`)
	if after := tr.condition(); shares.FindString(after) != shares.FindString(before) {
		tr.t.Errorf("before the restart:\n%s\nafter:\n%s", before, after)
	}
}

func (tr *traffic) condition() string {
	return tr.admin(testkit.Kubectl(tr.t), "get", "service", "shop", "-o",
		`jsonpath={.status.conditions[?(@.type=="proxima.dev/TopologyPlan")].message}`)
}

// follows: the agents divide what was sent as the plan says that they hold.
func (tr *traffic) follows(x sample) {
	tr.t.Helper()
	want := make([]float64, len(tr.zones))
	plan := tr.explain().Topology.Plans[0].Plan
	for i, from := range plan.Zones {
		for _, to := range from.To {
			want[to.Zone[len("zone-")]-'a'] += x.Demand[i] * to.Share
		}
	}
	for i, share := range want {
		// Some hundred connections: two standard deviations are 4 points.
		if math.Abs(x.Load[i]-share) > 0.06 {
			tr.t.Errorf("loads %.3f, the plan %+v makes them %.3f", x.Load, plan, want)
			return
		}
	}
}

// within: as near to the best plan as counts of that size can distinguish.
func (tr *traffic) within(x sample, share, load float64) {
	tr.t.Helper()
	if math.Abs(x.InZone-x.Best) > share || x.Worst > x.BestWorst+load {
		tr.t.Errorf("in zone %.3f, the best plan %.3f; worst %.2f, the best plan %.2f: %+v", x.InZone, x.Best, x.Worst, x.BestWorst, x)
	}
	if len(tr.failed) > 0 {
		tr.t.Errorf("%d connections failed: %q", len(tr.failed), tr.failed[:min(5, len(tr.failed))])
	}
}

// simulateChangesNothing that is visible in the API.
func (tr *traffic) simulateChangesNothing() {
	tr.t.Helper()
	state := func() string {
		return tr.admin(
			testkit.Kubectl(tr.t),
			"get",
			"services,endpointslices,nodes",
			"-o",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.annotations} {.spec} {.endpoints} {.status.conditions[*].type}{"\n"}{end}`,
		)
	}
	before := state()
	out := tr.admin(tr.bin, "simulate", "--fail-zone", "zone-a", "--demand", "shop:zone-b:x3")
	if !strings.Contains(out, "shop") {
		tr.t.Errorf("simulate does not list the service:\n%s", out)
	}
	if after := state(); after != before {
		tr.t.Errorf("simulating changed\n%s\nto\n%s", before, after)
	}
	tr.within(tr.observe(3*time.Second, 4, 4, 3), 0.07, 0.2)
}

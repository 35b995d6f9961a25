package lab_test

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/topology"
)

const (
	pricePerGB = 0.02
	// secondsPerMonth and bytesPerGB are those of docs/how-to/traffic-costs.md.
	secondsPerMonth, bytesPerGB = 2.63e6, 1e9
)

// tempo of the test: how long savings are measured, and how long what is predicted and
// scaled may take.
type tempo struct {
	mode            string
	measure, decide time.Duration
	wait            time.Duration
	// decisions of the autoscaler after a step; 0: until it settles.
	decisions int
}

// TestSavings: what "proxima simulate" predicts that plans would save of three Services, with
// long connections, skewed bytes and skewed endpoints, is what they save once they are
// planned; and an autoscaler that follows the metric of a fourth one does not oscillate. All at
// the same time, with real traffic; nothing fails. PROXIMA_SOAK=1: in a kernel mode, for
// longer, until the autoscaler settles after each of several steps.
func TestSavings(t *testing.T) {
	// Userspace counts each byte at each report, kernels are read once a minute.
	pace := tempo{mode: "userspace", measure: 6 * time.Second, decide: 2 * time.Second, wait: 90 * time.Second, decisions: 12}
	if os.Getenv("PROXIMA_SOAK") != "" {
		pace = tempo{mode: "nftables", measure: 2 * time.Minute, decide: 15 * time.Second, wait: 15 * time.Minute}
	}
	m := openMarket(t, pace.mode)
	mixes := m.mixes()
	before := m.crossed(t)
	for _, x := range mixes {
		x.place(t)
	}
	for _, x := range mixes {
		x.begin(t)
	}
	t.Run("at the same time", func(t *testing.T) {
		for _, x := range mixes {
			t.Run(x.name, func(t *testing.T) { t.Parallel(); x.saves(t, pace) })
		}
		t.Run("autoscaler", func(t *testing.T) { t.Parallel(); m.autoscale(t, pace) })
	})
	between := 0
	for _, x := range mixes {
		x.end()
		_, more, _ := x.exchanged()
		between += x.between + more
	}
	between += m.scaled
	// The kernel's count has headers, handshakes and acknowledgements.
	if ratio := float64(m.crossed(t)-before) / float64(between); ratio < 1 || ratio > 1.3 {
		t.Errorf("the links between zones carried %.3f times what clients counted", ratio)
	} else {
		t.Logf("%.1f MB went between zones; the links carried %.3f times that", float64(between)/1e6, ratio)
	}
	if len(m.failed) > 0 {
		t.Errorf("%d requests failed: %q", len(m.failed), m.failed[:min(5, len(m.failed))])
	}
}

// mix of traffic to a Service.
type mix struct {
	*stall
	// weights of the endpoints of each zone, and how long a request takes at each.
	weights [3][]int32
	takes   [3]time.Duration
	// rates of new connections by zone, and the sizes of answers; or connections that remain
	// open.
	rates [3]float64
	sizes []int
	open  [3]int

	began       time.Time
	again, stop []func()
	// between zones were so many bytes, as far as they were taken.
	between int
}

func (m *market) mixes() []*mix {
	off := map[string]string{corev1.AnnotationTopologyMode: "Disabled"}
	return []*mix{
		{
			stall: m.open("long", off), weights: [3][]int32{{100, 100}, {100}, {100}}, open: [3]int{12, 12, 12}, sizes: []int{8000},
		},
		{
			stall: m.open("bytes", off), weights: [3][]int32{{100}, {100}, {100}}, rates: [3]float64{20, 10, 10}, sizes: skewedSizes(),
		},
		{
			stall: m.open("cpu", off), weights: [3][]int32{{200}, {100}, {50}}, rates: [3]float64{10, 20, 10}, sizes: []int{20_000},
			takes: [3]time.Duration{2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond},
		},
	}
}

// skewedSizes are quantiles of a Pareto distribution with a mean of 20 kB: a tenth of the
// answers has more than a third of the bytes.
func skewedSizes() []int {
	const n, tail, mean = 60, 2.0, 20_000
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = int(mean * (tail - 1) / tail * math.Pow(1-(float64(i)+.5)/n, -1/tail))
	}
	rand.New(rand.NewPCG(1, 7)).Shuffle(n, func(i, k int) { sizes[i], sizes[k] = sizes[k], sizes[i] })
	return sizes
}

// place its endpoints.
func (x *mix) place(t *testing.T) {
	t.Helper()
	for zone, weights := range x.weights {
		for _, weight := range weights {
			x.add(t, zone, weight, x.takes[zone])
		}
	}
}

// begin its traffic.
func (x *mix) begin(t *testing.T) {
	t.Helper()
	x.served(t, len(slices.Concat(x.weights[:]...)), x.open == [3]int{})
	x.began = time.Now()
	for zone := range x.places {
		if x.rates[zone] > 0 {
			x.stop = append(x.stop, x.visit(zone, x.rates[zone], x.sizes))
		}
		if x.open[zone] > 0 {
			again, stop := x.stay(zone, x.open[zone], 250*time.Millisecond, x.sizes[0])
			x.again, x.stop = append(x.again, again), append(x.stop, stop)
		}
	}
	t.Cleanup(x.end)
}

func (x *mix) end() {
	for _, stop := range x.stop {
		stop()
	}
	x.stop = nil
}

// served waits until the Service has so many endpoints and, if it is tried, until clients of
// all zones reach it.
func (s *stall) served(t *testing.T, endpoints int, try bool) {
	t.Helper()
	waitUntil(t, time.Minute, fmt.Sprintf("%s has %d endpoints everywhere", s.name, endpoints), func() bool {
		for zone := range s.places {
			if !try {
				break
			}
			c, err := s.dial(t.Context(), zone)
			if err == nil {
				err = s.request(c, zone, 1)
				_ = c.Close()
			}
			if err != nil {
				return false
			}
		}
		var e struct {
			Ports []struct {
				Families []struct{ Endpoints []struct{ Share float64 } }
			}
		}
		s.proxima(t, &e, "explain", "service", s.name, "--from-node", "a-1")
		return len(e.Ports) == 1 && len(e.Ports[0].Families) == 1 && len(e.Ports[0].Families[0].Endpoints) == endpoints
	})
	s.exchanged()
}

// waitUntil for longer than testkit waits.
func waitUntil(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// saves: what is predicted before the Service is planned is what is measured then.
func (x *mix) saves(t *testing.T, pace tempo) {
	var predicted topology.Saved
	var all, between int
	waitUntil(t, pace.wait, "the bytes of "+x.name+" are known", func() bool {
		a, b, _ := x.exchanged()
		all, between = all+a, between+b
		rate := float64(all) / time.Since(x.began).Seconds()
		var answer topology.Simulation
		x.proxima(t, &answer, "simulate", "--top", "10", "--price", fmt.Sprintf("EUR:%g:%g", pricePerGB, 2*pricePerGB))
		i := slices.IndexFunc(answer.Top, func(s topology.Saved) bool { return s.Service == "default/"+x.name })
		if i < 0 {
			return false
		}
		predicted = answer.Top[i]
		return time.Since(x.began) > pace.measure && predicted.Bytes != "Unavailable" && predicted.BytesPerSecond > 0.7*rate &&
			(predicted.Long != nil || x.open == [3]int{})
	})
	x.between += between
	if x.open == [3]int{} {
		x.flows(t)
	}
	rate, crossing := float64(all)/time.Since(x.began).Seconds(), float64(between)/float64(all)
	if predicted.Planned {
		t.Errorf("it is planned already: %+v", predicted)
	}
	x.annotate(t, corev1.AnnotationTopologyMode, topology.Adaptive)
	x.planned(t, pace)
	for _, again := range x.again {
		again()
	}
	_, b, _ := x.exchanged()
	x.between += b
	time.Sleep(pace.measure) // what is measured is time
	a, b, asked := x.exchanged()
	x.between += b
	after := float64(b) / float64(a)

	// Per byte, as the bytes of the two times are not the same.
	month := func(share float64) float64 {
		return predicted.BytesPerSecond * share * secondsPerMonth * pricePerGB / bytesPerGB
	}
	measured := month(crossing - after)
	t.Logf("%.0f kB/s, %.0f of them seen by agents; %.1f %% between zones, then %.1f %% of %d requests: predicted %.3f EUR a month of %.3f (%.3f to %.3f, %s), measured %.3f",
		rate/1e3, predicted.BytesPerSecond/1e3, 100*crossing, 100*after, asked, predicted.Saving, predicted.Money.Now, predicted.Low, predicted.High, predicted.Bytes, measured)
	if now := month(crossing); math.Abs(predicted.Money.Now-now) > 0.1*now {
		t.Errorf("%.3f EUR a month are said to be spent, measured are %.3f", predicted.Money.Now, now)
	}
	far := math.Abs(predicted.Saving - measured)
	if far > 0.2*measured && (predicted.Low > measured || predicted.High < measured) || far > 0.35*measured || measured <= 0 {
		t.Errorf("predicted %.3f (%.3f to %.3f), measured %.3f", predicted.Saving, predicted.Low, predicted.High, measured)
	}
}

// zone by its name.
func (m *market) zone(name locality.Zone) int {
	return slices.IndexFunc(m.places, func(p *place) bool { return p.zone == string(name) })
}

// flows that the control plane has measured, each as a part of those of its zone, are those that endpoints have answered, within two
// points: agents report in turn, so that for some seconds one zone is ahead of another.
func (x *mix) flows(t *testing.T) {
	var e struct {
		Topology struct {
			Plans []struct{ Volume *demand.Volume }
		}
	}
	x.proxima(t, &e, "explain", "service", x.name, "--from-zone", "zone-a")
	if len(e.Topology.Plans) != 1 || e.Topology.Plans[0].Volume == nil {
		t.Fatalf("no flows: %+v", e.Topology.Plans)
	}
	measured := [3][3]float64{}
	for _, w := range e.Topology.Plans[0].Volume.Ways {
		measured[x.zone(w.From)][x.zone(w.To)] += w.Opened
	}
	x.mu.Lock()
	answered := x.answered
	x.mu.Unlock()
	t.Logf("connections a second by zones: %.1f; answered %d", measured, answered)
	for from, row := range answered {
		opened, all := 0.0, 0
		for to, n := range row {
			opened, all = opened+measured[from][to], all+n
		}
		for to, n := range row {
			if is, want := measured[from][to]/opened, float64(n)/float64(all); math.IsNaN(is) || math.Abs(is-want) > 0.02 {
				t.Errorf("from zone %d to zone %d: %.3f of the connections are measured, endpoints have answered %.3f", from, to, is, want)
			}
		}
	}
}

// planned waits until there is a plan, and all agents have it.
func (s *stall) planned(t *testing.T, pace tempo) {
	t.Helper()
	waitUntil(t, pace.wait, s.name+" is planned", func() bool {
		var e struct {
			Topology struct {
				Planned bool
				Plans   []struct {
					Reason    string
					Measured  bool
					GapPoints float64
				}
			}
		}
		s.proxima(t, &e, "explain", "service", s.name, "--from-zone", "zone-a")
		if p := e.Topology.Plans; !e.Topology.Planned || len(p) != 1 || p[0].Reason == "" || !p[0].Measured || p[0].GapPoints > 1 {
			return false
		}
		var o struct{ Nodes []struct{ Behind int } }
		s.proxima(t, &o, "status")
		for _, n := range o.Nodes {
			if n.Behind > 0 {
				return false
			}
		}
		return len(o.Nodes) == len(s.places)
	})
}

// The autoscaler keeps the busiest zone at the target, with Kubernetes' rule and tolerance.
const (
	capacity  = 8 // connections a second that an endpoint takes
	target    = 0.7
	tolerance = 0.1
)

// autoscale: as the demand of a zone steps up (PROXIMA_SOAK=1: and down, and of another one
// up), the number of endpoints settles, and the busiest zone is used as it should be.
func (m *market) autoscale(t *testing.T, pace tempo) {
	s := m.open("scaled", map[string]string{
		corev1.AnnotationTopologyMode: topology.Adaptive, topology.AnnotationCapacity: fmt.Sprint(capacity),
	})
	defer func() { _, m.scaled, _ = s.exchanged() }()
	metrics := m.metrics(t)
	var endpoints []string
	scale := func(to int) {
		for len(endpoints) < to { // spread over the zones, as a Deployment may be
			endpoints = append(endpoints, s.add(t, len(endpoints)%len(m.places), 100, 0))
		}
		for last := len(endpoints) - 1; len(endpoints) > to; last-- {
			s.remove(t, endpoints[last])
			endpoints = endpoints[:last]
		}
	}
	scale(5)
	s.served(t, 5, true)
	steps := [][3]float64{{36, 8, 8}}
	if os.Getenv("PROXIMA_SOAK") != "" {
		steps = append(steps, [3]float64{8, 8, 8}, [3]float64{8, 60, 8}, [3]float64{8, 8, 8})
	}
	rates := [3]float64{8, 8, 8}
	stops := [3]func(){}
	drive := func(zone int) { stops[zone] = s.visit(zone, rates[zone], []int{8000}) }
	for zone := range rates {
		drive(zone)
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, next := range steps {
		waitUntil(t, pace.wait, "the demand before the step is known", func() bool { _, ok := metrics("utilisation_ratio"); return ok })
		total := 0.0
		for zone, rate := range next {
			total += rate
			if rate != rates[zone] {
				stops[zone]()
				rates[zone] = rate
				drive(zone)
			}
		}
		s.follow(t, pace, metrics, total, func() int { return len(endpoints) }, scale)
	}
}

// follow the metric with Kubernetes' rule until the number of endpoints settles or, if pace says
// so, for some decisions.
func (s *stall) follow(t *testing.T, pace tempo, metrics func(string) (float64, bool), total float64, endpoints func() int, scale func(int)) {
	t.Helper()
	const settled = 4
	var decisions []int
	tick := time.NewTicker(pace.decide)
	defer tick.Stop()
	end := time.Now().Add(pace.wait)
	for {
		use, ok := metrics("utilisation_ratio")
		if !ok {
			t.Fatal("there is no metric any more")
		}
		if ratio := use / target; math.Abs(ratio-1) > tolerance {
			scale(max(1, int(math.Ceil(float64(endpoints())*ratio))))
		}
		decisions = append(decisions, endpoints())
		known, _ := metrics("demand_connections_per_second")
		last := decisions[max(0, len(decisions)-settled):]
		stands := len(last) == settled && slices.Min(last) == slices.Max(last)
		if pace.decisions > 0 && len(decisions) == pace.decisions || pace.decisions == 0 && stands && math.Abs(known-total) < 0.1*total {
			t.Logf("%.0f connections a second, of which %.0f are known: %d endpoints at last, the busiest zone used %.2f: %v", total, known, endpoints(), use, decisions)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%.0f connections a second, of which %.0f are known, used %.2f: it does not settle: %v", total, known, use, decisions)
		}
		<-tick.C
	}
	// At the limit of 1.17 times the mean the busiest zone may be used the target and its
	// tolerance. What was decided before the step was known is not counted.
	rose := max(0, slices.IndexFunc(decisions, func(n int) bool { return n != decisions[0] }))
	if back := reversed(decisions[rose:]); back > 1 {
		t.Errorf("it oscillates by %d endpoints: %v", back, decisions)
	}
	most := max(decisions[0], int(math.Ceil(total*1.2/capacity/(target*(1-tolerance))))) + 1
	if slices.Max(decisions[rose:]) > most {
		t.Errorf("more than %d endpoints for %.0f connections a second: %v", most, total, decisions)
	}
	if least := int(total / capacity / (target * (1 + tolerance))); pace.decisions == 0 && endpoints() < least {
		t.Errorf("%d endpoints for %.0f connections a second, want %d: %v", endpoints(), total, least, decisions)
	}
}

// reversed is by how many endpoints decisions went back at most, against the way from the first
// to the last.
func reversed(decisions []int) (most int) {
	way := 1
	if decisions[len(decisions)-1] < decisions[0] {
		way = -1
	}
	peak := way * decisions[0]
	for _, n := range decisions {
		peak = max(peak, way*n)
		most = max(most, peak-way*n)
	}
	return most
}

// metrics of the planner about the Service that is scaled.
func (m *market) metrics(t *testing.T) func(name string) (value float64, ok bool) {
	t.Helper()
	read := controlMetrics(t)
	return func(name string) (value float64, ok bool) {
		for line := range strings.Lines(read()) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "proxima_topology_"+name+"{") || !strings.Contains(line, `service="scaled"`) {
				continue
			}
			value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
			if err != nil {
				t.Error(err)
			}
			return value, err == nil
		}
		return 0, false
	}
}

// controlMetrics reads the metrics of the lab's control plane, as Prometheus does.
func controlMetrics(t *testing.T) func() string {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	control, err := netns.Open("pxlab-" + labName() + "-control")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dial = control.DialContext
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.CloseIdleConnections(); _ = control.Close() })
	return func() string {
		resp, err := client.Get(cfg.Host + "/metrics")
		if err != nil {
			t.Error(err)
			return ""
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("metrics: %s", resp.Status)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return string(body)
	}
}

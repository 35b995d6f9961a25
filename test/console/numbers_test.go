package console

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	storememory "github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

// cluster is a planner with its sums behind the API of the console, in this process, on what a seed makes.
type cluster struct {
	plans    *topology.Controller
	table    *summary.Table
	services map[resource.Key]string // the mode of each
	traffic
	priced  bool
	regions map[locality.Zone]string
	handler http.Handler
}

// traffic that agents report.
type traffic struct {
	// rates of connections per second by zone, of any port; none: nothing is measured.
	rates map[locality.Zone]float64
	// ways of the connections of Services whose bytes are counted.
	ways map[proxy.ServiceName][]demand.Carried
}

// Volume implements topology.Volumes.
func (r traffic) Volume(port proxy.PortName, _ proxy.Family) demand.Volume {
	ways := r.ways[port.ServiceName]
	if ways == nil {
		return demand.Volume{Bytes: proxy.Unavailable.String(), Reason: "nobody counts them here"}
	}
	return demand.Volume{Bytes: proxy.Measured.String(), Ways: slices.Clone(ways)}
}

// Shares implements topology.Demand.
func (r traffic) Shares(port proxy.PortName, _ proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	sum := 0.0
	for _, z := range zones {
		sum += r.rates[z]
	}
	if sum == 0 {
		return topology.Unmeasured{}.Shares(port, proxy.AnyFamily, zones, prior, noNodes)
	}
	e := demand.Estimate{Measured: true, Rate: sum, Shares: make([]float64, len(zones))}
	for i, z := range zones {
		e.Shares[i] = r.rates[z] / sum
	}
	return e
}

type anybody struct{}

func (anybody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

type noTokens struct{}

func (noTokens) List(context.Context) ([]identity.TokenInfo, error) { return nil, nil }

func newCluster(t *testing.T, seed uint64) *cluster {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	c := &cluster{services: map[resource.Key]string{}, regions: map[locality.Zone]string{}}
	c.rates, c.ways = map[locality.Zone]float64{}, map[proxy.ServiceName][]demand.Carried{}
	client := resourcetest.New()
	zones := "abcdef"[:2+r.IntN(5)]
	measured := r.IntN(3) > 0
	for _, z := range zones {
		cpu := 1 + r.IntN(8)
		c.regions[locality.Zone(z)] = []string{"north", "south"}[r.IntN(2)]
		client.Seed(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + string(z), Labels: map[string]string{corev1.LabelTopologyZone: string(z), corev1.LabelTopologyRegion: c.regions[locality.Zone(z)]}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(strconv.Itoa(cpu))},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
		if measured && r.IntN(4) > 0 {
			c.rates[locality.Zone(z)] = 300 * r.Float64()
		}
	}
	client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	if c.priced = r.IntN(3) > 0; c.priced {
		client.Seed(&meshv1alpha1.ZoneCosts{
			ObjectMeta: metav1.ObjectMeta{Name: topology.DefaultCosts}, Spec: meshv1alpha1.ZoneCostsSpec{Price: &meshv1alpha1.ZonePrice{Currency: currency, Region: priceRegion, World: priceWorld}},
		})
	}
	for k := range 1 + r.IntN(6) {
		name, mode := fmt.Sprintf("web-%d", k), []string{"Disabled", "Auto", topology.Adaptive, topology.Adaptive}[r.IntN(4)]
		c.services[resource.Key{Namespace: "shop", Name: name}] = mode
		if measured && r.IntN(4) > 0 {
			c.ways[proxy.ServiceName{Namespace: "shop", Name: name}] = c.waysOf(r)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: new(int32(80))}},
		}
		for i := range 1 + r.IntN(14) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.0.%d.%d", k, i+1)}, Zone: new(string(zones[r.IntN(len(zones))])), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		client.Seed(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{corev1.AnnotationTopologyMode: mode}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}, slice)
	}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	c.plans = topology.New(topology.Config{Client: client, Catalog: world, Demand: c.traffic})
	c.table = summary.New(summary.Config{Catalog: world, Tallier: c.plans.Tallier()})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{world.Run, c.plans.Run, c.table.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	handlers := admin.Handlers(admin.Config{
		Tables: world, Planner: c.plans, Sums: func() *summary.Table { return c.table }, Logger: slog.New(slog.DiscardHandler), Authorizer: anybody{},
		Store: storememory.New(storememory.Options{}), Audit: func() audit.States { return nil }, Tokens: noTokens{},
		Problems: func(*admin.Status, *catalog.Snapshot) []admin.Problem { return nil },
	})
	rest, err := fake.Serve(fake.New(small))
	if err != nil {
		t.Fatal(err)
	}
	fill(rest, small)
	c.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := handlers[r.URL.Path]
		if of == nil || !strings.HasPrefix(r.URL.Path, "/proxima/v1/summary/") && r.URL.Path != admin.StreamPath && r.URL.Path != admin.SeriesPath {
			rest.ServeHTTP(w, r) // pages, and what has no numbers of the planner
			return
		}
		of.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "test"})))
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

// prices of a GB between zones of a region, and between regions.
const (
	currency                = "EUR"
	priceRegion, priceWorld = 0.01, 0.02
)

// waysOf the connections of a Service: those that start in a zone go to some others, with so many bytes each.
func (c *cluster) waysOf(r *rand.Rand) (ways []demand.Carried) {
	zones := slices.Sorted(maps.Keys(c.regions))
	for _, from := range zones {
		for left, n := c.rates[from], 1+r.IntN(3); left > 0 && n > 0; n-- {
			x := left
			if n > 1 {
				x *= r.Float64()
			}
			left -= x
			bytes := x * math.Exp(5+5*r.Float64())
			ways = append(ways, demand.Carried{From: from, To: zones[r.IntN(len(zones))], Opened: x, BytesIn: bytes, BytesOut: 10 * bytes * r.Float64()})
		}
	}
	return ways
}

// month that bytes cost, in the words of docs/how-to/traffic-costs.md.
func (c *cluster) month(w demand.Carried) float64 {
	price := priceWorld
	switch {
	case !c.priced, w.From == w.To:
		return 0
	case c.regions[w.From] == c.regions[w.To]:
		price = priceRegion
	}
	return (w.BytesIn + w.BytesOut) * 2.63e6 * price / 1e9
}

func (c *cluster) costOf(service proxy.ServiceName) (sum float64) {
	for _, w := range c.ways[service] {
		sum += c.month(w)
	}
	return sum
}

// savings by the best plan of each Service, as "proxima simulate --top" has it.
func (c *cluster) savings() (map[string]topology.Saved, error) {
	out := map[string]topology.Saved{}
	if !c.priced || len(c.ways) == 0 {
		return out, nil
	}
	answer, err := c.plans.Simulate(topology.Change{Top: 100})
	if err != nil {
		return nil, err
	}
	for _, s := range answer.Top {
		out[s.Service] = s
	}
	return out, nil
}

// number of a cell: its value, and half of the last digit that it shows.
func number(cell string) (x, half float64, err error) {
	text := strings.NewReplacer("\u202f", "", "%", "", "×", "", "/s", "", "+", "", "−", "-", " points", "", " "+currency, "", currency, "").Replace(strings.TrimSpace(cell))
	if text == "–" || text == "-" {
		return 0, 0, nil
	}
	if strings.HasPrefix(text, "<") {
		return 0, 0.01, nil
	}
	if x, err = strconv.ParseFloat(text, 64); err != nil {
		return 0, 0, fmt.Errorf("%q is no number", cell)
	}
	decimals := 0
	if _, after, ok := strings.Cut(text, "."); ok {
		decimals = len(after)
	}
	return x, 0.5 * math.Pow(10, -float64(decimals)), nil
}

// front serves one cluster after the other at one address, as a browser takes seconds to start.
type front struct {
	mu sync.Mutex
	to http.Handler
}

func (f *front) set(h http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = h
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	to.ServeHTTP(w, r)
}

// TestNumbersAgree: for random clusters, what pages show is what the command line prints, and what the planner computes, but for
// what is rounded away.
func TestNumbersAgree(t *testing.T) {
	clusters := uint64(20)
	if os.Getenv("PROXIMA_SOAK") != "" {
		clusters = 200
	}
	f := &front{to: http.NotFoundHandler()}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
		"clusters": [{"name": "x", "cluster": {"server": %q}}], "users": [{"name": "x", "user": {"token": %q}}]}`, server.URL, fake.Token)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, server.URL)
	for seed := range clusters {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			outer := b.T
			b.T = t
			defer func() { b.T = outer }()
			c := newCluster(t, seed)
			f.set(c.handler)
			var problems []string
			// Plans are made, and sums follow, within moments.
			for began := time.Now(); time.Since(began) < patience/2; {
				if problems = c.compare(b, file, seed == 0 && problems == nil); len(problems) == 0 {
					return
				}
			}
			t.Error(strings.Join(problems, "\n"))
		})
	}
}

// comparison collects what differs.
type comparison []string

// near compares what is shown with a value. Streams have three digits.
func (c *comparison) near(what, cell string, want float64) {
	x, half, err := number(cell)
	if err != nil || math.Abs(x-want) > max(half, 0.005*math.Abs(want))+1e-9 {
		*c = append(*c, fmt.Sprintf("%s: %q, want %v", what, cell, want))
	}
}

func (c *comparison) same(what string, got, want any) {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		*c = append(*c, fmt.Sprintf("%s: %v, want %v", what, got, want))
	}
}

// compare the pages, the command line and the planner.
func (c *cluster) compare(b *tab, kubeconfig string, enter bool) []string {
	b.Helper()
	var out comparison
	survey, err := c.plans.Survey(topology.SurveyQuestion{})
	if err != nil || len(survey.Services) != len(c.services) {
		return []string{fmt.Sprintf("the survey has %v, %v", survey, err)}
	}
	savings, err := c.savings()
	if err != nil {
		return []string{err.Error()}
	}
	of := map[string]topology.Surveyed{}
	for _, s := range survey.Services {
		of[s.Service] = s
	}
	if enter {
		b.enter()
	} else {
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(b.origin+"/console/#/"), chromedp.WaitVisible("nav"))
	}
	b.is(settled + " && document.querySelector('.facts')")
	var facts map[string]string
	b.eval(`Object.fromEntries([...document.querySelectorAll('main > div > .facts .fact, main .facts .fact')].map(f => [f.querySelector('dt').firstChild.textContent, f.querySelector('dd').innerText]))`, &facts)
	var zones, flows, services [][]string
	b.eval(`[...document.querySelectorAll('figure.map svg a')].map(a => [...a.querySelectorAll('text')].map(e => e.textContent))`, &zones)
	b.eval(`[...document.querySelectorAll('details.numbers tbody tr')].map(r => [...r.children].map(e => e.textContent))`, &flows)
	var columns []string
	b.eval(`[...document.querySelectorAll('details.numbers thead th')].map(e => e.textContent)`, &columns)
	b.at("#/services?sort=name")
	b.is(settled + " && document.querySelector('main tbody th')")
	b.eval(`[...document.querySelectorAll('main tbody tr')].map(r => [...r.children].map(e => e.innerText))`, &services)

	lines := wordsOf(b, kubeconfig, "top", "services", "--once", "--sort", "name")
	if len(services) != len(c.services) || len(lines) != len(c.services)+3 {
		return append(out, fmt.Sprintf("%d Services; the page has %d, the command line %q", len(c.services), len(services), lines))
	}
	stay, best, spent, saved := 0.0, 0.0, 0.0, 0.0
	known := false // what it costs
	measured := len(c.rates) > 0
	total := 0.0
	for _, x := range c.rates {
		total += x
	}
	for i, row := range services {
		line := slices.DeleteFunc(lines[3+i], func(w string) bool { return w == "(refused)" })
		namespace, name, _ := strings.Cut(row[0], "/")
		key := resource.Key{Namespace: namespace, Name: name}
		want := of[row[0]].KubeProxy
		if report, ok := c.plans.Explain(key); ok && c.services[key] == topology.Adaptive && len(report.Plans) > 0 {
			want = report.Plans[0].Now
		}
		plan := of[row[0]].Plan
		stay, best = stay+want.InZone, best+plan.InZone
		out.same(row[0]+" on the command line", line[0]+"/"+line[1], row[0])
		mode, short := c.services[key], strings.TrimPrefix(c.services[key], "proxima.dev/")
		if mode == "Disabled" { // it is as no mode
			mode, short = "none", "-"
		}
		out.same(row[0]+": mode", row[1], mode)
		out.same(row[0]+": mode on the command line", line[2], short)
		out.same(row[0]+": state", row[2], line[len(line)-1])
		out.same(row[0]+": endpoints", row[3], fmt.Sprintf("%d in %d", of[row[0]].Endpoints, of[row[0]].Zones))
		out.same(row[0]+": endpoints on the command line", line[7], of[row[0]].Endpoints)
		if measured {
			out.near(row[0]+": demand", row[4], total)
			out.near(row[0]+": demand on the command line", line[3], total)
		} else {
			out.same(row[0]+": demand", row[4]+line[3], "estimatedestimated")
		}
		for _, x := range []struct {
			what, page, line string
			want             float64
		}{{"stays", row[5], line[4], 100 * want.InZone}, {"best", row[6], line[5], 100 * plan.InZone}, {"busiest", row[7], line[6], want.Worst}} {
			out.near(row[0]+": "+x.what, x.page, x.want)
			out.near(row[0]+": "+x.what+" on the command line", x.line, x.want)
		}
		if !c.priced || c.ways[proxy.ServiceName(key)] == nil {
			out.same(row[0]+": cost and saving", row[8]+row[9]+line[8]+line[9], "––--")
			continue
		}
		known = true
		cost, saving := c.costOf(proxy.ServiceName(key)), savings[row[0]].Saving
		spent, saved = spent+cost, saved+saving
		for _, x := range []struct {
			what, page, line string
			want             float64
		}{{"cost", row[8], line[8], cost}, {"saving", row[9], line[10], saving}} {
			out.near(row[0]+": "+x.what, x.page, x.want)
			out.near(row[0]+": "+x.what+" on the command line", x.line, x.want)
		}
		out.same(row[0]+": currency on the command line", line[9]+line[11], currency+currency)
	}
	n := float64(len(services))
	out.near("Overview: Services", facts["Services"], n)
	if known {
		out.near("Overview: cost a month", facts["cost a month"], spent)
		out.near("Overview: what plans would save", facts["plans would save"], saved)
	} else {
		out.same("Overview: cost", facts["cost"], "not known")
	}
	out.near("Overview: what stays", facts["stays in its zone"], 100*stay/n)
	lines = wordsOf(b, kubeconfig, "top", "zones", "--once", "--sort", "name")
	head := strings.Join(lines[0], " ")
	_, shares, _ := strings.Cut(head, "/s, ")
	if !measured {
		_, shares, _ = strings.Cut(head, "measured, ")
	} else {
		out.near("Overview: demand", facts["demand"], n*total)
	}
	var first, second float64
	if known {
		_, cost, _ := strings.Cut(shares, "), ")
		out.near("command line: cost a month", strings.TrimSuffix(cost, " a month"), spent)
	}
	if _, err := fmt.Sscanf(shares, "%g%% stays in its zone (best plans %g%%)", &first, &second); err != nil || math.Abs(first-100*stay/n) > 0.51 || math.Abs(second-100*best/n) > 0.51 {
		out = append(out, fmt.Sprintf("%q: want %g and %g, %v", head, 100*stay/n, 100*best/n, err))
	}
	return slices.Concat(out, c.compareZones(zones, flows, columns, lines[3:]), c.compareFlows(flows, columns))
}

// compareZones of the map and its table with lines of the command line, and with what is asked for in each.
func (c *cluster) compareZones(zones, flows [][]string, columns []string, lines [][]string) []string {
	var out comparison
	measured, n := len(c.rates) > 0, float64(len(c.services))
	from := map[string]float64{}
	column := slices.Index(columns, "planned")
	if !measured {
		column = slices.Index(columns, "estimated (Services)")
	}
	for _, f := range flows {
		x, _, err := number(f[max(column, 0)])
		if column < 0 || err != nil {
			return []string{fmt.Sprintf("the table has columns %q and the flow %q: %v", columns, f, err)}
		}
		from[f[0]] += x
	}
	if len(zones) != len(lines) {
		return []string{fmt.Sprintf("the map has zones %q, the command line %q", zones, lines)}
	}
	for _, z := range zones {
		k := slices.IndexFunc(lines, func(l []string) bool { return l[0] == z[0] })
		if k < 0 {
			out = append(out, "the command line lacks zone "+z[0])
			continue
		}
		line := lines[k]
		endpoints, _, _ := strings.Cut(z[3], " ")
		if endpoints == "no" {
			out.same(z[0]+": endpoints", line[3], 0)
		} else {
			out.same(z[0]+": endpoints", endpoints, line[3])
			_, busiest, _ := strings.Cut(z[3], "busiest ")
			worst, _, _ := number(line[6])
			out.near(z[0]+": busiest", busiest, worst)
		}
		if measured {
			want := n * c.rates[locality.Zone(z[0])]
			out.near(z[0]+": demand on the command line", line[4], want)
			if math.Abs(from[z[0]]-want) > 0.01*want+0.05 {
				out = append(out, fmt.Sprintf("%s: flows of %g, want %g", z[0], from[z[0]], want))
			}
			if want > 0 {
				demand, rest, _ := strings.Cut(z[1], ", ")
				out.near(z[0]+": demand", demand, want)
				z[1] = rest
			}
		}
		if z[1] != "no clients" {
			share, _, _ := number(line[5])
			shown, half, err := number(strings.TrimSuffix(z[1], " stays"))
			if err != nil || math.Abs(share-shown) > 0.5+half {
				out = append(out, fmt.Sprintf("%s: %q stays, on the command line %q", z[0], z[1], line[5]))
			}
		}
	}
	return out
}

// compareFlows of the table with what is counted, and with what that costs.
func (c *cluster) compareFlows(flows [][]string, columns []string) []string {
	var out comparison
	type pair struct{ from, to string }
	want := map[pair][3]float64{}
	for _, ways := range c.ways {
		for _, w := range ways {
			p := pair{string(w.From), string(w.To)}
			x := want[p]
			want[p] = [3]float64{x[0] + w.Opened, x[1] + w.BytesIn + w.BytesOut, x[2] + c.month(w)}
		}
	}
	for k, name := range []string{"measured", "bytes", "a month"} {
		column := slices.Index(columns, name)
		for p, x := range want {
			row := slices.IndexFunc(flows, func(f []string) bool { return f[0] == p.from && f[1] == p.to })
			cell := "–"
			if column >= 0 && row >= 0 {
				cell = flows[row][column]
			}
			if number, unit, ok := strings.Cut(strings.TrimSuffix(cell, "/s"), "\u202f"); ok && name == "bytes" {
				x[k] /= map[string]float64{"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
				cell = number
			}
			out.near(fmt.Sprintf("flow %s → %s: %s", p.from, p.to, name), cell, x[k])
		}
		for _, f := range flows {
			if _, ok := want[pair{f[0], f[1]}]; !ok && column >= 0 {
				out.same(fmt.Sprintf("flow %s → %s: %s", f[0], f[1], name), f[column], "–")
			}
		}
	}
	return out
}

// wordsOf is what a command prints, as words of lines.
func wordsOf(b *tab, kubeconfig string, args ...string) [][]string {
	b.Helper()
	out, err := exec.Command(program(b.T), append(args, "--kubeconfig", kubeconfig)...).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var lines [][]string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

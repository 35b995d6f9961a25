package ipvs

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// newModeOn a fake, with the table in front in a network namespace.
func newModeOn(t *testing.T, fake *Fake, routes *fakeRoutes, scheduler string) *Mode {
	t.Helper()
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	ns := netns.New(t, "pipvs-mode")
	m, err := New(Options{
		Tables:    nftables.Options{Namespace: ns.Fd(), ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
		Scheduler: scheduler, kernel: fake, routes: routes,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return m
}

var webVIP, webExternal = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("203.0.113.10")

// web has a cluster IP, and an address of a load balancer that only 192.0.2.0/24 may use.
func web(list []proxy.Target, edit ...func(*proxy.PortState)) proxy.Change {
	port := proxy.Port{Name: "http", Protocol: proxy.TCP, Port: 80}
	name := proxy.ServiceName{Namespace: "shop", Name: "web"}
	s := &proxy.PortState{
		Name: proxy.PortName{ServiceName: name, Port: "http"}, Port: port, IPv4: proxy.Choice{Cluster: list},
		Service: &proxy.Service{
			Name: name, ClusterIPs: []netip.Addr{webVIP}, LoadBalancerIPs: []netip.Addr{webExternal}, Ports: []proxy.Port{port},
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		},
	}
	for _, e := range edit {
		e(s)
	}
	return proxy.Change{Name: s.Name, State: s}
}

// mark of the only service.
func (f *Fake) mark(t *testing.T) uint32 {
	t.Helper()
	all, err := f.Services()
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v: want one service", all, err)
	}
	return all[0].Key.Mark
}

// metricOf a mode, without labels.
func metricOf(t *testing.T, m *Mode, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(Metrics{m.Status})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			one := f.GetMetric()[0]
			return one.GetGauge().GetValue() + one.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestModeKeepsSourceRanges: the table admits clients by source, before IPVS sees them; explaining names scheduler and weights.
func TestModeKeepsSourceRanges(t *testing.T) {
	fake, routes := &Fake{}, &fakeRoutes{}
	m := newModeOn(t, fake, routes, Default)
	if err := m.Apply(t.Context(), []proxy.Change{web(targets(10, 30))}); err != nil {
		t.Fatal(err)
	}
	inside, outside := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.7")
	if p := m.Path(webExternal, proxy.TCP, 80, outside, ""); p.Outcome != "drop" {
		t.Errorf("from outside of the ranges: %+v", p)
	}
	for _, c := range []struct{ to, from netip.Addr }{{webExternal, inside}, {webVIP, outside}} {
		p := m.Path(c.to, proxy.TCP, 80, c.from, "")
		if p.Outcome != "endpoint" || len(p.Shares) != 2 || p.Shares[1].Slots != 3 || p.Shares[1].Of != 4 {
			t.Errorf("from %s to %s: %+v", c.from, c.to, p)
		}
		if last := p.Steps[len(p.Steps)-1]; last.Object != Name || !strings.Contains(last.Does, "scheduler wrr, one of 2 destinations") {
			t.Errorf("from %s to %s, the last step: %+v", c.from, c.to, last)
		}
	}
	if !slices.Equal(routes.have, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.PrefixFrom(webExternal, 32)}) {
		t.Errorf("routed: %v", routes.have)
	}
	for name, want := range map[string]float64{"services": 1, "destinations": 2, "draining_services": 0, "repairs_total": 0, "comparison_failures_total": 0} {
		if got := metricOf(t, m, "proxima_ipvs_"+name); got != want {
			t.Errorf("proxima_ipvs_%s is %v, want %v", name, got, want)
		}
	}
	if err := fake.SetDestination(Key{proxy.IPv4, fake.mark(t)}, Destination{Addr: at(2), Weight: 9}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.table.compare(); err != nil {
		t.Fatal(err)
	}
	if got := metricOf(t, m, "proxima_ipvs_repairs_total"); got != 1 {
		t.Errorf("after a repair, proxima_ipvs_repairs_total is %v", got)
	}
	if s := m.Status(); s.Services != 1 || s.Destinations != 2 || s.WithoutPlan != "" {
		t.Errorf("status: %+v", s)
	}
	// With affinity the table chooses, and IPVS has nothing.
	sticky := web(targets(10, 30), func(s *proxy.PortState) { s.Service.AffinityTimeout = 1e9 })
	if err := m.Apply(t.Context(), []proxy.Change{sticky}); err != nil {
		t.Fatal(err)
	}
	if left, _ := fake.Services(); len(left) != 0 {
		t.Errorf("IPVS has %v of a service with affinity", left)
	}
	if p := m.Path(webVIP, proxy.TCP, 80, outside, ""); p.Outcome != "endpoint" || p.Affinity == 0 {
		t.Errorf("with affinity: %+v", p)
	}
}

// TestEachScheduler: it is written as asked for, with weights that it understands, and status says where a plan has no effect.
func TestEachScheduler(t *testing.T) {
	for _, scheduler := range Schedulers() {
		t.Run(scheduler, func(t *testing.T) {
			b := newBench(t, &Fake{}, scheduler)
			b.list(proxy.TCP, targets(1_000_003, 3_000_007))
			want := " 1=256 2=768"
			if scheduler == "sh" {
				want = " 1=64 2=192"
			}
			b.has(scheduler + want)
			b.compared(0)
			does, shares := b.Explain(proxy.IPv4, testMark)
			if !strings.Contains(does, "scheduler "+scheduler) || strings.Contains(does, "plan") != (WithoutPlan(scheduler) != "") || len(shares) != 2 {
				t.Errorf("explained: %s, %v", does, shares)
			}
			b.fake.Connect(testKey, at(2), 1, 0)
			b.list(proxy.TCP, targets(1_000_003))
			b.has(scheduler + " 1=1 2=0")
		})
	}
	// Another scheduler after a restart changes the service in place: connections go on.
	fake := &Fake{}
	newBench(t, fake, "rr").list(proxy.TCP, targets(1, 1))
	before := fake.Changes
	b := newBench(t, fake, "lc")
	b.list(proxy.TCP, targets(1, 1))
	b.has("lc 1=1 2=1")
	if n := fake.Changes - before; n != 1 {
		t.Errorf("%d changes for another scheduler, want 1", n)
	}
}

// TestSettings: what the mode needs is written where it differs, and strict ARP only if asked for.
func TestSettings(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"net/ipv4/vs/conntrack", "net/ipv4/vs/expire_nodest_conn", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	changed, err := applySettings(root, Settings(false))
	if err != nil || len(changed) != 2 || read("net/ipv4/vs/conntrack") != "1" || read("net/ipv4/conf/all/arp_ignore") != "0" {
		t.Errorf("changed %v, %v", changed, err)
	}
	changed, err = applySettings(root, Settings(true))
	if err != nil || len(changed) != 2 || read("net/ipv4/conf/all/arp_ignore") != "1" || read("net/ipv4/conf/all/arp_announce") != "2" {
		t.Errorf("strict ARP: changed %v, %v", changed, err)
	}
	if changed, err = applySettings(root, Settings(true)); err != nil || len(changed) != 0 {
		t.Errorf("once more: changed %v, %v", changed, err)
	}
}

// TestSettingsElsewhere: in a container they are written where the machine's are mounted.
func TestSettingsElsewhere(t *testing.T) {
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	opts := Options{
		Tables: nftables.Options{Namespace: netns.New(t, "pipvs-sysctl").Fd()}, kernel: &Fake{}, routes: &fakeRoutes{}, SysctlDir: t.TempDir(),
	}
	if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "--ipvs-sysctl-dir") {
		t.Errorf("a folder without kernel parameters: %v", err)
	}
	path := filepath.Join(opts.SysctlDir, "net", "ipv4", "vs", "conntrack")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(m.Apply(t.Context(), nil), m.Close(t.Context()))
	if text, _ := os.ReadFile(path); err != nil || string(text) != "1" {
		t.Errorf("net.ipv4.vs.conntrack is %q, %v", text, err)
	}
}

// TestTimeoutsAreWholeSeconds, rounded up.
func TestTimeoutsAreWholeSeconds(t *testing.T) {
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	fake := &Fake{}
	m, err := New(Options{
		Tables: nftables.Options{Namespace: netns.New(t, "pipvs-time").Fd()}, kernel: fake, routes: &fakeRoutes{},
		TCPTimeout: 15 * 60e9, UDPTimeout: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if fake.Timeouts != (Timeouts{TCP: 900, UDP: 1}) {
		t.Errorf("timeouts: %+v", fake.Timeouts)
	}
}

package kernelspace

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns/hnstest"
)

// oracle is what the tables of fronts and flags say, in the plainest words: one line per load balancer
// that has to be there, as "VIP port/protocol > addresses target-port balancer-flags mapping-flags".
func oracle(ports map[proxy.PortName]*proxy.PortState, has map[netip.Addr]bool, f hns.Features, dsr, open bool) map[string]bool {
	want := map[string]bool{}
	line := func(vip string, s *proxy.PortState, port uint16, targets []proxy.Target, balancer, mapping int) {
		var addrs []string
		for _, t := range targets {
			if !t.Local || has[t.Addr.Addr()] {
				addrs = append(addrs, t.Addr.Addr().String())
			}
		}
		if len(addrs) == 0 {
			return
		}
		slices.Sort(addrs)
		want[fmt.Sprintf("%s %d/%d > %s %d %d %d", vip, port, map[proxy.Protocol]int{proxy.TCP: 6, proxy.UDP: 17}[s.Port.Protocol],
			strings.Join(addrs, ","), targets[0].Addr.Port(), balancer, mapping)] = true
	}
	flag := func(yes bool, n int) int {
		if yes {
			return n
		}
		return 0
	}
	for _, s := range ports {
		svc, c := s.Service, &s.IPv4
		var local []proxy.Target
		for _, t := range c.Cluster {
			if t.Local {
				local = append(local, t)
			}
		}
		external, preserve := svc.ExternalLocal && f.DSR, svc.PreserveDestination && f.DSR
		pick := func(onlyLocal bool) []proxy.Target {
			if !onlyLocal {
				return c.Cluster
			}
			if len(local) == 0 && open && !f.NetworkACL {
				return c.Cluster
			}
			return local
		}
		line(svc.ClusterIPs[0].String(), s, s.Port.Port, pick(svc.InternalLocal), flag(dsr, 1), 0)
		if s.Port.NodePort != 0 {
			targets := c.Cluster
			if external || preserve {
				targets = local
			}
			line("*", s, s.Port.NodePort, targets, flag(external, 1), 18)
		}
		for _, vip := range svc.ExternalIPs {
			line(vip.String(), s, s.Port.Port, pick(external), flag(external, 1), 16)
		}
		for _, vip := range svc.LoadBalancerIPs {
			if len(svc.SourceRanges) > 0 && !f.NetworkACL && !open {
				continue
			}
			line(vip.String(), s, s.Port.Port, pick(external || preserve), flag(external || preserve, 1), 16+flag(preserve, 12))
		}
	}
	return want
}

// world of the model test.
type world struct {
	*rapid.T
	hns     *hnstest.Fake
	opts    Options
	mode    *Mode
	network string
	has     map[netip.Addr]bool // local endpoints
	ids     map[netip.Addr]string
	ports   map[proxy.PortName]*proxy.PortState
	foreign []string
}

func (w *world) open() {
	m, err := New(w.opts)
	if err != nil {
		w.Fatal(err)
	}
	w.mode = m
}

func (w *world) addNetwork() {
	n := hns.Network{Name: testNetwork, Type: w.network}
	if w.network == hns.Overlay {
		n.RemoteSubnets = []hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), ProviderAddress: netip.MustParseAddr("192.168.1.2")}}
	}
	w.hns.AddNetwork(n)
	for a := range w.has {
		w.ids[a] = w.hns.AddLocal(testNetwork, "pod", a)
	}
}

func localAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, byte(10 + i)}) }

func (w *world) drawPort(i int) *proxy.PortState {
	flip := func(label string) bool { return rapid.Bool().Draw(w.T, label) }
	svc := &proxy.Service{
		Name: proxy.ServiceName{Namespace: "shop", Name: fmt.Sprint("s", i)}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)})},
		InternalLocal: flip("internal"), ExternalLocal: flip("external"), PreserveDestination: flip("preserve"),
	}
	port := proxy.Port{Port: 80, Protocol: rapid.SampledFrom([]proxy.Protocol{proxy.TCP, proxy.UDP}).Draw(w.T, "protocol")}
	if flip("node port") {
		port.NodePort = uint16(30000 + i)
	}
	if flip("external address") {
		svc.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
	}
	if flip("ingress") {
		svc.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})}
		if flip("ranges") {
			svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}
	}
	var here, elsewhere []string
	for _, n := range rapid.SliceOfDistinct(rapid.IntRange(0, 3), rapid.ID).Draw(w.T, "here") {
		here = append(here, netip.AddrPortFrom(localAddr(n), 8080).String())
	}
	for _, n := range rapid.SliceOfDistinct(rapid.IntRange(0, 3), rapid.ID).Draw(w.T, "elsewhere") {
		elsewhere = append(elsewhere, fmt.Sprintf("10.244.2.%d:8080", n+20))
	}
	return state(svc, port, strings.Join(here, " "), strings.Join(elsewhere, " "))
}

// fail at random while do runs.
func (w *world) flaky(do func()) {
	from := rapid.IntRange(0, 30).Draw(w.T, "fails from call")
	n := rapid.IntRange(0, 3).Draw(w.T, "calls that fail")
	kind := rapid.SampledFrom([]error{hns.ErrUnavailable, hns.ErrExists, hns.ErrNotFound, hns.ErrNotImplemented, hns.ErrNetworkNotFound}).Draw(w.T, "error")
	done := rapid.Bool().Draw(w.T, "with effect")
	w.hns.Fail(func(call int, name string) (error, bool) {
		if call >= from && call < from+n && name != "Features" {
			return kind, done
		}
		return nil, false
	})
	do()
	w.hns.Fail(nil)
}

func (w *world) apply() {
	var changes []proxy.Change
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 4), 1, 3, rapid.ID).Draw(w.T, "services") {
		s := w.drawPort(i)
		if rapid.IntRange(0, 3).Draw(w.T, "gone") == 0 {
			delete(w.ports, s.Name)
			changes = append(changes, proxy.Change{Name: s.Name})
			continue
		}
		w.ports[s.Name] = s
		changes = append(changes, proxy.Change{Name: s.Name, State: s})
	}
	w.flaky(func() { _ = w.mode.Apply(w.Context(), changes) })
}

func (w *world) restart() {
	_ = w.mode.Close(w.Context())
	w.open()
	var changes []proxy.Change
	for name, s := range w.ports {
		changes = append(changes, proxy.Change{Name: name, State: s})
	}
	w.flaky(func() { _ = w.mode.Apply(w.Context(), changes) })
}

func (w *world) endpoint() {
	a := localAddr(rapid.IntRange(0, 3).Draw(w.T, "pod"))
	if w.has[a] {
		delete(w.has, a)
		w.hns.RemoveEndpoint(w.ids[a])
		return
	}
	w.has[a] = true
	w.ids[a] = w.hns.AddLocal(testNetwork, "pod", a)
}

// settle, and compare.
func (w *world) check() {
	for range 4 {
		w.mode.look(true)
	}
	endpoints := w.hns.Endpoints()
	balancers := w.hns.Balancers()
	for _, id := range w.foreign {
		if _, ok := balancers[id]; !ok {
			w.Fatal("a load balancer of another program is gone")
		}
		delete(balancers, id)
	}
	got := map[string]bool{}
	used := map[string]bool{}
	for _, b := range balancers {
		var addrs []string
		for _, id := range b.Endpoints {
			used[id] = true
			addrs = append(addrs, endpoints[id].Addrs[0].String())
		}
		slices.Sort(addrs)
		vip := "*"
		if len(b.VIPs) > 0 {
			vip = b.VIPs[0].String()
		}
		got[fmt.Sprintf("%s %d/%d > %s %d %d %d", vip, b.Mapping.ExternalPort, b.Mapping.Protocol, strings.Join(addrs, ","), b.Mapping.InternalPort, b.Flags, b.Mapping.Flags)] = true
	}
	want := oracle(w.ports, w.has, w.mode.can.features, w.opts.EnableDSR, w.opts.AllowOpen)
	if diff := gocmp.Diff(want, got); diff != "" {
		w.Fatalf("load balancers (-want +got):\n%s", diff)
	}
	for id, e := range endpoints {
		vip := slices.ContainsFunc(e.Addrs, netip.MustParsePrefix("10.96.0.0/16").Contains)
		if e.Remote && own(e) && !used[id] && !vip {
			w.Fatalf("endpoint %s is left", e.Name)
		}
	}
	rules := 0
	for _, p := range w.mode.ports {
		rules += len(p.plan.acls)
	}
	if got := w.hns.ACLs(testNetwork); len(got) != rules {
		w.Fatalf("%d rules, want %d", len(got), rules)
	}
}

// TestModel: whatever changes, fails and restarts, HNS ends up with what the tables say, and with no
// leftovers of it.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		w := &world{
			T: t, hns: hnstest.New(), has: map[netip.Addr]bool{}, ids: map[netip.Addr]string{}, ports: map[proxy.PortName]*proxy.PortState{},
			network: rapid.SampledFrom([]string{hns.L2Bridge, hns.Overlay}).Draw(t, "network"),
		}
		flip := func(label string) bool { return rapid.Bool().Draw(t, label) }
		w.hns.SetFeatures(hns.Features{DSR: flip("DSR"), RemoteSubnet: true, ModifyLoadBalancer: flip("modify"), NetworkACL: flip("rules")})
		w.addNetwork()
		w.opts = Options{
			HNS: w.hns, StateFile: filepath.Join(dir, fmt.Sprint(runs)), Network: testNetwork, Interval: time.Hour, write: os.WriteFile, AllowOpen: flip("open"),
			NodeAddresses: func() []netip.Addr { return []netip.Addr{nodeIP} }, HostMAC: func(netip.Addr) (string, error) { return "mac", nil },
		}
		if w.network == hns.Overlay {
			w.opts.SourceVIP = sourceIP
		}
		w.open()
		defer func() { _ = w.mode.Close(t.Context()) }()
		w.restart() // an empty first state
		t.Repeat(map[string]func(*rapid.T){
			"apply":    func(*rapid.T) { w.apply() },
			"restart":  func(*rapid.T) { w.restart() },
			"endpoint": func(*rapid.T) { w.endpoint() },
			"look":     func(*rapid.T) { w.flaky(func() { w.mode.look(false) }) },
			"network": func(*rapid.T) {
				w.addNetwork()
			},
			"foreign": func(t *rapid.T) {
				w.foreign = append(w.foreign, w.hns.AddBalancer(hns.LoadBalancer{
					VIPs:    []netip.Addr{netip.AddrFrom4([4]byte{10, 97, 0, byte(len(w.foreign))})},
					Mapping: hns.PortMapping{Protocol: hns.TCP, ExternalPort: 80},
				}))
			},
			"": func(*rapid.T) { w.check() },
		})
		if err := w.mode.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.ports = map[proxy.PortName]*proxy.PortState{}
		if err := Cleanup(Options{HNS: w.hns, StateFile: w.opts.StateFile, write: os.WriteFile}); err != nil {
			t.Fatal(err)
		}
		if got := len(w.hns.Balancers()) - len(w.foreign); got != 0 {
			t.Fatalf("%d load balancers are left", got)
		}
		for _, e := range w.hns.Endpoints() {
			if own(e) {
				t.Fatalf("endpoint %s is left", e.Name)
			}
		}
		if got := w.hns.ACLs(testNetwork); len(got) != 0 {
			t.Fatalf("rules are left: %+v", got)
		}
	})
}

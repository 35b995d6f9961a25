package kernelspace

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns/hnstest"
)

// rig is a mode on a fake HNS. It looks at HNS when a test says so.
type rig struct {
	*testing.T
	hns  *hnstest.Fake
	opts Options
	mode *Mode
}

const testNetwork = "cbr0"

var (
	nodeIP   = netip.MustParseAddr("192.168.1.1")
	node6    = netip.MustParseAddr("fd00:1::1")
	sourceIP = netip.MustParseAddr("10.244.1.2")
)

// newRig has a network of a type, with Pods 10.244.1.10 and .11 (and fd00:10::10, ::11) of this node.
func newRig(t *testing.T, network string, change func(*Options)) *rig {
	t.Helper()
	r := &rig{T: t, hns: hnstest.New()}
	r.addNetwork(network)
	r.opts = Options{
		HNS: r.hns, StateFile: filepath.Join(t.TempDir(), "kernelspace.json"), Network: testNetwork, Interval: time.Hour, write: os.WriteFile,
		NodeAddresses: func() []netip.Addr { return []netip.Addr{nodeIP, node6} },
		HostMAC:       func(netip.Addr) (string, error) { return "00-15-5d-aa-bb-cc", nil },
		Logger:        slog.New(slog.DiscardHandler),
	}
	if network == hns.Overlay {
		r.opts.SourceVIP = sourceIP
	}
	if change != nil {
		change(&r.opts)
	}
	r.restart()
	return r
}

func (r *rig) addNetwork(kind string) {
	n := hns.Network{Name: testNetwork, Type: kind}
	if kind == hns.Overlay {
		n.RemoteSubnets = []hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), ProviderAddress: netip.MustParseAddr("192.168.1.2")}}
	}
	r.hns.AddNetwork(n)
	r.hns.AddLocal(testNetwork, "pod-a", netip.MustParseAddr("10.244.1.10"), netip.MustParseAddr("fd00:10::10"))
	r.hns.AddLocal(testNetwork, "pod-b", netip.MustParseAddr("10.244.1.11"), netip.MustParseAddr("fd00:10::11"))
	r.hns.AddLocal(testNetwork, "cbr0_ep", netip.MustParseAddr("10.244.1.1"))
}

// restart the agent.
func (r *rig) restart() {
	r.Helper()
	if r.mode != nil {
		_ = r.mode.Close(r.Context())
	}
	m, err := New(r.opts)
	if err != nil {
		r.Fatal(err)
	}
	r.mode = m
	r.Cleanup(func() { _ = m.Close(r.Context()) })
}

func (r *rig) apply(states ...*proxy.PortState) {
	r.Helper()
	if err := r.mode.Apply(r.Context(), changes(states...)); err != nil {
		r.Fatal(err)
	}
}

func changes(states ...*proxy.PortState) (out []proxy.Change) {
	for _, s := range states {
		out = append(out, proxy.Change{Name: s.Name, State: s})
	}
	return out
}

// fronts that HNS has, each in a line: addresses of endpoints in place of identifiers.
func (r *rig) fronts() []string {
	endpoints := r.hns.Endpoints()
	var out []string
	for _, b := range r.hns.Balancers() {
		var addrs []string
		for _, id := range b.Endpoints {
			e, ok := endpoints[id]
			if !ok {
				r.Errorf("load balancer %s refers to endpoint %s, which is not there", b.ID, id)
				continue
			}
			i := 0
			if b.Flags&hns.IPv6 != 0 && len(e.Addrs) > 1 {
				i = 1
			}
			addrs = append(addrs, e.Addrs[i].String())
		}
		slices.Sort(addrs)
		vip := "*"
		if len(b.VIPs) > 0 {
			vip = b.VIPs[0].String()
		}
		line := fmt.Sprintf("%s %d/%d > %s %d flags=%d mapping=%d", vip, b.Mapping.ExternalPort, b.Mapping.Protocol,
			strings.Join(addrs, ","), b.Mapping.InternalPort, b.Flags, b.Mapping.Flags)
		if b.Mapping.Distribution != 0 {
			line += fmt.Sprint(" distribution=", b.Mapping.Distribution)
		}
		if b.SourceVIP.IsValid() {
			line += " source=" + b.SourceVIP.String()
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func (r *rig) want(lines ...string) {
	r.Helper()
	slices.Sort(lines)
	if diff := gocmp.Diff(lines, r.fronts()); diff != "" {
		r.Errorf("load balancers (-want +got):\n%s", diff)
	}
}

// service of tests: two local Pods, and two of another node.
func service(change func(*proxy.Service)) *proxy.PortState {
	svc := &proxy.Service{
		Name: proxy.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []proxy.Port{{Protocol: proxy.TCP, Port: 80}},
	}
	if change != nil {
		change(svc)
	}
	return state(svc, svc.Ports[0], "10.244.1.10:8080 10.244.1.11:8080", "10.244.2.20:8080 10.244.2.21:8080")
}

// state of a service port with endpoints of this node and of others, for both families.
func state(svc *proxy.Service, port proxy.Port, here, elsewhere string) *proxy.PortState {
	s := &proxy.PortState{Name: proxy.PortName{ServiceName: svc.Name, Port: port.Name}, Service: svc, Port: port}
	for i, text := range []string{here, elsewhere} {
		for _, a := range strings.Fields(text) {
			t := proxy.Target{Addr: netip.MustParseAddrPort(a), Weight: 1, Local: i == 0}
			c := s.For(t.Addr.Addr())
			c.Cluster = append(c.Cluster, t)
			if t.Local && (svc.InternalLocal || svc.ExternalLocal) {
				c.Local = append(c.Local, t)
			}
		}
	}
	for _, c := range []*proxy.Choice{&s.IPv4, &s.IPv6} {
		if len(c.Cluster) == 0 {
			c.NoCluster, c.NoLocal = proxy.Reject, proxy.Reject
		} else if len(c.Local) == 0 && (svc.InternalLocal || svc.ExternalLocal) {
			c.NoLocal = proxy.Drop
		}
	}
	return s
}

func full(s *proxy.Service) {
	s.Ports[0].NodePort = 30080
	s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.5")}
	s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
}

const (
	all  = "10.244.1.10,10.244.1.11,10.244.2.20,10.244.2.21"
	here = "10.244.1.10,10.244.1.11"
)

// TestFronts has each row of the specification's table of fronts, under each policy.
func TestFronts(t *testing.T) {
	noDSR := hns.Features{SessionAffinity: true, ModifyLoadBalancer: true, NetworkACL: true, IPv6DualStack: true, RemoteSubnet: true}
	for name, c := range map[string]struct {
		options  func(*Options)
		features *hns.Features
		service  func(*proxy.Service)
		want     []string
		limits   []Limit
	}{
		"policies Cluster": {service: full, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
			"* 30080/6 > " + all + " 8080 flags=0 mapping=18",
			"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16",
			"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
		}},
		"internal Local": {service: func(s *proxy.Service) { full(s); s.InternalLocal = true }, want: []string{
			"10.96.0.10 80/6 > " + here + " 8080 flags=0 mapping=0",
			"* 30080/6 > " + all + " 8080 flags=0 mapping=18",
			"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16",
			"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
		}},
		"external Local": {service: func(s *proxy.Service) { full(s); s.ExternalLocal = true }, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
			"* 30080/6 > " + here + " 8080 flags=1 mapping=18",
			"203.0.113.5 80/6 > " + here + " 8080 flags=1 mapping=16",
			"198.51.100.7 80/6 > " + here + " 8080 flags=1 mapping=16",
		}},
		"preserve-destination": {service: func(s *proxy.Service) { full(s); s.PreserveDestination = true }, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
			"* 30080/6 > " + here + " 8080 flags=0 mapping=18",
			"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16",
			"198.51.100.7 80/6 > " + here + " 8080 flags=1 mapping=28",
		}},
		"--enable-dsr": {options: func(o *Options) { o.EnableDSR = true }, service: full, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=1 mapping=0",
			"* 30080/6 > " + all + " 8080 flags=0 mapping=18",
			"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16",
			"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
		}},
		"no DSR: external Local and preserve-destination are ignored": {
			features: &noDSR,
			service:  func(s *proxy.Service) { full(s); s.ExternalLocal, s.PreserveDestination = true, true },
			want: []string{
				"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
				"* 30080/6 > " + all + " 8080 flags=0 mapping=18",
				"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16",
				"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
			},
			limits: []Limit{LimitNoDSR},
		},
		"health port at the ingress address": {
			options: func(o *Options) { o.ForwardHealthChecks, o.Gateway, o.HealthPort = true, "cbr0_ep", 10256 },
			service: func(s *proxy.Service) {
				s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
				s.ExternalLocal, s.PreserveDestination, s.HealthCheckNodePort = true, true, 32000
			},
			want: []string{
				"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
				"198.51.100.7 80/6 > " + here + " 8080 flags=1 mapping=28",
				"198.51.100.7 32000/6 > 10.244.1.1 32000 flags=0 mapping=12",
			},
		},
		"health port of the agent": {
			options: func(o *Options) { o.ForwardHealthChecks, o.Gateway, o.HealthPort = true, "cbr0_ep", 10256 },
			service: func(s *proxy.Service) { s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")} },
			want: []string{
				"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
				"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
				"198.51.100.7 10256/6 > 10.244.1.1 10256 flags=0 mapping=0",
			},
		},
		"no gateway endpoint": {
			options: func(o *Options) { o.ForwardHealthChecks, o.Gateway, o.HealthPort = true, "absent", 10256 },
			service: func(s *proxy.Service) { s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")} },
			want: []string{
				"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
				"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
			},
		},
		"session affinity": {service: func(s *proxy.Service) { s.AffinityTimeout = time.Hour }, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0 distribution=2",
		}, limits: []Limit{LimitAffinityTimeout}},
		"no session affinity": {
			features: &hns.Features{DSR: true}, service: func(s *proxy.Service) { s.AffinityTimeout = time.Hour },
			want:   []string{"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0"},
			limits: []Limit{LimitAffinity},
		},
		"UDP": {service: func(s *proxy.Service) { s.Ports[0].Protocol = proxy.UDP }, want: []string{
			"10.96.0.10 80/17 > " + all + " 8080 flags=0 mapping=0",
		}},
		"SCTP": {service: func(s *proxy.Service) { s.Ports[0].Protocol = proxy.SCTP }, want: []string{
			"10.96.0.10 80/132 > " + all + " 8080 flags=0 mapping=0",
		}},
		"source ranges by access control lists": {service: func(s *proxy.Service) {
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}, want: []string{
			"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
			"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
		}},
		"source ranges without them": {
			features: &hns.Features{DSR: true},
			service: func(s *proxy.Service) {
				s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: []string{"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0"}, limits: []Limit{LimitRanges},
		},
		"source ranges without them, --windows-allow-open": {
			features: &hns.Features{DSR: true}, options: func(o *Options) { o.AllowOpen = true },
			service: func(s *proxy.Service) {
				s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			},
			want: []string{
				"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0",
				"198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16",
			},
			limits: []Limit{LimitRangesOpen},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, hns.L2Bridge, c.options)
			if c.features != nil {
				r.hns.SetFeatures(*c.features)
				r.restart()
			}
			s := service(c.service)
			r.apply(s)
			r.want(c.want...)
			if diff := gocmp.Diff(c.limits, r.mode.Limits()[s.Name]); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			acl := r.hns.ACLs(testNetwork)
			if restricted := strings.HasPrefix(name, "source ranges by"); restricted != (len(acl) == 4) {
				t.Errorf("access control lists: %+v", acl)
			}
			calls := len(r.hns.Balancers())
			r.hns.Fail(nil)
			r.apply(s)
			if got := r.hns.Calls(); slices.ContainsFunc(got, changing) || len(r.hns.Balancers()) != calls {
				t.Errorf("the same state once more is not nothing: %q", got)
			}
			if err := r.mode.Apply(t.Context(), []proxy.Change{{Name: s.Name}}); err != nil {
				t.Fatal(err)
			}
			r.want()
			r.clean()
		})
	}
}

func changing(call string) bool {
	return !slices.Contains([]string{"Features", "NetworkByName", "EndpointsOf", "EndpointByName", "LoadBalancers", "LoadBalancerByID"}, call)
}

// clean: nothing of the mode is left but the endpoint of --source-vip.
func (r *rig) clean() {
	r.Helper()
	for _, e := range r.hns.Endpoints() {
		if e.Remote && own(e) {
			r.Errorf("endpoint %s is left", e.Name)
		}
	}
	if acl := r.hns.ACLs(testNetwork); len(acl) > 0 {
		r.Errorf("access control lists are left: %+v", acl)
	}
}

// TestEmptyLists: no endpoint is no load balancer; what policies drop is closed, or said.
func TestEmptyLists(t *testing.T) {
	local := func(s *proxy.Service) { full(s); s.ExternalLocal, s.InternalLocal = true, true }
	for name, c := range map[string]struct {
		acl, open       bool
		here, elsewhere string
		want            []string
		rules           int
		limits          []Limit
	}{
		"no endpoint anywhere":         {acl: true, limits: []Limit{LimitReject}},
		"none here, closed by rules":   {acl: true, elsewhere: "10.244.2.20:80", rules: 6},
		"none here, no rules":          {elsewhere: "10.244.2.20:80", limits: []Limit{LimitDrop}},
		"none here, no rules and open": {open: true, elsewhere: "10.244.2.20:80", limits: []Limit{LimitDropOpen}, want: []string{"10.96.0.10 80/6 > 10.244.2.20 80 flags=0 mapping=0", "203.0.113.5 80/6 > 10.244.2.20 80 flags=1 mapping=16", "198.51.100.7 80/6 > 10.244.2.20 80 flags=1 mapping=16"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, hns.L2Bridge, func(o *Options) { o.AllowOpen = c.open })
			r.hns.SetFeatures(hns.Features{DSR: true, NetworkACL: c.acl})
			r.restart()
			svc := service(local).Service
			s := state(svc, svc.Ports[0], c.here, c.elsewhere)
			r.apply(s)
			r.want(c.want...)
			if diff := gocmp.Diff(c.limits, r.mode.Limits()[s.Name]); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			if got := r.hns.ACLs(testNetwork); len(got) != c.rules {
				t.Errorf("%d rules, want %d: %+v", len(got), c.rules, got)
			}
			r.apply(state(svc, svc.Ports[0], "10.244.1.10:80", c.elsewhere)) // and back
			if got := r.hns.ACLs(testNetwork); len(got) != 0 || len(r.fronts()) != 4 {
				t.Errorf("with a local endpoint: %+v, %q", got, r.fronts())
			}
		})
	}
}

// TestOverlay: endpoints have provider addresses, cluster IPs and the source VIP have endpoints.
func TestOverlay(t *testing.T) {
	r := newRig(t, hns.Overlay, nil)
	svc := service(func(s *proxy.Service) { s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:96::10")) }).Service
	s := state(svc, svc.Ports[0], "10.244.1.10:8080 [fd00:10::10]:8080", "10.244.2.20:8080")
	r.apply(s)
	r.want("10.96.0.10 80/6 > 10.244.1.10,10.244.2.20 8080 flags=0 mapping=0 source=10.244.1.2")
	if diff := gocmp.Diff([]Limit{LimitFamily}, r.mode.Limits()[s.Name]); diff != "" {
		t.Error("an overlay carries one family", diff)
	}
	got := map[string]hns.Endpoint{}
	for _, e := range r.hns.Endpoints() {
		if own(e) {
			e.ID, e.Network = "", ""
			got[e.Addrs[0].String()] = e
		}
	}
	want := map[string]hns.Endpoint{}
	for _, e := range []hns.Endpoint{
		{Name: "proxima-10-244-1-2", Addrs: []netip.Addr{sourceIP}, MAC: "00-15-5d-aa-bb-cc"},
		{Name: "proxima-10-96-0-10", Addrs: svc.ClusterIPs[:1], MAC: "00-15-5d-aa-bb-cc", Remote: true, ProviderAddress: nodeIP},
		{Name: "proxima-10-244-2-20", Addrs: []netip.Addr{netip.MustParseAddr("10.244.2.20")}, MAC: "02-11-0a-f4-02-14", Remote: true, ProviderAddress: netip.MustParseAddr("192.168.1.2")},
	} {
		want[e.Addrs[0].String()] = e
	}
	if diff := gocmp.Diff(want, got, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	for addr, source := range map[string]string{
		"192.168.1.2":  "192.168.1.1", // another node
		"198.51.100.9": "192.168.1.1", // outside, by way of this node
		"10.244.2.30":  "10.244.1.2",
	} {
		r.apply(state(svc, svc.Ports[0], "", addr+":8080"))
		r.want("10.96.0.10 80/6 > " + addr + " 8080 flags=0 mapping=0 source=" + source)
	}
	if err := r.mode.Apply(t.Context(), []proxy.Change{{Name: s.Name}}); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// TestOptions that do not fit the network, or HNS.
func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		network  string
		change   func(*Options)
		features hns.Features
		want     string
	}{
		"overlay without --source-vip":   {hns.Overlay, func(o *Options) { o.SourceVIP = netip.Addr{} }, hns.Features{RemoteSubnet: true}, "--source-vip"},
		"overlay without remote subnets": {hns.Overlay, nil, hns.Features{}, "remote subnets"},
		"overlay without an address": {hns.Overlay, func(o *Options) { o.NodeAddresses = nil }, hns.Features{RemoteSubnet: true},
			"no address of the family of --source-vip"},
		"DSR":     {hns.L2Bridge, func(o *Options) { o.EnableDSR = true }, hns.Features{}, "--enable-dsr"},
		"network": {hns.L2Bridge, func(o *Options) { o.Network = "" }, hns.Features{}, "--network-name"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.network, nil)
			r.hns.SetFeatures(c.features)
			if c.change != nil {
				c.change(&r.opts)
			}
			m, err := New(r.opts)
			if err == nil {
				defer m.Close(t.Context())
				err = m.Apply(t.Context(), changes(service(nil)))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %s", err, c.want)
			}
			if got := r.fronts(); len(got) > 0 {
				t.Errorf("load balancers: %q", got)
			}
		})
	}
}

// TestDualStack on l2bridge: each family has its own load balancers, with the flag of IPv6.
func TestDualStack(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	svc := service(func(s *proxy.Service) {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:96::10"))
		s.Ports[0].NodePort = 30080
	}).Service
	s := state(svc, svc.Ports[0], "10.244.1.10:8080 [fd00:10::10]:8080", "")
	r.apply(s)
	r.want(
		"10.96.0.10 80/6 > 10.244.1.10 8080 flags=0 mapping=0", "fd00:96::10 80/6 > fd00:10::10 8080 flags=2 mapping=0",
		"* 30080/6 > 10.244.1.10 8080 flags=0 mapping=18", "* 30080/6 > fd00:10::10 8080 flags=2 mapping=18",
	)
	r.hns.SetFeatures(hns.Features{DSR: true})
	r.restart()
	r.apply(s)
	r.want("10.96.0.10 80/6 > 10.244.1.10 8080 flags=0 mapping=0", "* 30080/6 > 10.244.1.10 8080 flags=0 mapping=18")
}

// TestOneTargetPort: the most frequent one; weights are said.
func TestOneTargetPort(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	svc := service(nil).Service
	s := state(svc, svc.Ports[0], "10.244.1.10:81 10.244.1.11:80", "10.244.2.20:80")
	s.IPv4.Cluster[0].Weight = 3
	s.SourceHash = true
	r.apply(s)
	r.want("10.96.0.10 80/6 > 10.244.1.11,10.244.2.20 80 flags=0 mapping=0")
	want := []Limit{LimitTargetPorts, LimitSourceHash, LimitWeights}
	slices.Sort(want)
	if diff := gocmp.Diff(want, r.mode.Limits()[s.Name]); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// TestEndpoints: local ones must exist, remote ones that others made are used and stay, and those with
// a local one's address go.
func TestEndpoints(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	foreign := r.hns.AddRemote(testNetwork, netip.MustParseAddr("10.244.2.20"))
	twice := r.hns.AddRemote(testNetwork, netip.MustParseAddr("10.244.1.10"))
	svc := service(nil).Service
	s := state(svc, svc.Ports[0], "10.244.1.10:80 10.244.1.77:80", "10.244.2.20:80")
	r.apply(s)
	r.want("10.96.0.10 80/6 > 10.244.1.10,10.244.2.20 80 flags=0 mapping=0")
	there := r.hns.Endpoints()
	if _, ok := there[twice]; ok {
		t.Error("a remote endpoint with the address of a local one stays")
	}
	if r.mode.look(false) {
		t.Error("a local endpoint that is missing is not looked for again")
	}
	r.hns.AddLocal(testNetwork, "late", netip.MustParseAddr("10.244.1.77"))
	if !r.mode.look(false) {
		t.Error("it is there now")
	}
	r.want("10.96.0.10 80/6 > 10.244.1.10,10.244.1.77,10.244.2.20 80 flags=0 mapping=0")
	if err := r.mode.Apply(t.Context(), []proxy.Change{{Name: s.Name}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.hns.Endpoints()[foreign]; !ok {
		t.Error("an endpoint of another program is gone")
	}
	r.clean()
}

// TestConflict: a front is that of the first service port by name; the other one fails alone.
func TestConflict(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	a, b := service(nil), service(func(s *proxy.Service) { s.Name.Name = "zoo" })
	err := r.mode.Apply(t.Context(), changes(b, a))
	failed := new(proxy.PortError)
	if !errors.As(err, &failed) || len(failed.Failed) != 1 || failed.Failed[b.Name] == nil {
		t.Errorf("error %v", err)
	}
	r.want("10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0")
}

// TestModify: with the feature only endpoints change, without it, or refused, the load balancer is
// made again; another flag makes it again, too.
func TestModify(t *testing.T) {
	svc := service(nil).Service
	before, after := state(svc, svc.Ports[0], "10.244.1.10:80", ""), state(svc, svc.Ports[0], "10.244.1.11:80", "")
	updates := func(r *rig) (out []string) {
		for _, c := range r.hns.Calls() {
			if changing(c) {
				out = append(out, c)
			}
		}
		return out
	}
	again := []string{"DeleteLoadBalancer", "CreateLoadBalancer"}
	for name, c := range map[string]struct {
		features hns.Features
		refuse   bool
		want     []string
	}{
		"in place":        {features: hns.Features{ModifyLoadBalancer: true}, want: []string{"UpdateLoadBalancer"}},
		"no feature":      {want: again},
		"not implemented": {features: hns.Features{ModifyLoadBalancer: true}, refuse: true, want: append([]string{"UpdateLoadBalancer"}, again...)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, hns.L2Bridge, nil)
			r.hns.SetFeatures(c.features)
			r.restart()
			r.apply(before)
			r.hns.Fail(func(_ int, call string) (error, bool) {
				if c.refuse && call == "UpdateLoadBalancer" {
					return hns.ErrNotImplemented, false
				}
				return nil, false
			})
			r.apply(after)
			r.want("10.96.0.10 80/6 > 10.244.1.11 80 flags=0 mapping=0")
			if diff := gocmp.Diff(c.want, updates(r)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			r.hns.Fail(nil)
			r.apply(before)
			if got := updates(r); c.refuse && slices.Contains(got, "UpdateLoadBalancer") {
				t.Error("what HNS does not implement is asked for again")
			}
		})
	}
	r := newRig(t, hns.L2Bridge, nil)
	r.apply(before)
	r.hns.Fail(nil)
	r.apply(state(&proxy.Service{Name: svc.Name, ClusterIPs: svc.ClusterIPs, AffinityTimeout: time.Hour}, svc.Ports[0], "10.244.1.10:80", ""))
	if diff := gocmp.Diff(again, updates(r)); diff != "" {
		t.Errorf("calls for affinity (-want +got):\n%s", diff)
	}
}

// TestForeign load balancers stay, but one at a front that a service port needs.
func TestForeign(t *testing.T) {
	for name, kind := range map[string]error{"0xb7 or port exists": hns.ErrExists} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, hns.L2Bridge, nil)
			vip := func(a string, port uint16) hns.LoadBalancer {
				return hns.LoadBalancer{VIPs: []netip.Addr{netip.MustParseAddr(a)}, Mapping: hns.PortMapping{Protocol: hns.TCP, ExternalPort: port}}
			}
			stays, goes := r.hns.AddBalancer(vip("10.96.0.10", 81)), r.hns.AddBalancer(vip("10.96.0.10", 80))
			if _, err := r.hns.CreateLoadBalancer(vip("10.96.0.10", 80)); !errors.Is(err, kind) {
				t.Fatalf("the fake admits two at a front: %v", err)
			}
			s := service(nil)
			r.apply(s)
			there := r.hns.Balancers()
			if _, ok := there[stays]; !ok {
				t.Error("a load balancer of another program is gone")
			}
			if _, ok := there[goes]; ok || len(there) != 2 {
				t.Errorf("its front is needed: %+v", there)
			}
			r.restart()
			if err := r.mode.Apply(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if there := r.hns.Balancers(); len(there) != 1 || there[stays].ID == "" {
				t.Errorf("after a restart without the service: %+v", there)
			}
		})
	}
}

// TestRestart: what is there is taken over, and what is not asked for any more goes.
func TestRestart(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	a := service(full)
	b := service(func(s *proxy.Service) {
		s.Name.Name = "api"
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
	})
	r.apply(a, b)
	before := r.hns.Balancers()
	r.restart()
	r.hns.Fail(nil)
	r.apply(a)
	for _, c := range r.hns.Calls() {
		if c == "CreateLoadBalancer" || c == "UpdateLoadBalancer" {
			t.Errorf("%s: what is there is not taken over", c)
		}
	}
	if got := r.hns.Balancers(); len(got) != len(before)-1 {
		t.Errorf("%d load balancers, want %d", len(got), len(before)-1)
	}
	_ = r.mode.Close(t.Context())
	if len(r.hns.Balancers()) != len(before)-1 {
		t.Error("Close stops traffic")
	}
	for range 2 { // twice is no error
		if err := Cleanup(Options{HNS: r.hns, StateFile: r.opts.StateFile, write: os.WriteFile}); err != nil {
			t.Fatal(err)
		}
		r.want()
		r.clean()
	}
}

// TestRecordLost: a crash between a creation and its note, and a record that is damaged.
func TestRecordLost(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	s, api := service(nil), service(func(s *proxy.Service) {
		s.Name.Name = "api"
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
	})
	crashed := false
	r.hns.Fail(func(_ int, call string) (error, bool) { // nothing comes after the first creation
		if crashed {
			return hns.ErrUnavailable, false
		}
		crashed = call == "CreateLoadBalancer"
		return nil, false
	})
	_ = r.mode.Apply(t.Context(), changes(s, api))
	if len(r.hns.Balancers()) != 1 {
		t.Fatal("no load balancer was made before the crash")
	}
	r.hns.Fail(nil)
	r.restart()
	if err := r.mode.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	r.want()
	r.apply(s)
	if err := os.WriteFile(r.opts.StateFile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.apply(s)
	r.want("10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0")
}

// TestLeftovers: what HNS does not delete, tried twice, is deleted later, 20 at a time.
func TestLeftovers(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	var states []*proxy.PortState
	for i := range 50 {
		states = append(states, service(func(s *proxy.Service) {
			s.Name.Name = fmt.Sprint("s", i)
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
		}))
	}
	r.apply(states...)
	var gone []proxy.Change
	for _, s := range states {
		gone = append(gone, proxy.Change{Name: s.Name})
	}
	deletes := 0
	r.hns.Fail(func(_ int, call string) (error, bool) {
		if call == "DeleteLoadBalancer" {
			deletes++
			return errors.New("busy"), false
		}
		return nil, false
	})
	if err := r.mode.Apply(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if want := 2*50 + deletesPerSync; deletes != want {
		t.Errorf("%d deletions, want %d", deletes, want)
	}
	r.hns.Fail(nil)
	for _, want := range []int{30, 10, 0} {
		r.mode.look(false)
		if got := len(r.hns.Balancers()); got != want {
			t.Errorf("%d are left, want %d", got, want)
		}
	}
	if !r.mode.look(false) {
		t.Error("nothing is left, and it is tried again")
	}
	r.clean()
}

// TestNetwork that is not there yet, is gone, and is another one; HNS that does not run.
func TestNetwork(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	s := service(nil)
	line := "10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0"
	r.hns.RemoveNetwork(testNetwork)
	err := r.mode.Apply(t.Context(), changes(s))
	if !errors.Is(err, hns.ErrNetworkNotFound) || !strings.Contains(err.Error(), "--network-name") {
		t.Errorf("no network: %v", err)
	}
	r.addNetwork(hns.L2Bridge)
	r.mode.look(false)
	r.want(line)

	r.addNetwork(hns.L2Bridge) // another one
	r.mode.look(false)         // which ends the synchronisation
	r.want()
	if p := r.mode.State().Problem; !strings.Contains(p, "was replaced") {
		t.Errorf("problem %q", p)
	}
	r.mode.look(false)
	r.want(line)

	r.hns.RemoveNetwork(testNetwork)
	r.mode.look(false)
	r.addNetwork(hns.L2Bridge)
	r.mode.look(false)
	r.want(line)

	r.hns.Fail(func(int, string) (error, bool) { return hns.ErrUnavailable, false })
	api := service(func(s *proxy.Service) {
		s.Name.Name = "api"
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
	})
	if err := r.mode.Apply(t.Context(), changes(api)); !errors.Is(err, hns.ErrUnavailable) {
		t.Errorf("HNS does not run: %v", err)
	}
	if calls := r.hns.Calls(); len(calls) != 1 {
		t.Errorf("a synchronisation goes on without HNS: %q", calls)
	}
	r.want(line)
	r.hns.Fail(nil)
	r.mode.look(false)
	r.want(line, "10.96.0.11 80/6 > "+all+" 8080 flags=0 mapping=0")
}

// TestDrift: what somebody else deletes comes back with a comparison.
func TestDrift(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	r.apply(service(nil))
	for id := range r.hns.Balancers() {
		_ = r.hns.DeleteLoadBalancer(id)
	}
	if d, err := r.mode.Dump(); err != nil || len(d.Missing) != 1 || len(d.Objects) != 0 {
		t.Errorf("dump %+v, %v", d, err)
	}
	r.mode.look(true)
	r.want("10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0")
	if d, err := r.mode.Dump(); err != nil || len(d.Missing) != 0 || len(d.Objects) != 1 {
		t.Errorf("dump %+v, %v", d, err)
	}
	if got := r.mode.State(); len(got.Balancers) != 1 || got.Problem != "" {
		t.Errorf("state %+v", got)
	}
}

// TestEachCallFails once, at each position, with each error, with its effect or without: the next
// looks make it as it should be, and nothing is left over.
func TestEachCallFails(t *testing.T) {
	other := errors.New("0x803b0015")
	for _, network := range []string{hns.L2Bridge, hns.Overlay} {
		for _, kind := range []error{hns.ErrUnavailable, hns.ErrExists, hns.ErrNotFound, hns.ErrNotImplemented, other} {
			for _, done := range []bool{false, true} {
				for at, hit := 0, true; hit; at++ {
					hit = false
					r := newRig(t, network, nil)
					fail := func() {
						r.hns.Fail(func(n int, _ string) (error, bool) {
							if n == at {
								hit = true
								return kind, done
							}
							return nil, false
						})
					}
					ranges := service(func(s *proxy.Service) {
						full(s)
						s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
					})
					svc := service(func(s *proxy.Service) {
						s.Name.Name, s.ClusterIPs = "api", []netip.Addr{netip.MustParseAddr("10.96.0.11")}
						s.InternalLocal = true
					}).Service
					closed := state(svc, svc.Ports[0], "", "10.244.2.20:80")
					opened := state(svc, svc.Ports[0], "10.244.1.10:80", "10.244.2.20:80")
					source := ""
					if network == hns.Overlay {
						source = " source=10.244.1.2"
					}
					web := []string{
						"10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0" + source, "* 30080/6 > " + all + " 8080 flags=0 mapping=18" + source,
						"203.0.113.5 80/6 > " + all + " 8080 flags=0 mapping=16" + source, "198.51.100.7 80/6 > " + all + " 8080 flags=0 mapping=16" + source,
					}
					for _, step := range []struct {
						changes []proxy.Change
						want    []string
						rules   int
					}{
						{changes(ranges, closed), web, 6},
						{changes(opened), append([]string{"10.96.0.11 80/6 > 10.244.1.10 80 flags=0 mapping=0" + source}, web...), 4},
						{[]proxy.Change{{Name: ranges.Name}, {Name: closed.Name}}, nil, 0},
					} {
						fail()
						_ = r.mode.Apply(t.Context(), step.changes)
						r.neverOpen(ranges)
						for range 4 {
							r.mode.look(false)
						}
						r.hns.Fail(nil)
						for range 3 {
							r.mode.look(false)
						}
						r.want(step.want...)
						if got := r.hns.ACLs(testNetwork); len(got) != step.rules {
							t.Errorf("%d rules, want %d", len(got), step.rules)
						}
						if !r.mode.look(false) {
							t.Errorf("it is not as it should be: %v", r.mode.err)
						}
						if t.Failed() {
							t.Fatalf("network %s, %v at call %d, done %v", network, kind, at, done)
						}
					}
					r.clean()
					_ = r.mode.Close(t.Context())
				}
			}
		}
	}
}

// neverOpen: a load balancer with source ranges has its rules.
func (r *rig) neverOpen(s *proxy.PortState) {
	r.Helper()
	vip := s.Service.LoadBalancerIPs[0]
	for _, b := range r.hns.Balancers() {
		if slices.Contains(b.VIPs, vip) && len(r.hns.ACLs(testNetwork)) < 4 {
			r.Errorf("%s is open to all clients", vip)
		}
	}
}

// TestMetrics: they are registered until Close, and say what there is.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	r := newRig(t, hns.L2Bridge, func(o *Options) { o.Registerer = registry })
	r.apply(service(func(s *proxy.Service) { s.AffinityTimeout = time.Hour }))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[strings.TrimPrefix(f.GetName(), "proxima_kernelspace_")] = f.GetMetric()[0].GetGauge().GetValue()
	}
	want := map[string]float64{"load_balancers": 1, "leftover_load_balancers": 0, "network": 1, "limited_service_ports": 1, "failures_total": 0}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if err := r.mode.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if families, _ := registry.Gather(); len(families) != 0 {
		t.Errorf("after Close: %v", families)
	}
}

// TestFront: what trace says of an address.
func TestFront(t *testing.T) {
	r := newRig(t, hns.L2Bridge, nil)
	svc := service(func(s *proxy.Service) { full(s); s.InternalLocal = true }).Service
	s := state(svc, svc.Ports[0], "", "10.244.2.20:80")
	r.apply(s)
	for addr, want := range map[string]string{"10.96.0.10": "drop", "203.0.113.5": "endpoint", "192.168.1.1": "endpoint", "fd00::1": "pass"} {
		line, outcome := r.mode.Front(netip.MustParseAddr(addr), s.Name)
		if outcome != want || (line != "") != (want == "endpoint") {
			t.Errorf("%s: %s by %q, want %s", addr, outcome, line, want)
		}
	}
}

// TestFailuresStayClosed: a front whose endpoints cannot be made stays as it is; without its rules a
// restricted one is not there, and rules stay until what they close is gone.
func TestFailuresStayClosed(t *testing.T) {
	failing := func(r *rig, name string) {
		r.hns.Fail(func(_ int, call string) (error, bool) {
			if call == name {
				return errors.New("busy"), false
			}
			return nil, false
		})
	}
	ranges := func(s *proxy.Service) {
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	clusterIP := "10.96.0.10 80/6 > " + all + " 8080 flags=0 mapping=0"

	r := newRig(t, hns.L2Bridge, nil)
	s := service(nil)
	r.apply(s)
	failing(r, "CreateEndpoint")
	if err := r.mode.Apply(t.Context(), changes(state(s.Service, s.Port, "", "10.244.2.99:80"))); err == nil {
		t.Error("an endpoint that cannot be made is no error")
	}
	r.want(clusterIP)

	r = newRig(t, hns.L2Bridge, nil)
	failing(r, "AddACLs")
	if err := r.mode.Apply(t.Context(), changes(service(ranges))); err == nil {
		t.Error("rules that cannot be set are no error")
	}
	r.want(clusterIP)
	r.hns.Fail(nil)
	r.mode.look(false)
	if len(r.fronts()) != 2 || len(r.hns.ACLs(testNetwork)) != 4 {
		t.Errorf("later: %q, %+v", r.fronts(), r.hns.ACLs(testNetwork))
	}
	failing(r, "DeleteLoadBalancer")
	_ = r.mode.Apply(t.Context(), []proxy.Change{{Name: s.Name}})
	if len(r.hns.ACLs(testNetwork)) != 4 {
		t.Error("rules are gone before the load balancer that they restrict")
	}
	r.hns.Fail(nil)
	r.mode.look(false)
	r.mode.look(false)
	r.want()
	r.clean()
}

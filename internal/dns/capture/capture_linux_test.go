package capture_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/proxima-mesh/proxima/internal/dns"
	"github.com/proxima-mesh/proxima/internal/dns/capture"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// The network: a pod behind a node, and a resolver behind the node, too.
const (
	resolver4, resolver6 = "192.0.2.53", "2001:db8:2::53"
	virtual4, virtual6   = "10.96.0.10", "fd00:96::10"
	outside4, outside6   = "203.0.113.7", "2001:db8:3::7"
)

type rig struct {
	pod, node *netns.NS
	server    *dns.Server
	sockets   *capture.Sockets
}

// newRig runs a resolver that answers outside4 and outside6 to everything, and the server
// of an agent on the node.
func newRig(t *testing.T) *rig {
	r := &rig{pod: netns.New(t, "pod"), node: netns.New(t, "node")}
	resolver := netns.New(t, "resolver")
	netns.Connect(r.pod, r.node, [2]string{"198.51.100.2/24", "198.51.100.1/24"}, [2]string{"2001:db8:1::2/64", "2001:db8:1::1/64"})
	netns.Connect(r.node, resolver, [2]string{"192.0.2.1/24", resolver4 + "/24"}, [2]string{"2001:db8:2::1/64", resolver6 + "/64"})
	r.node.Forward()
	for to, via := range map[string]string{"0.0.0.0/0": "198.51.100.1", "::/0": "2001:db8:1::1"} {
		r.pod.Route(to, via)
	}
	for to, via := range map[string]string{"0.0.0.0/0": "192.0.2.1", "::/0": "2001:db8:2::1"} {
		resolver.Route(to, via)
	}
	for _, address := range []string{resolver4, resolver6} {
		plain(t, resolver, address)
	}
	zone := records.New()
	web := proxy.ServiceName{Namespace: "default", Name: "web"}
	zone.Apply(records.Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{
		web: {Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr(virtual4), netip.MustParseAddr(virtual6)}},
	}})
	var err error
	if r.server, err = dns.New(dns.Config{Zone: zone}); err != nil { // without upstreams: others' names are SERVFAIL
		t.Fatal(err)
	}
	err = r.node.Do(func() (err error) { r.sockets, err = capture.Listen(); return err })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// plain answers every question in a namespace, also those without RD.
func plain(t *testing.T, in *netns.NS, address string) {
	t.Helper()
	l, err := in.Listen("tcp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := in.ListenPacket("udp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // after the shutdowns below
	for _, s := range []*mdns.Server{{Listener: l}, {PacketConn: c}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		s.Handler = mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
			a := new(mdns.Msg)
			a.SetReply(q)
			switch q.Question[0].Qtype {
			case mdns.TypeA:
				a.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET}, A: net.ParseIP(outside4)}}
			case mdns.TypeAAAA:
				a.Answer = []mdns.RR{&mdns.AAAA{
					Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeAAAA, Class: mdns.ClassINET}, AAAA: net.ParseIP(outside6),
				}}
			}
			_ = w.WriteMsg(a)
		})
		running.Go(func() { _ = s.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
}

// ask a server from a namespace; the address of the answer, or why there is none.
func ask(in *netns.NS, network, server, name string, qtype uint16, recurse bool) string {
	conn, err := dial(in, network, net.JoinHostPort(server, "53"))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	q := new(mdns.Msg)
	q.SetQuestion(name, qtype)
	q.RecursionDesired = recurse
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	r, _, err := new(mdns.Client).ExchangeWithConn(q, &mdns.Conn{Conn: conn})
	switch {
	case err != nil:
		return err.Error()
	case len(r.Answer) != 1:
		return mdns.RcodeToString[r.Rcode]
	}
	switch rr := r.Answer[0].(type) {
	case *mdns.A:
		return rr.A.String()
	case *mdns.AAAA:
		return rr.AAAA.String()
	}
	return r.String()
}

func dial(in *netns.NS, network, address string) (c net.Conn, err error) {
	err = in.Do(func() (err error) { c, err = net.Dial(network, address); return err })
	return c, err
}

const (
	cluster = "web.default.svc.cluster.local."
	others  = "www.example.org."
)

func (r *rig) serve(t *testing.T) {
	var running sync.WaitGroup
	for _, u := range r.sockets.UDP {
		running.Go(func() { _ = r.server.ServeCapturedUDP(t.Context(), u) })
	}
	for _, l := range r.sockets.TCP {
		running.Go(func() { _ = r.server.ServeCapturedTCP(t.Context(), l) })
	}
	t.Cleanup(running.Wait)
}

func (r *rig) install(t *testing.T, rules capture.Rules) *capture.Capture {
	t.Helper()
	rules.Port = r.sockets.Port
	c, err := capture.Install(r.node.Fd(), rules)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// resolve expects answers of both families by both transports.
func resolve(t *testing.T, what string, in *netns.NS, name, v4, v6 string) {
	t.Helper()
	for _, server := range []string{resolver4, resolver6} {
		for _, network := range []string{"udp", "tcp"} {
			for qtype, want := range map[uint16]string{mdns.TypeA: v4, mdns.TypeAAAA: v6} {
				got := ""
				for range 3 { // what a busy machine loses is asked again, as resolvers do
					if got = ask(in, network, server, name, qtype, true); !strings.Contains(got, "timeout") {
						break
					}
				}
				if got != want {
					t.Errorf("%s: %s of %s by %s: %s, want %s", what, name, server, network, got, want)
				}
			}
		}
	}
}

func TestCapture(t *testing.T) {
	r := newRig(t)
	r.serve(t)
	for _, in := range []*netns.NS{r.pod, r.node} {
		resolve(t, "before, in "+in.Name(), in, cluster, outside4, outside6)
	}
	kept, err := dial(r.pod, "udp", net.JoinHostPort(resolver4, "53"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	again := func() string {
		q := new(mdns.Msg)
		q.SetQuestion(cluster, mdns.TypeA)
		_ = kept.SetDeadline(time.Now().Add(5 * time.Second))
		a, _, err := new(mdns.Client).ExchangeWithConn(q, &mdns.Conn{Conn: kept})
		if err != nil || len(a.Answer) != 1 {
			return "none"
		}
		return a.Answer[0].(*mdns.A).A.String()
	}
	if got := again(); got != outside4 {
		t.Fatalf("a client that keeps its port: %s", got)
	}

	c := r.install(t, capture.Rules{})
	for _, in := range []*netns.NS{r.pod, r.node} {
		resolve(t, "captured, in "+in.Name(), in, cluster, virtual4, virtual6)
		resolve(t, "names of others, in "+in.Name(), in, others, "SERVFAIL", "SERVFAIL")
		if got := ask(in, "udp", resolver4, cluster, mdns.TypeA, false); got != outside4 {
			t.Errorf("a resolver's own question in %s: %s", in.Name(), got)
		}
	}
	if err := capture.EndFlows(r.node.Fd()); err != nil {
		t.Error(err)
	}
	if got := again(); got != virtual4 {
		t.Errorf("a client that keeps its port, captured: %s", got)
	}
	r.marked(t)
	r.guarded(t)
	if _, err := capture.Install(r.node.Fd(), capture.Rules{Port: 1}); !errors.Is(err, capture.ErrTaken) {
		t.Errorf("a second capture: %v", err)
	}
	if n := r.server.Captured(); n < 16 {
		t.Errorf("%d captured questions were counted", n)
	}

	if err := errors.Join(c.Close(), capture.EndFlows(r.node.Fd())); err != nil {
		t.Fatal(err)
	}
	for _, in := range []*netns.NS{r.pod, r.node} {
		resolve(t, "afterwards, in "+in.Name(), in, cluster, outside4, outside6)
	}
	if got := again(); got != outside4 {
		t.Errorf("a client that keeps its port, afterwards: %s", got)
	}
}

// marked questions of the node are not captured.
func (r *rig) marked(t *testing.T) {
	t.Helper()
	var conn net.Conn
	err := r.node.Do(func() (err error) {
		conn, err = (&net.Dialer{Control: capture.Control}).DialContext(t.Context(), "tcp", net.JoinHostPort(resolver6, "53"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q := new(mdns.Msg)
	q.SetQuestion(cluster, mdns.TypeAAAA)
	a, _, err := (&mdns.Client{Net: "tcp"}).ExchangeWithConn(q, &mdns.Conn{Conn: conn})
	if err != nil || len(a.Answer) != 1 || a.Answer[0].(*mdns.AAAA).AAAA.String() != outside6 {
		t.Errorf("a marked question: %v, %v", a, err)
	}
}

// guarded: nothing but what is captured reaches the port.
func (r *rig) guarded(t *testing.T) {
	t.Helper()
	address := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), r.sockets.Port).String()
	err := r.pod.Do(func() error {
		c, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err == nil {
		t.Error("the port of captured questions is open to everybody")
	}
}

// TestRules: what is captured where not all is.
func TestRules(t *testing.T) {
	r := newRig(t)
	r.serve(t)
	for what, tc := range map[string]struct {
		rules     capture.Rules
		pod, node string // what A of the cluster's name is there
	}{
		"one server of several":  {capture.Rules{Only: []netip.Addr{netip.MustParseAddr("192.0.2.54"), netip.MustParseAddr(resolver4)}}, virtual4, virtual4},
		"another server":         {capture.Rules{Only: []netip.Addr{netip.MustParseAddr(resolver6)}}, virtual4, outside4},
		"the pod is a workload":  {capture.Rules{Workloads: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, virtual4, virtual4},
		"the pod is no workload": {capture.Rules{Workloads: []netip.Prefix{netip.MustParsePrefix("198.51.100.128/25"), netip.MustParsePrefix("::/0")}}, outside4, virtual4},
	} {
		c := r.install(t, tc.rules)
		for in, want := range map[*netns.NS]string{r.pod: tc.pod, r.node: tc.node} {
			if got := ask(in, "udp", resolver4, cluster, mdns.TypeA, true); got != want {
				t.Errorf("%s, in %s: %s, want %s", what, in.Name(), got, want)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

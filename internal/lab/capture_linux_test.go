package lab_test

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestDNSCapture: programs that ask a resolver of their own find names of Services, of
// imported ones and of meshes, by both transports and of both families, on a node and behind
// it. When the agent has ended, in whatever way, the resolver's own answers are back.
func TestDNSCapture(t *testing.T) {
	l := start(t, lab.Spec{Zones: 1, Nodes: 1, Mode: "auto", DNSCapture: true})
	resolvers := []string{"10.200.1.1"}
	if l.VIP6() != "" {
		resolvers = append(resolvers, "fd00:200:1::1")
	}
	for _, address := range resolvers {
		plainResolver(t, inNamespace(t, "core"), address)
	}
	c := capturing{t: t, resolvers: resolvers, places: []*netns.NS{inNamespace(t, "a-1"), inNamespace(t, "client-a")}}
	c.expect("captured", map[string]string{
		"web.default.svc.cluster.local.": hostOf(l.VIP()), "ns.dns.clusterset.local.": "127.0.0.1", "web_default_svc_8080.mesh.": "240.0.0.0/4", others: elsewhere,
	})
	if s := c.status(l); s.Capture == nil || s.Capture.Questions == 0 {
		t.Errorf("status: %+v", s.Capture)
	}

	// Killed: the kernel takes the rules away with the process.
	gone := map[string]string{"web.default.svc.cluster.local.": elsewhere, others: elsewhere}
	if err := l.Kill(t.Context(), "a-1"); err != nil {
		t.Fatal(err)
	}
	c.expect("after kill -9", gone)
	if err := l.Heal(t.Context(), "a-1"); err != nil {
		t.Fatal(err)
	}
	back := map[string]string{"web.default.svc.cluster.local.": hostOf(l.VIP()), others: elsewhere}
	c.expect("started again", back)
	c.end(l)
	c.expect("after its end", gone)
}

const (
	others    = "www.example.org."
	elsewhere = "203.0.113.7"
)

type capturing struct {
	t         *testing.T
	resolvers []string
	places    []*netns.NS
}

// expect answers, everywhere, by UDP and TCP, of whatever resolver is asked.
func (c capturing) expect(when string, names map[string]string) {
	c.t.Helper()
	for _, in := range c.places {
		for _, server := range c.resolvers {
			for _, network := range []string{"udp", "tcp"} {
				for name, want := range names {
					got := ""
					testkit.Eventually(c.t, when+": "+name+" in "+in.Name()+" of "+server+" by "+network+" is "+want, func() bool {
						got = addressOf(in, network, server, name)
						return isIn(got, want)
					})
				}
			}
		}
	}
}

// isIn an address or a range.
func isIn(got, want string) bool {
	p, err := netip.ParsePrefix(want)
	if err != nil {
		return got == want
	}
	a, err := netip.ParseAddr(got)
	return err == nil && p.Contains(a)
}

// addressOf a name, as one server has it; empty: there is none.
func addressOf(in *netns.NS, network, server, name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	conn, err := in.DialContext(ctx, network, net.JoinHostPort(server, "53"))
	if err != nil {
		return ""
	}
	defer conn.Close()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	r, _, err := (&dns.Client{Net: network}).ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	if err != nil || len(r.Answer) == 0 {
		return ""
	}
	if a, ok := r.Answer[0].(*dns.A); ok {
		return a.A.String()
	}
	return ""
}

// status of the node's agent.
func (c capturing) status(l *lab.Lab) *admin.NodeStatus {
	c.t.Helper()
	var status struct {
		Agent *admin.NodeStatus `json:"agent"`
	}
	cmd := exec.CommandContext(c.t.Context(), testkit.Binary(c.t), "status", "-o", "json", "--data-dir", l.DataDir("a-1"))
	out, _ := cmd.Output() // it fails where it has problems to show
	if err := json.Unmarshal(out, &status); err != nil || status.Agent == nil {
		c.t.Fatalf("status: %v, %s", err, out)
	}
	return status.Agent
}

// end the agent as an init system does.
func (c capturing) end(l *lab.Lab) {
	c.t.Helper()
	pid := c.status(l).PID
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	testkit.Eventually(c.t, "the agent has ended", func() bool { return !c.places[0].Holds(pid) })
}

// plainResolver answers elsewhere to everything, in a namespace.
func plainResolver(t *testing.T, in *netns.NS, address string) {
	t.Helper()
	l, err := in.Listen("tcp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := in.ListenPacket("udp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // after the shutdowns below
	for _, s := range []*dns.Server{{Listener: l}, {PacketConn: u}} {
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			a := new(dns.Msg)
			a.SetReply(q)
			a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(elsewhere)}}
			_ = w.WriteMsg(a)
		})
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		running.Go(func() { _ = s.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
}

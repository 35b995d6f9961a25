package dns

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// resolver is an upstream that answers as the test says.
type resolver struct {
	addr  string
	asked atomic.Int32
}

func startResolver(t *testing.T, answer func(q *dns.Msg, over string) *dns.Msg) *resolver {
	t.Helper()
	u := &resolver{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.addr = listener.Addr().String()
	conn, err := net.ListenPacket("udp", u.addr)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var servers []*dns.Server
	for _, server := range []*dns.Server{{PacketConn: conn, Net: "udp"}, {Listener: listener, Net: "tcp"}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			u.asked.Add(1)
			if r := answer(q, w.LocalAddr().Network()); r != nil {
				_ = w.WriteMsg(r)
			}
		})
		running.Go(func() { _ = server.ActivateAndServe() })
		<-started
		servers = append(servers, server)
	}
	t.Cleanup(func() {
		for _, server := range servers {
			_ = server.Shutdown()
		}
		running.Wait()
	})
	return u
}

// says answers every question with records in their usual notation.
func says(records ...string) func(*dns.Msg, string) *dns.Msg {
	return func(q *dns.Msg, _ string) *dns.Msg {
		r := new(dns.Msg)
		r.SetReply(q)
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				panic(err)
			}
			if rr.Header().Rrtype == dns.TypeSOA {
				r.Ns = append(r.Ns, rr)
			} else {
				r.Answer = append(r.Answer, rr)
			}
		}
		return r
	}
}

func fails(rcode int) func(*dns.Msg, string) *dns.Msg {
	return func(q *dns.Msg, _ string) *dns.Msg {
		r := new(dns.Msg)
		r.SetRcode(q, rcode)
		return r
	}
}

func upstreams(all ...*resolver) func(*Config) {
	return func(c *Config) {
		for _, u := range all {
			c.Upstreams = append(c.Upstreams, u.addr)
		}
	}
}

func TestForward(t *testing.T) {
	good := startResolver(t, says("www.example.com. 300 IN A 192.0.2.1"))
	sick := startResolver(t, fails(dns.RcodeServerFailure))
	liar := startResolver(t, func(q *dns.Msg, _ string) *dns.Msg {
		q.Question[0].Name = "other.example.com."
		return says("other.example.com. 300 IN A 192.0.2.66")(q, "")
	})
	s := serve(t, upstreams(sick, liar, good))
	for i, name := range []string{"www.example.com.", "WWW.Example.com.", "www.example.com."} {
		r := s.ask(t, "udp", name, dns.TypeA)
		if diff := cmp.Diff([]string{name + " A 192.0.2.1"}, show(r.Answer)); diff != "" || r.Authoritative || r.Question[0].Name != name {
			t.Errorf("%d: %s", i, diff)
		}
	}
	if n := good.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if got := testutil.ToFloat64(s.metrics.cacheHits); got != 2 {
		t.Errorf("%v hits", got)
	}
	// Names of the cluster never leave.
	before := good.asked.Load() + sick.asked.Load()
	for _, name := range []string{"none.default.svc.cluster.local.", "x.cluster.local.", "7.7.96.10.in-addr.arpa."} {
		s.ask(t, "udp", name, dns.TypeA)
	}
	if n := good.asked.Load() + sick.asked.Load(); n != before {
		t.Error("a name of the cluster was sent to others")
	}
}

func TestForwardReverseNamesOfOthers(t *testing.T) {
	u := startResolver(t, says("9.2.0.192.in-addr.arpa. 300 IN PTR host.example.com."))
	s := serve(t, upstreams(u))
	r := s.ask(t, "udp", "9.2.0.192.in-addr.arpa.", dns.TypePTR)
	if len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
}

func TestForwardFailures(t *testing.T) {
	silent := startResolver(t, func(*dns.Msg, string) *dns.Msg { return nil })
	refusing := startResolver(t, fails(dns.RcodeRefused))
	for what, tt := range map[string]struct {
		upstreams []*resolver
		want      int
	}{
		"no upstream":         {nil, dns.RcodeServerFailure},
		"all fail":            {[]*resolver{refusing}, dns.RcodeRefused},
		"one does not answer": {[]*resolver{silent, startResolver(t, says("x.test. 1 IN A 192.0.2.1"))}, dns.RcodeSuccess},
	} {
		s := serve(t, upstreams(tt.upstreams...))
		q := new(dns.Msg)
		q.SetQuestion("x.test.", dns.TypeA)
		client := dns.Client{Timeout: 10 * time.Second}
		r, _, err := client.Exchange(q, s.addr)
		if err != nil || r.Rcode != tt.want {
			t.Errorf("%s: %v %v", what, r, err)
		}
	}
}

func TestForwardRetriesByTCP(t *testing.T) {
	u := startResolver(t, func(q *dns.Msg, over string) *dns.Msg {
		r := says("big.test. 300 IN TXT whole")(q, over)
		if over == "udp" {
			r.Answer, r.Truncated = nil, true
		}
		return r
	})
	s := serve(t, upstreams(u))
	if r := s.ask(t, "udp", "big.test.", dns.TypeTXT); len(r.Answer) != 1 || r.Truncated {
		t.Errorf("got %v", r)
	}
}

func TestAliasOfOthers(t *testing.T) {
	u := startResolver(t, says("www.example.com. 300 IN CNAME edge.example.net.", "edge.example.net. 300 IN A 192.0.2.1"))
	s := serve(t, upstreams(u))
	for _, network := range []string{"udp", "tcp"} {
		r := s.ask(t, network, "Outside.default.svc.cluster.local.", dns.TypeA)
		want := []string{"Outside.default.svc.cluster.local. CNAME www.example.com.", "edge.example.net. A 192.0.2.1", "www.example.com. CNAME edge.example.net."}
		if diff := cmp.Diff(want, show(r.Answer)); diff != "" || r.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: %s", network, diff)
		}
	}
}

// TestAliasOfNobody: an external name that leads nowhere is there all the same, as CoreDNS has it;
// one whose resolver fails is not known to lead nowhere.
func TestAliasOfNobody(t *testing.T) {
	for of, want := range map[int]int{dns.RcodeNameError: dns.RcodeSuccess, dns.RcodeServerFailure: dns.RcodeServerFailure} {
		s := serve(t, upstreams(startResolver(t, fails(of))))
		r := s.ask(t, "udp", "outside.default.svc.cluster.local.", dns.TypeA)
		alias := []string{"outside.default.svc.cluster.local. CNAME www.example.com."}
		if diff := cmp.Diff(alias, show(r.Answer)); diff != "" || r.Rcode != want {
			t.Errorf("%s from upstream: %s, want %s; %s", dns.RcodeToString[of], dns.RcodeToString[r.Rcode], dns.RcodeToString[want], diff)
		}
	}
}

func TestOneQuestionForMany(t *testing.T) {
	gate := make(chan struct{})
	arrived := make(chan struct{}, 10)
	u := startResolver(t, func(q *dns.Msg, over string) *dns.Msg {
		arrived <- struct{}{}
		<-gate
		return says("x.test. 300 IN A 192.0.2.1")(q, over)
	})
	s := serve(t, upstreams(u))
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if r := s.ask(t, "udp", "x.test.", dns.TypeA); len(r.Answer) != 1 {
				t.Errorf("got %v", r)
			}
		})
	}
	<-arrived
	close(gate)
	clients.Wait()
	if n := u.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestOverload(t *testing.T) {
	gate := make(chan struct{})
	arrived := make(chan struct{}, 10)
	u := startResolver(t, func(q *dns.Msg, over string) *dns.Msg {
		arrived <- struct{}{}
		<-gate
		return says("x.test. 300 IN A 192.0.2.1")(q, over)
	})
	s := serve(t, upstreams(u), func(c *Config) { c.MaxForwards = 1 })
	var first sync.WaitGroup
	first.Go(func() { s.ask(t, "udp", "x.test.", dns.TypeA) })
	<-arrived
	for _, network := range []string{"udp", "tcp"} {
		if r := s.ask(t, network, "y.test.", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %v", network, r)
		}
	}
	if r := s.ask(t, "udp", "web.default.svc.cluster.local.", dns.TypeA); len(r.Answer) != 1 {
		t.Error("names of the cluster suffer")
	}
	close(gate)
	first.Wait()
}

func TestLoopIsFoundAndLeft(t *testing.T) {
	var back atomic.Pointer[served]
	asksBack := startResolver(t, func(q *dns.Msg, _ string) *dns.Msg {
		client := dns.Client{}
		r, _, err := client.Exchange(q.Copy(), back.Load().addr)
		if err != nil {
			return nil
		}
		r.Id = q.Id
		return r
	})
	good := startResolver(t, func(q *dns.Msg, over string) *dns.Msg {
		if strings.HasSuffix(q.Question[0].Name, loopDomain) {
			return fails(dns.RcodeNameError)(q, over)
		}
		return says("x.test. 300 IN A 192.0.2.1")(q, over)
	})
	s := serve(t, upstreams(asksBack, good))
	back.Store(s)
	s.forward.checkLoops(t.Context())
	if got := testutil.ToFloat64(s.metrics.loops); got != 1 {
		t.Errorf("%v loops", got)
	}
	before := asksBack.asked.Load()
	if r := s.ask(t, "udp", "x.test.", dns.TypeA); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
	if asksBack.asked.Load() != before {
		t.Error("an upstream that asks back was asked")
	}
}

func TestRunEnds(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLifetime(t *testing.T) {
	q := new(dns.Msg)
	q.SetQuestion("x.test.", dns.TypeA)
	for what, tt := range map[string]struct {
		msg  *dns.Msg
		want time.Duration
	}{
		"the least counts":       {says("x.test. 300 IN A 192.0.2.1", "x.test. 60 IN A 192.0.2.2")(q, ""), time.Minute},
		"no longer than an hour": {says("x.test. 86400 IN A 192.0.2.1")(q, ""), time.Hour},
		"not to be kept":         {says("x.test. 0 IN A 192.0.2.1")(q, ""), 0},
		"no data":                {says("test. 300 IN SOA a. b. 1 2 3 4 20")(q, ""), 20 * time.Second},
		"no data, SOA's own":     {says("test. 10 IN SOA a. b. 1 2 3 4 20")(q, ""), 10 * time.Second},
		"no data, too long":      {says("test. 86400 IN SOA a. b. 1 2 3 4 86400")(q, ""), 5 * time.Minute},
		"no data without SOA":    {says()(q, ""), 0},
		"failure":                {fails(dns.RcodeServerFailure)(q, ""), 0},
	} {
		if got := lifetime(tt.msg); got != tt.want {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
	}
}

func TestCache(t *testing.T) {
	c := newAnswerCache(2)
	q := new(dns.Msg)
	q.SetQuestion("x.test.", dns.TypeA)
	at := time.Unix(1000, 0)
	key := func(name string) cacheKey { return cacheKey{name: name} }
	for _, name := range []string{"a", "b"} {
		c.put(key(name), says("x.test. 300 IN A 192.0.2.1")(q, ""), at)
	}
	got, ok := c.get(key("a"), at.Add(100*time.Second))
	if !ok || got.Answer[0].Header().Ttl != 200 {
		t.Fatalf("%v %v", got, ok)
	}
	got.Answer[0].Header().Ttl = 7 // the caller's own
	if again, _ := c.get(key("a"), at); again.Answer[0].Header().Ttl != 300 {
		t.Error("the cache hands out what it keeps")
	}
	c.put(key("c"), says("x.test. 300 IN A 192.0.2.1")(q, ""), at)
	if _, ok := c.get(key("b"), at); ok {
		t.Error("the one that was not used for longest stays")
	}
	if _, ok := c.get(key("a"), at.Add(300*time.Second)); ok {
		t.Error("outlived its time")
	}
	if len(c.entries) != c.recent.Len() || len(c.entries) != 1 {
		t.Errorf("%d entries, %d in the list", len(c.entries), c.recent.Len())
	}
}

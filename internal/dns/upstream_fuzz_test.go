package dns

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// FuzzUpstreamAnswer passes on what an upstream may answer, from the cache and past it: the
// result can be sent, and belongs to the question.
func FuzzUpstreamAnswer(f *testing.F) {
	question := new(dns.Msg).SetQuestion("Example.org.", dns.TypeA)
	question.SetEdns0(maxUDP, true)
	pack := func(change func(*dns.Msg)) {
		m := new(dns.Msg).SetReply(question)
		change(m)
		data, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	rr := func(text string) dns.RR {
		r, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		return r
	}
	pack(func(*dns.Msg) {})
	pack(func(m *dns.Msg) {
		m.Answer = []dns.RR{rr("example.org. 60 IN A 192.0.2.1"), rr("EXAMPLE.org. 5 IN TXT \"a\" \"b\"")}
	})
	pack(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError; m.Ns = []dns.RR{rr("org. 60 IN SOA a. b. 1 2 3 4 5")} })
	pack(func(m *dns.Msg) {
		m.Answer = []dns.RR{rr("example.org. 60 IN CNAME example.org.")}
		m.SetEdns0(512, true)
	})
	pack(func(m *dns.Msg) { m.Truncated = true })
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var in dns.Msg
		if in.Unpack(data) != nil {
			return
		}
		fw := newForwarder(Config{CacheSize: 4, MaxForwards: 1}, slog.New(slog.DiscardHandler), newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }))
		fw.cache.put(keyOf(question), &in, time.Now())
		r := new(dns.Msg).SetReply(question)
		r.SetEdns0(maxUDP, true)
		fw.exchange(context.Background(), question, r)
		if len(r.Question) != 1 || r.Question[0] != question.Question[0] || r.Id != question.Id {
			t.Errorf("not an answer to the question: %v", r)
		}
		opts := 0
		for _, extra := range r.Extra {
			if extra.Header().Rrtype == dns.TypeOPT {
				opts++
			}
		}
		if opts != 1 {
			t.Errorf("%d OPT records", opts)
		}
		if _, err := r.Pack(); err != nil {
			t.Errorf("cannot be sent: %v", err)
		}
	})
}

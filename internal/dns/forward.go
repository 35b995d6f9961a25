package dns

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Patience with upstreams: two resolvers get an answer within the five seconds
// that a stub resolver waits (resolv.conf(5), timeout).
const (
	upstreamTimeout = 2 * time.Second
	loopCheck       = 10 * time.Minute
)

// loopDomain is where the names live by which we recognise our own questions. It
// is a name that no resolver knows, so that each hands it on.
const loopDomain = ".loop-check.proxima."

// forwarder asks upstream resolvers, each question once at a time.
type forwarder struct {
	upstreams []*upstream
	log       *slog.Logger
	metrics   *metrics
	slots     chan struct{}
	cache     *answerCache

	mu     sync.Mutex
	flying map[cacheKey]*flight
}

// upstream is a resolver that is asked.
type upstream struct {
	address string
	dialer  net.Dialer
	nonce   string // the name that is asked of it alone
	seen    atomic.Bool
	loops   atomic.Bool
}

// flight is a question under way that others wait for.
type flight struct {
	done chan struct{}
	msg  *dns.Msg // nil: it failed
}

func newForwarder(config Config, log *slog.Logger, m *metrics) *forwarder {
	f := &forwarder{
		log: log, metrics: m, slots: make(chan struct{}, config.MaxForwards),
		cache: newAnswerCache(config.CacheSize), flying: make(map[cacheKey]*flight),
	}
	for _, address := range config.Upstreams {
		f.upstreams = append(f.upstreams, &upstream{
			address: address, dialer: net.Dialer{Timeout: upstreamTimeout, Control: config.Control},
			nonce: strings.ToLower(rand.Text()) + loopDomain,
		})
	}
	return f
}

// acquire takes a slot for a question to others; false: there is none.
func (f *forwarder) acquire() bool {
	select {
	case f.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (f *forwarder) release() { <-f.slots }

// start does work on its own, unless too much is under way.
func (f *forwarder) start(wg *sync.WaitGroup, work func()) bool {
	if !f.acquire() {
		return false
	}
	wg.Go(func() {
		defer f.release()
		work()
	})
	return true
}

// exchange answers q into r, from the cache or from upstreams. On failure r is
// SERVFAIL.
func (f *forwarder) exchange(ctx context.Context, q, r *dns.Msg) {
	key := keyOf(q)
	msg, ok := f.cache.get(key, time.Now())
	if ok {
		f.metrics.cacheHits.Inc()
	} else {
		msg = f.share(ctx, key, q)
	}
	if msg == nil {
		r.Rcode = dns.RcodeServerFailure
		return
	}
	r.Rcode, r.Authoritative, r.AuthenticatedData, r.Truncated = msg.Rcode, false, msg.AuthenticatedData, false
	r.Answer, r.Ns = msg.Answer, msg.Ns
	opt := r.IsEdns0()
	r.Extra = nil
	for _, rr := range msg.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			r.Extra = append(r.Extra, rr)
		}
	}
	if opt != nil {
		r.Extra = append(r.Extra, opt)
	}
	// The owner is spelt as it was asked for.
	if len(r.Question) == 1 {
		for i, rr := range r.Answer {
			if h := rr.Header(); h.Name != r.Question[0].Name && strings.EqualFold(h.Name, r.Question[0].Name) {
				r.Answer[i] = dns.Copy(rr)
				r.Answer[i].Header().Name = r.Question[0].Name
			}
		}
	}
}

// share asks, or waits for the same question that is open already. The message is shared
// and must not be changed; the lists of a copy may.
func (f *forwarder) share(ctx context.Context, key cacheKey, q *dns.Msg) *dns.Msg {
	f.mu.Lock()
	if other := f.flying[key]; other != nil {
		f.mu.Unlock()
		select {
		case <-other.done:
			return shallow(other.msg)
		case <-ctx.Done():
			return nil
		}
	}
	mine := &flight{done: make(chan struct{})}
	f.flying[key] = mine
	f.mu.Unlock()

	mine.msg = f.ask(ctx, q)
	if mine.msg != nil {
		f.cache.put(key, mine.msg, time.Now())
	}
	f.mu.Lock()
	delete(f.flying, key)
	f.mu.Unlock()
	close(mine.done)
	return shallow(mine.msg)
}

func shallow(m *dns.Msg) *dns.Msg {
	if m == nil {
		return nil
	}
	out := *m
	out.Answer = append([]dns.RR(nil), m.Answer...)
	out.Ns = append([]dns.RR(nil), m.Ns...)
	out.Extra = append([]dns.RR(nil), m.Extra...)
	return &out
}

// ask tries the upstreams in turn; nil: none could say. A server failure of one
// is a reason to ask the next.
func (f *forwarder) ask(ctx context.Context, q *dns.Msg) *dns.Msg {
	out := new(dns.Msg)
	out.Id, out.RecursionDesired, out.CheckingDisabled = dns.Id(), true, q.CheckingDisabled
	out.Question = q.Question
	opt := q.IsEdns0()
	out.SetEdns0(maxUDP, opt != nil && opt.Do())
	var failure *dns.Msg
	for _, u := range f.upstreams {
		if u.loops.Load() {
			continue
		}
		in, err := u.exchange(ctx, out)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			f.metrics.failures.Inc()
			f.log.Debug("upstream resolver failed", "upstream", u.address, "error", err)
		case in.Rcode == dns.RcodeServerFailure || in.Rcode == dns.RcodeRefused:
			failure = in
		default:
			return in
		}
	}
	return failure
}

var errOther = errors.New("answer to another question")

// exchange asks by UDP, and by TCP what does not fit.
func (u *upstream) exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	for _, network := range []string{"udp", "tcp"} {
		client := dns.Client{Net: network, Timeout: upstreamTimeout, UDPSize: maxUDP, Dialer: &u.dialer}
		in, _, err := client.ExchangeContext(ctx, q, u.address)
		if err != nil {
			return nil, fmt.Errorf("ask %s by %s: %w", u.address, network, err)
		}
		if !in.Response || len(in.Question) != 1 || !sameQuestion(in.Question[0], q.Question[0]) {
			return nil, fmt.Errorf("ask %s by %s: %w", u.address, network, errOther)
		}
		if !in.Truncated {
			return in, nil
		}
	}
	return nil, fmt.Errorf("ask %s: truncated by TCP", u.address)
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}

// watchLoops finds out, at first and now and then, which upstreams hand our
// questions back to us. These are left alone: each question would go round until
// something breaks.
func (f *forwarder) watchLoops(ctx context.Context) error {
	ticker := time.NewTicker(loopCheck)
	defer ticker.Stop()
	for {
		f.checkLoops(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (f *forwarder) checkLoops(ctx context.Context) {
	loops := 0
	for _, u := range f.upstreams {
		u.seen.Store(false)
		q := new(dns.Msg)
		q.SetQuestion(u.nonce, dns.TypeHINFO)
		_, _ = u.exchange(ctx, q) // what it says does not matter, only whether it comes back
		if ctx.Err() != nil {
			return
		}
		is := u.seen.Load()
		if is {
			loops++
		}
		if was := u.loops.Swap(is); was != is {
			if is {
				f.log.Error("upstream resolver asks this server in turn and is not used", "upstream", u.address,
					"remedy", "point it at resolvers of its own, or choose others")
			} else {
				f.log.Info("upstream resolver is used again", "upstream", u.address)
			}
		}
	}
	f.metrics.loops.Set(float64(loops))
}

// sawOwn recognises a question that we asked an upstream ourselves.
func (f *forwarder) sawOwn(name string) bool {
	if !strings.HasSuffix(name, loopDomain) {
		return false
	}
	for _, u := range f.upstreams {
		if u.nonce == name {
			u.seen.Store(true)
			return true
		}
	}
	return false
}

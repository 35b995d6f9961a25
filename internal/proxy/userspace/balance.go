package userspace

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// view is a state with its lists made ready to pick from. Immutable.
type view struct {
	state  *proxy.PortState
	v4, v6 pools
	// consumers are the views of clients of some namespaces.
	consumers map[string]*view
}

type pools struct{ cluster, local *pool }

func newView(state *proxy.PortState) *view {
	if state == nil {
		return &view{}
	}
	v := &view{
		state: state,
		v4:    newPools(&state.IPv4),
		v6:    newPools(&state.IPv6),
	}
	for namespace, own := range state.Consumers {
		if v.consumers == nil {
			v.consumers = map[string]*view{}
		}
		v.consumers[namespace] = newView(own)
	}
	return v
}

// viewFor a client: that of its namespace, where that has routes or policies of its own.
func (p *servicePort) viewFor(client netip.Addr) *view {
	v := p.view.Load()
	if len(v.consumers) == 0 {
		return v
	}
	if known := p.mode.namespaces.Load(); known != nil {
		if own := v.consumers[(*known)[client.Unmap()]]; own != nil {
			return own
		}
	}
	return v
}

// SetNamespaces implements proxy.Namespaced.
func (m *Mode) SetNamespaces(of map[netip.Addr]string) { m.namespaces.Store(&of) }

func newPools(c *proxy.Choice) pools {
	out := pools{newPool(c.Cluster), newPool(c.Local)}
	if out.local != nil {
		out.local.kept = true
	}
	if out.cluster != nil {
		out.cluster.spare = c.Fallback
	}
	return out
}

func (v *view) pools(vip netip.Addr) pools {
	if vip.Is4() {
		return v.v4
	}
	return v.v6
}

// mayTry reports whether another endpoint may be tried after these.
func (v *view) mayTry(tried []netip.AddrPort) bool {
	return v.state.TCPAttempts == 0 || len(tried) < int(v.state.TCPAttempts)
}

// serves reports whether an endpoint is in any list.
func (v *view) serves(addr netip.AddrPort) bool {
	for _, p := range []*pool{v.v4.cluster, v.v4.local, v.v6.cluster, v.v6.local} {
		if p != nil && p.has(addr) {
			return true
		}
	}
	for _, c := range []*proxy.Choice{&v.state.IPv4, &v.state.IPv6} {
		if slices.Contains(c.Held, addr) {
			return true
		}
	}
	for _, own := range v.consumers {
		if own.serves(addr) {
			return true
		}
	}
	return false
}

// pool is a list of targets, never empty; nil stands for the empty one.
type pool struct {
	targets []proxy.Target // sorted by address
	upTo    []uint64       // upTo[i]: sum of the weights of targets[:i+1]
	equal   bool           // all weights are the same
	// spare targets are tried when none of the others answers.
	spare []proxy.Target
	// kept: a traffic policy Local made the list.
	kept bool
}

func newPool(targets []proxy.Target) *pool {
	if len(targets) == 0 {
		return nil
	}
	p := &pool{targets: targets, upTo: make([]uint64, len(targets)), equal: true}
	var sum uint64
	for i, t := range targets {
		sum += uint64(max(t.Weight, 1))
		p.upTo[i] = sum
		p.equal = p.equal && t.Weight == targets[0].Weight
	}
	return p
}

func (p *pool) has(addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(p.targets, addr, compareTarget)
	return found
}

// zoneOf an endpoint of the pool, a spare one included; empty: not known.
func (p *pool) zoneOf(addr netip.AddrPort) locality.Zone {
	if i, found := slices.BinarySearchFunc(p.targets, addr, compareTarget); found {
		return p.targets[i].Zone
	}
	if i := slices.IndexFunc(p.spare, func(t proxy.Target) bool { return t.Addr == addr }); i >= 0 {
		return p.spare[i].Zone
	}
	return ""
}

func compareTarget(t proxy.Target, addr netip.AddrPort) int { return t.Addr.Compare(addr) }

// golden is 2⁶⁴ divided by the golden ratio. Its multiples modulo 2⁶⁴ (a Weyl
// sequence) fall into any interval of the range in proportion to its length,
// with the smallest discrepancy that a sequence n·α can have.
const golden = 0x9E3779B97F4A7C15

// pick is the n-th weighted choice. Compared with smooth weighted round robin it
// needs no state but n, so that connections never wait for each other; compared
// with random choice, shares are kept within a connection or two at any time.
func (p *pool) pick(n uint64) int {
	point := n * golden
	if p.equal {
		i, _ := bits.Mul64(point, uint64(len(p.targets)))
		return int(i)
	}
	x, _ := bits.Mul64(point, p.upTo[len(p.upTo)-1])
	i, _ := slices.BinarySearch(p.upTo, x+1)
	return i
}

// randomStart keeps agents that start together from choosing in step.
func randomStart() uint64 { return rand.Uint64() }

// next chooses for a new attempt: by weight among the endpoints that were not
// tried yet; spare ones, which hints would leave to other zones, when there is
// none; those under a penalty last. False: all were tried.
func (p *servicePort) next(from *pool, tried []netip.AddrPort, now time.Time) (proxy.Target, bool) {
	n := p.sequence.Add(1)
	t := from.targets[from.pick(n)]
	if !slices.Contains(tried, t.Addr) && p.mode.penalties.admit(t.Addr, now) {
		return t, true
	}
	good, bad := p.untried(from.targets, tried, now)
	if len(good) == 0 {
		spare, last := p.untried(from.spare, tried, now)
		good = spare
		if len(good) == 0 {
			good = bad
		}
		if len(good) == 0 {
			good = last
		}
	}
	left := newPool(good)
	if left == nil {
		return proxy.Target{}, false
	}
	t = left.targets[left.pick(n)]
	p.mode.penalties.admit(t.Addr, now)
	return t, true
}

// untried sorts targets into those that may well answer and those under a penalty.
func (p *servicePort) untried(targets []proxy.Target, tried []netip.AddrPort, now time.Time) (good, bad []proxy.Target) {
	for _, t := range targets {
		switch {
		case slices.Contains(tried, t.Addr):
		case p.mode.penalties.under(t.Addr, now):
			bad = append(bad, t)
		default:
			good = append(good, t)
		}
	}
	return good, bad
}

// penalties remembers, across service ports, which endpoints did not answer.
type penalties struct {
	base, probe time.Duration
	size        atomic.Int64 // of m; lets the usual case pass without the lock
	mu          sync.Mutex
	m           map[netip.AddrPort]penalty
}

type penalty struct {
	until    time.Time
	failures int
}

// newPenalties: probe bounds how long the one attempt that ends a penalty takes.
func newPenalties(base, probe time.Duration) *penalties {
	return &penalties{base: base, probe: probe, m: map[netip.AddrPort]penalty{}}
}

func (p *penalties) under(addr netip.AddrPort, now time.Time) bool {
	if p.size.Load() == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.m[addr]
	return ok && now.Before(e.until)
}

// admit reports whether an endpoint is under no penalty. Of those who come after
// a penalty has run out only the first is admitted, until failed or answered is
// called: if the endpoint is still dead, one connection finds out, not all.
func (p *penalties) admit(addr netip.AddrPort, now time.Time) bool {
	if p.size.Load() == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.m[addr]
	switch {
	case !ok:
		return true
	case now.Before(e.until):
		return false
	}
	e.until = now.Add(p.probe)
	p.m[addr] = e
	return true
}

func (p *penalties) failed(addr netip.AddrPort, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.m[addr]
	e.until = now.Add(p.base << min(e.failures, 4))
	e.failures++
	p.m[addr] = e
	if len(p.m) > 1024 && int64(len(p.m)) > p.size.Load() { // endpoints come and go
		for a, e := range p.m {
			if now.Sub(e.until) > time.Minute {
				delete(p.m, a)
			}
		}
	}
	p.size.Store(int64(len(p.m)))
}

func (p *penalties) answered(addr netip.AddrPort) {
	if p.size.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, addr)
	p.size.Store(int64(len(p.m)))
}

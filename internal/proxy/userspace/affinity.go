package userspace

import (
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// affinity keeps the clients of one service port at their endpoints. It is
// shared by the port's virtual addresses. The zero value is ready.
type affinity struct {
	mu      sync.Mutex
	m       map[netip.Addr]binding
	purgeAt int
}

type binding struct {
	addr    netip.AddrPort
	expires time.Time
}

// get returns the endpoint a client is bound to, if it is still among those to
// choose from. Every use prolongs the binding.
func (a *affinity) get(client netip.Addr, from *pool, timeout time.Duration, now time.Time) (proxy.Target, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, ok := a.m[client]
	if !ok || !now.Before(b.expires) {
		return proxy.Target{}, false
	}
	i, found := slices.BinarySearchFunc(from.targets, b.addr, compareTarget)
	if !found {
		return proxy.Target{}, false
	}
	b.expires = now.Add(timeout)
	a.m[client] = b
	return from.targets[i], true
}

// bind binds a client. Expired bindings are purged when their number may have
// doubled, so that the cost per call is constant on average.
func (a *affinity) bind(client netip.Addr, to netip.AddrPort, timeout time.Duration, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		a.m = map[netip.Addr]binding{}
	}
	a.m[client] = binding{to, now.Add(timeout)}
	if len(a.m) <= max(a.purgeAt, 1024) {
		return
	}
	for c, b := range a.m {
		if !now.Before(b.expires) {
			delete(a.m, c)
		}
	}
	a.purgeAt = 2 * len(a.m)
}

// home is where a client without a binding goes first: weighted rendezvous
// hashing, so that an agent which was restarted sends it to the endpoint it had.
func home(client netip.Addr, from *pool) proxy.Target {
	best, bestScore := 0, math.Inf(-1)
	c := client.As16()
	for i, t := range from.targets {
		// -weight/ln(u) is largest with a chance in proportion to the weight.
		if s := -float64(max(t.Weight, 1)) / math.Log(uniform(c, t.Addr)); s > bestScore {
			best, bestScore = i, s
		}
	}
	return from.targets[best]
}

// uniform hashes into (0,1). It must be the same in every process, so it is
// FNV-1a (draft-eastlake-fnv) with a final mix, as FNV's high bits are weak.
func uniform(client [16]byte, addr netip.AddrPort) float64 {
	h := uint64(14695981039346656037)
	add := func(b byte) { h = (h ^ uint64(b)) * 1099511628211 }
	for _, b := range client {
		add(b)
	}
	for _, b := range addr.Addr().As16() {
		add(b)
	}
	add(byte(addr.Port() >> 8))
	add(byte(addr.Port()))
	h ^= h >> 32
	h *= golden
	h ^= h >> 29
	return (float64(h>>11) + 0.5) / (1 << 53)
}

package userspace

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func target(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
}

func targets(weights ...uint32) (out []proxy.Target) {
	for i, w := range weights {
		out = append(out, proxy.Target{Addr: target(i), Weight: w})
	}
	return out
}

// TestSharesAreKeptAtAnyTime: after any number of picks from any start, each
// target has its share but for a few connections.
func TestSharesAreKeptAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 1000), 1, 10).Draw(t, "weights")
		p := newPool(targets(weights...))
		start := rapid.Uint64().Draw(t, "start")
		got := make([]int, len(weights))
		total := float64(p.upTo[len(weights)-1])
		for n := range 2000 {
			got[p.pick(start+uint64(n))]++
			for i, w := range weights {
				if want := float64(w) / total * float64(n+1); math.Abs(float64(got[i])-want) > 6 {
					t.Fatalf("after %d picks target %d of %v has %d, want about %.1f", n+1, i, weights, got[i], want)
				}
			}
		}
	})
}

func TestNextTriesEachOnceAndThePenalisedLast(t *testing.T) {
	now := time.Unix(1000, 0)
	m := &Mode{penalties: newPenalties(time.Second, 6*time.Second)}
	p := newServicePort(m, proxy.PortName{})
	from := newPool(targets(1, 5, 1))
	m.penalties.failed(target(1), now)

	var tried []netip.AddrPort
	for range from.targets {
		next, ok := p.next(from, tried, now)
		if !ok {
			t.Fatalf("nothing left after %v", tried)
		}
		tried = append(tried, next.Addr)
	}
	if tried[2] != target(1) || tried[0] == tried[1] {
		t.Errorf("tried in the order %v, want the penalised one last", tried)
	}
	if next, ok := p.next(from, tried, now); ok {
		t.Errorf("%v was tried twice", next)
	}
}

// TestSparesComeWhenNobodyElseAnswers: hints keep traffic near as long as near
// answers, and no longer.
func TestSparesComeWhenNobodyElseAnswers(t *testing.T) {
	now := time.Unix(1000, 0)
	m := &Mode{penalties: newPenalties(time.Second, 6*time.Second)}
	p := newServicePort(m, proxy.PortName{})
	near, far := targets(1, 1)[:1], targets(1, 1)[1:]
	from := newPools(&proxy.Choice{Cluster: near, Fallback: far}).cluster
	for range 10 {
		if next, ok := p.next(from, nil, now); !ok || next != near[0] {
			t.Fatalf("near is fine: %v, %t; want %v", next, ok, near[0])
		}
	}
	if next, ok := p.next(from, []netip.AddrPort{near[0].Addr}, now); !ok || next != far[0] {
		t.Errorf("near did not answer: %v, %t; want %v", next, ok, far[0])
	}
	m.penalties.failed(near[0].Addr, now)
	if next, ok := p.next(from, nil, now); !ok || next != far[0] {
		t.Errorf("near is under a penalty: %v, %t; want %v at once", next, ok, far[0])
	}
	m.penalties.failed(far[0].Addr, now)
	if next, ok := p.next(from, nil, now); !ok || next != near[0] {
		t.Errorf("both are under a penalty: %v, %t; want %v", next, ok, near[0])
	}
}

func TestPenalties(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPenalties(time.Second, 6*time.Second)
	a := target(1)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	if !p.admit(a, now) {
		t.Fatal("penalised without a failure")
	}
	p.failed(a, now)
	if p.admit(a, at(999*time.Millisecond)) || !p.admit(target(2), now) {
		t.Error("penalty does not last, or hits another endpoint")
	}
	if !p.admit(a, at(time.Second)) {
		t.Error("penalty does not end")
	}
	if p.admit(a, at(time.Second)) {
		t.Error("a second connection is admitted while the first finds out")
	}
	p.failed(a, at(time.Second))
	if p.admit(a, at(2900*time.Millisecond)) {
		t.Error("second penalty is not longer")
	}
	for range 20 {
		p.failed(a, now)
	}
	if !p.admit(a, at(16*time.Second)) {
		t.Error("penalty grows without bound")
	}
	p.answered(a)
	if !p.admit(a, now) || p.size.Load() != 0 {
		t.Error("an answer does not end the penalty")
	}
	for i := range 5000 {
		p.failed(target(i), now.Add(time.Duration(i)*time.Second))
	}
	if n := p.size.Load(); n > 1100 {
		t.Errorf("%d endpoints are remembered", n)
	}
}

func TestAffinity(t *testing.T) {
	now := time.Unix(1000, 0)
	from := newPool(targets(1, 1, 1))
	client := netip.MustParseAddr("192.0.2.7")
	var a affinity
	if _, ok := a.get(client, from, time.Minute, now); ok {
		t.Error("bound from the start")
	}
	a.bind(client, target(2), time.Minute, now)
	if got, ok := a.get(client, from, time.Minute, now.Add(50*time.Second)); !ok || got.Addr != target(2) {
		t.Errorf("bound to %v, %v", got, ok)
	}
	if _, ok := a.get(client, from, time.Minute, now.Add(100*time.Second)); !ok {
		t.Error("use does not prolong the binding")
	}
	if _, ok := a.get(client, newPool(targets(1, 1)), time.Minute, now.Add(100*time.Second)); ok {
		t.Error("bound to an endpoint that is gone")
	}
	if _, ok := a.get(client, from, time.Minute, now.Add(160*time.Second)); ok {
		t.Error("binding does not expire")
	}
	for i := range 10_000 {
		a.bind(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), target(0), time.Second, now.Add(time.Duration(i)*time.Second))
	}
	if len(a.m) > 2048 {
		t.Errorf("%d bindings are kept, all but one expired", len(a.m))
	}
}

// TestHome: weighted shares, and a change of the list moves only those clients
// whose endpoint is concerned.
func TestHome(t *testing.T) {
	all, fewer := newPool(targets(1, 2, 1)), newPool(targets(1, 2))
	got := map[netip.AddrPort]int{}
	const n = 20_000
	for i := range n {
		client := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		at := home(client, all).Addr
		got[at]++
		if at != target(2) && home(client, fewer).Addr != at {
			t.Fatalf("client %s moved though its endpoint stays", client)
		}
	}
	for i, want := range []float64{.25, .5, .25} {
		if share := float64(got[target(i)]) / n; math.Abs(share-want) > 0.02 {
			t.Errorf("target %d is home to %.3f, want %.2f", i, share, want)
		}
	}
}

func TestWhoIsServedWhere(t *testing.T) {
	cluster, local := targets(1), targets(1, 1)
	state := &proxy.PortState{
		Service: &proxy.Service{
			ExternalLocal: true,
			SourceRanges:  []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		},
		IPv4: proxy.Choice{Cluster: cluster, Local: local},
	}
	v := newView(state)
	m := &Mode{}
	m.host.addrs = map[netip.Addr]struct{}{netip.MustParseAddr("198.51.100.77"): {}}
	m.host.asked = time.Now().Add(time.Hour)
	p := newServicePort(m, proxy.PortName{})
	vip := netip.MustParseAddr("192.0.2.1")
	for _, tc := range []struct {
		role   role
		client string
		want   *pool
	}{
		{clusterIP, "203.0.113.9", v.v4.cluster},
		{nodePort, "203.0.113.9", v.v4.local},
		{nodePort, "127.0.0.1", v.v4.cluster},
		{nodePort, "192.0.2.1", v.v4.cluster},
		{nodePort, "198.51.100.77", v.v4.cluster},
		{externalIP, "203.0.113.9", v.v4.local},
		{externalIP, "198.51.100.77", v.v4.cluster},
		{loadBalancer, "203.0.113.9", nil},
		{loadBalancer, "198.51.100.9", v.v4.local},
		{loadBalancer, "198.51.100.77", v.v4.cluster},
	} {
		key := frontendKey{socketKey: socketKey{addr: netip.AddrPortFrom(vip, 80)}, role: tc.role}
		if tc.role == nodePort {
			key.addr = netip.AddrPortFrom(netip.IPv4Unspecified(), 80)
		}
		asked := func() netip.Addr { return vip }
		if got := p.poolFor(v, key, netip.MustParseAddr(tc.client), asked); got != tc.want {
			t.Errorf("role %d, client %s: got %v, want %v", tc.role, tc.client, got, tc.want)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	for _, n := range []int{3, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			weights := make([]uint32, n)
			for i := range weights {
				weights[i] = uint32(i + 1)
			}
			p := newServicePort(&Mode{penalties: newPenalties(time.Second, time.Second)}, proxy.PortName{})
			from := newPool(targets(weights...))
			now := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					p.next(from, nil, now)
				}
			})
		})
	}
}

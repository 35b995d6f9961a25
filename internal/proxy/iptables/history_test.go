package iptables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// randomState is a service port of any shape, of a small world in which services
// meet.
func randomState(r *rand.Rand, i int) *proxy.PortState {
	proto := []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP}[r.IntN(3)]
	port := proxy.Port{Name: "p", Protocol: proto, Port: uint16(80 + r.IntN(3))}
	if r.IntN(3) == 0 {
		port.NodePort = uint16(30000 + r.IntN(40))
	}
	svc := fmt.Sprintf("s%d", i)
	s := &proxy.PortState{Name: name(svc, "p"), Port: port, Service: &proxy.Service{
		Name: proxy.ServiceName{Namespace: "default", Name: svc}, Ports: []proxy.Port{port},
		InternalLocal: r.IntN(4) == 0, ExternalLocal: r.IntN(4) == 0,
	}}
	if r.IntN(4) == 0 {
		s.Service.AffinityTimeout = time.Duration(1+r.IntN(2)) * time.Hour
	}
	at := r.IntN(40)
	s.Service.ClusterIPs = []netip.Addr{nthAddr("10.96.0.0", at), nthAddr("fd96::", at)}[:1+r.IntN(2)]
	for range r.IntN(2) {
		s.Service.ExternalIPs = append(s.Service.ExternalIPs, nthAddr("192.0.2.0", r.IntN(3)), nthAddr("2001:db8::", r.IntN(3)))
		s.Service.LoadBalancerIPs = append(s.Service.LoadBalancerIPs, nthAddr("192.0.2.0", r.IntN(5)))
		if r.IntN(2) == 0 {
			s.Service.SourceRanges = []netip.Prefix{netip.PrefixFrom(nthAddr("198.51.100.0", r.IntN(9)), 24+r.IntN(9))}
		}
	}
	for _, c := range []*proxy.Choice{&s.IPv4, &s.IPv6} {
		first := map[*proxy.Choice]string{&s.IPv4: "10.244.0.0", &s.IPv6: "fd44::"}[c]
		for j := range r.IntN(4) {
			c.Cluster = append(c.Cluster, proxy.Target{Addr: netip.AddrPortFrom(nthAddr(first, 10*j+r.IntN(10)), 8080), Weight: uint32(r.IntN(5)), Local: r.IntN(2) == 0})
		}
		for _, t := range c.Cluster {
			if t.Local {
				c.Local = append(c.Local, t)
			}
		}
		if len(c.Cluster) == 0 {
			c.NoCluster = proxy.Reject
		}
		if len(c.Local) == 0 {
			c.NoLocal = proxy.Drop
		}
	}
	return s
}

// history is a random sequence of changes; it ends in a state that does not depend
// on how it got there.
type history struct {
	r       *rand.Rand
	current map[proxy.PortName]*proxy.PortState
}

func newHistory(seed uint64) *history {
	return &history{rand.New(rand.NewPCG(seed, 1)), map[proxy.PortName]*proxy.PortState{}}
}

func (h *history) step(ports int) []proxy.Change {
	var out []proxy.Change
	for range 1 + h.r.IntN(ports) {
		s := randomState(h.r, h.r.IntN(ports))
		if h.r.IntN(3) == 0 {
			delete(h.current, s.Name)
			out = append(out, proxy.Change{Name: s.Name})
			continue
		}
		h.current[s.Name] = s
		out = append(out, change(s))
	}
	return out
}

func (h *history) all() []proxy.Change {
	var out []proxy.Change
	for _, s := range h.current {
		out = append(out, change(s))
	}
	return out
}

// applied brings a mode to a state, repeating what fails.
func applied(t *rapid.T, m *Mode, changes []proxy.Change) {
	for range 1000 {
		if m.Apply(context.Background(), changes) == nil {
			return
		}
	}
	t.Fatal("Apply does not converge")
}

// TestHistoryLeavesNoTrace: after any history, with one operation in ten failing
// and agents that end at any time, the kernel holds what a fresh install of the
// last state would.
func TestHistoryLeavesNoTrace(t *testing.T) {
	opts := testOptions()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(rapid.Uint64().Draw(t, "seed"))
		faults := rapid.Bool().Draw(t, "faults")
		k, fresh := newFake(), newFake()
		broken := errors.New("injected")
		k.fault = func(string) error {
			if faults && h.r.IntN(10) == 0 {
				return broken
			}
			return nil
		}
		run := func(k *fakeKernel) *Mode {
			m, err := start(opts, Legacy, k, &fakeFlows{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m := run(k)
		applied(t, m, nil)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			if h.r.IntN(6) == 0 {
				_ = m.Close(context.Background())
				m = run(k)
				applied(t, m, h.all())
			}
			applied(t, m, h.step(16))
		}
		faults = false
		applied(t, m, []proxy.Change{change(state(999))}) // unused sets go with the next change
		h.current[name("s999", "p")] = state(999)
		_ = m.Close(context.Background())
		m = run(fresh)
		applied(t, m, h.all())
		_ = m.Close(context.Background())
		if diff := cmp.Diff(fresh.everything(), k.everything()); diff != "" {
			t.Fatalf("fresh install (-) and history (+) differ:\n%s", diff)
		}
	})
}

func TestUnchangedCostsNothing(t *testing.T) {
	k := newFake()
	m, flows := onFake(t, k, testOptions())
	apply(t, m, change(state(1, "10.244.0.1:80")))
	n := len(k.restored)
	apply(t, m, change(state(1, "10.244.0.1:80")), proxy.Change{Name: name("unknown", "")})
	if len(k.restored) != n {
		t.Errorf("the same state took %d further restores", len(k.restored)-n)
	}
	m2, _ := onFake(t, k, testOptions())
	apply(t, m2, change(state(1, "10.244.0.1:80")))
	if len(k.restored) != n {
		t.Errorf("a restart with the same state took %d restores", len(k.restored)-n)
	}
	_ = flows
}

// TestOneChangeIsSmall: what is written does not grow with what is there.
func TestOneChangeIsSmall(t *testing.T) {
	sizes := map[int]int{}
	for _, services := range []int{100, 1000} {
		k := newFake()
		m, _ := onFake(t, k, testOptions())
		var all []proxy.Change
		for i := range services {
			all = append(all, change(state(i, "10.244.0.1:80", "10.244.0.2:80")))
		}
		apply(t, m, all...)
		n := len(k.restored)
		apply(t, m, change(state(7, "10.244.0.1:80", "10.244.0.3:80")))
		apply(t, m, change(state(services, "10.244.0.1:80", "10.244.0.3:80")))
		if got := len(k.restored) - n; got != 3 { // one family has no endpoints that change
			t.Errorf("%d restores for two changes", got)
		}
		for _, size := range k.restored[n:] {
			sizes[services] += size
		}
	}
	t.Logf("bytes written for two changes, by services: %v", sizes)
	if sizes[1000] > 4*sizes[100] { // a leaf of the trie may be fuller
		t.Errorf("changes grow with the number of services: %v", sizes)
	}
}

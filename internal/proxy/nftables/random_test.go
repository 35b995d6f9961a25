//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// faulty fails one operation in ten: a transaction before it began or, worse,
// after it was committed.
type faulty struct {
	kernel
	r      *rand.Rand
	faults int
}

var errFault = errors.New("injected fault")

func (f *faulty) fail() bool {
	if f.r.IntN(10) != 0 {
		return false
	}
	f.faults++
	return true
}

func (f *faulty) Commit(b *nfnl.Batch) error {
	if !f.fail() {
		return f.kernel.Commit(b)
	}
	if f.r.IntN(2) == 0 {
		return errFault
	}
	return errors.Join(nfnl.ErrUncertain, f.kernel.Commit(b))
}

func (f *faulty) Rules(t nfnl.Table) ([]nfnl.RuleState, error) {
	if f.fail() {
		return nil, errFault
	}
	return f.kernel.Rules(t)
}

func (f *faulty) Elems(t nfnl.Table, set string, each func(nfnl.Elem)) error {
	if f.r.IntN(50) == 0 {
		f.faults++
		return errFault
	}
	return f.kernel.Elems(t, set, each)
}

// TestRandomHistories: whatever happened before, with failing operations, kills
// and restarts, the kernel ends with what the last state asks for. The kernel's
// content is interpreted by other code than the mode's.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(3)
	if os.Getenv("PROXIMA_SOAK") != "" {
		seeds = 100
	}
	manyHistories(t, newLab, seeds)
}

// TestRandomHistoriesInMemory: the same on a fake of the kernel, and so many more.
func TestRandomHistoriesInMemory(t *testing.T) {
	seeds := uint64(24)
	if os.Getenv("PROXIMA_SOAK") != "" {
		seeds = 5000
	}
	manyHistories(t, newSim, seeds)
}

func manyHistories(t *testing.T, on func(*testing.T) *lab, seeds uint64) {
	faults := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { faults += randomHistory(on(t), seed) })
	}
	if faults == 0 {
		t.Error("no fault was injected")
	}
}

func randomHistory(l *lab, seed uint64) (faults int) {
	t := l.T
	r := rand.New(rand.NewPCG(seed, 1))
	f := &faulty{r: rand.New(rand.NewPCG(seed, 2))}
	opts := Options{wrap: func(k kernel) kernel { f.kernel = k; return f }}
	m := l.mode(opts)
	now := map[proxy.PortName]*proxy.PortState{}
	for range 30 {
		var changes []proxy.Change
		for range 1 + r.IntN(4) {
			c := randomChange(r)
			changes = append(changes, c)
			if now[c.Name] = c.State; c.State == nil {
				delete(now, c.Name)
			}
		}
		if r.IntN(8) == 0 { // a new process; the old one may have died half-way
			l.stop(m)
			m, changes = l.mode(opts), whole(now)
		}
		for attempt := 0; ; attempt++ {
			var conflict *proxy.PortError
			err := m.Apply(t.Context(), changes)
			if err == nil || errors.As(err, &conflict) {
				break
			}
			if attempt > 50 {
				t.Fatalf("does not converge: %v", err)
			}
			if r.IntN(2) == 0 && attempt == 0 {
				continue
			}
		}
		got, slots := l.interpret(m)
		if want := expectedSlots(now); slots != want {
			t.Fatalf("kernel has %d slots, want %d", slots, want)
		}
		if diff := cmp.Diff(expected(now), got); diff != "" {
			t.Fatalf("kernel differs (-want +kernel):\n%s", diff)
		}
	}
	m.mu.Lock()
	m.k = f.kernel // no more faults
	m.mu.Unlock()
	l.whole(m)
	// A process that starts with the same state has nothing to write, though it
	// does not depend on the history, but for pick chains that no port uses.
	l.stop(m)
	k := &counting{}
	m = l.mode(Options{wrap: func(real kernel) kernel { k.kernel = real; return k }})
	l.apply(m, whole(now)...)
	if k.commits > 1 {
		t.Errorf("%d transactions after a restart", k.commits)
	}
	l.whole(m)
	return f.faults
}

func whole(now map[proxy.PortName]*proxy.PortState) []proxy.Change {
	var out []proxy.Change
	for name, s := range now {
		out = append(out, proxy.Change{Name: name, State: s})
	}
	return out
}

// randomChange is a new state of one of a few service ports, or its end. Each
// has addresses of its own: conflicts have another test.
func randomChange(r *rand.Rand) proxy.Change {
	n := r.IntN(6)
	name := fmt.Sprintf("svc-%d", n)
	if r.IntN(5) == 0 {
		return gone(name)
	}
	proto := []proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP}[r.IntN(3)]
	v6 := r.IntN(2) == 0
	vips := []netip.Addr{vipAt(v6, n)}
	if r.IntN(3) == 0 {
		vips = append(vips, vipAt(!v6, n))
	}
	return spec(name, proto, uint16(80+r.IntN(2)), vips, func(s *proxy.PortState) {
		s.Service.InternalLocal, s.Service.ExternalLocal = r.IntN(3) == 0, r.IntN(3) == 0
		if r.IntN(3) == 0 {
			s.Service.AffinityTimeout = time.Duration(1+r.IntN(2)) * time.Hour
		}
		s.SourceHash, s.Divided = r.IntN(4) == 0, r.IntN(4) == 0
		if r.IntN(3) == 0 {
			s.Port.NodePort = uint16(30000 + n)
		}
		for _, is6 := range []bool{false, true} {
			c := &s.IPv4
			lb := netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", n))
			ranges := netip.MustParsePrefix(fmt.Sprintf("198.51.%d.0/%d", n, 16+r.IntN(16)))
			if is6 {
				c, lb = &s.IPv6, netip.MustParseAddr(fmt.Sprintf("2001:db8:3::%d", n))
				ranges = netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::/%d", n, 48+r.IntN(16)))
			}
			if r.IntN(4) == 0 {
				ranges = netip.PrefixFrom(ranges.Addr(), 0)
			}
			if r.IntN(3) == 0 {
				s.Service.LoadBalancerIPs = append(s.Service.LoadBalancerIPs, lb)
				if r.IntN(2) == 0 {
					s.Service.SourceRanges = append(s.Service.SourceRanges, ranges.Masked())
				}
			}
			*c = randomChoice(r, is6)
		}
	})
}

func randomChoice(r *rand.Rand, v6 bool) (c proxy.Choice) {
	weighted := r.IntN(3) == 0
	for i := range r.IntN(6) {
		target := proxy.Target{Addr: netip.AddrPortFrom(podIP(v6, i+r.IntN(3)*10), uint16(8000+r.IntN(2))), Weight: 1, Local: i%2 == 0}
		if weighted {
			target.Weight = 1 + r.Uint32N(100)
		}
		if slices.ContainsFunc(c.Cluster, func(o proxy.Target) bool { return o.Addr == target.Addr }) {
			continue
		}
		c.Cluster = append(c.Cluster, target)
		if target.Local {
			c.Local = append(c.Local, target)
		}
	}
	if len(c.Cluster) == 0 {
		c.NoCluster, c.NoLocal = proxy.Reject, proxy.Reject
	} else if len(c.Local) == 0 {
		c.NoLocal = proxy.Drop
	}
	return c
}

// expected is what every address should do, as text.
func expected(now map[proxy.PortName]*proxy.PortState) map[string]string {
	out := map[string]string{}
	for _, s := range now {
		svc := s.Service
		list := func(vip netip.Addr, local bool) string {
			targets, verdict := s.For(vip).List(local)
			if len(targets) == 0 {
				return verdict.String()
			}
			var names []string
			for _, t := range targets {
				names = append(names, t.Addr.String())
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		external := func(vip netip.Addr, restricted bool) string {
			cluster := list(vip, false)
			what := "masq " + cluster
			if svc.ExternalLocal {
				local := list(vip, true)
				what = "keep " + cluster + " | keep " + local
				if local == "reject" && cluster == "reject" && !restricted {
					what = "reject"
				}
			}
			if restricted {
				what = "ranges " + what
			}
			return normal(what)
		}
		put := func(vip netip.Addr, port uint16, what string) {
			out[fmt.Sprintf("%s %s %d", vip, strings.ToLower(string(s.Port.Protocol)), port)] = what
		}
		has := map[bool]bool{}
		for _, vip := range svc.ClusterIPs {
			put(vip, s.Port.Port, normal("outside "+list(vip, svc.InternalLocal)))
			has[vip.Is4()] = true
		}
		for _, vip := range svc.LoadBalancerIPs {
			put(vip, s.Port.Port, external(vip, restricted(svc, vip)))
		}
		if s.Port.NodePort != 0 {
			for _, a := range []string{nodeIP, nodeIP6, "10.244.0.1", "2001:db8:2::1"} {
				if vip := netip.MustParseAddr(a); has[vip.Is4()] {
					put(vip, s.Port.NodePort, external(vip, false))
				}
			}
		}
	}
	return out
}

// restricted: not all clients of the address's family are admitted.
func restricted(s *proxy.Service, vip netip.Addr) bool {
	return len(s.SourceRanges) > 0 && !slices.ContainsFunc(s.SourceRanges, func(p netip.Prefix) bool {
		return p.Bits() == 0 && p.Addr().Is4() == vip.Is4()
	})
}

// expectedSlots is how many slots there should be, none of them left over.
func expectedSlots(now map[proxy.PortName]*proxy.PortState) (n int) {
	for _, s := range now {
		for _, is4 := range []bool{true, false} {
			of := func(a netip.Addr) bool { return a.Is4() == is4 }
			if !slices.ContainsFunc(s.Service.ClusterIPs, of) && !slices.ContainsFunc(s.Service.LoadBalancerIPs, of) {
				continue
			}
			c := &s.IPv4
			if !is4 {
				c = &s.IPv6
			}
			for _, list := range [][]proxy.Target{c.Cluster, c.Local} {
				switch {
				case len(list) == 0:
				case s.SourceHash:
					n += hashSlots[0]
				case s.Divided:
					n += slotCount(list, maxSlots)
				default:
					n += slotCount(list, minSlots)
				}
			}
		}
	}
	return n
}

// normal drops the marking from verdicts, which have none.
func normal(s string) string {
	for _, m := range []string{"outside ", "masq ", "keep "} {
		for _, v := range []string{"reject", "drop"} {
			s = strings.ReplaceAll(s, m+v, v)
		}
	}
	return s
}

// interpret follows every address through the kernel's maps.
func (l *lab) interpret(m *Mode) (out map[string]string, slots int) {
	l.Helper()
	conn := l.reader()
	out = map[string]string{}
	for _, d := range []dims{ipv4, ipv6} {
		t := interpreted{sets: map[string]map[string]string{}, words: int(d.addrLen)}
		table := nfnl.Table{Family: d.proto, Name: DefaultTable}
		sets, err := conn.Sets(table)
		if err != nil {
			l.Fatal(err)
		}
		for _, s := range sets {
			t.sets[s.Name] = map[string]string{}
			if err := conn.Elems(table, s.Name, func(e nfnl.Elem) { t.sets[s.Name][e.Key] = e.Value }); err != nil {
				l.Fatal(err)
			}
		}
		rules, err := conn.Rules(table)
		if err != nil {
			l.Fatal(err)
		}
		t.chains = map[string]bool{}
		for _, r := range rules {
			t.chains[r.Chain] = true
		}
		slots += len(t.sets[setEP])
		for key, value := range t.sets[setVIP] {
			addr, _ := netip.AddrFromSlice([]byte(key[:t.words]))
			proto := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[key[t.words]]
			port := uint16(key[t.words+4])<<8 | uint16(key[t.words+5])
			out[fmt.Sprintf("%s %s %d", addr, proto, port)] = t.entry(key, value)
		}
	}
	return out, slots
}

type interpreted struct {
	sets   map[string]map[string]string
	chains map[string]bool
	words  int
}

// reader reads the tables by a connection of its own.
func (l *lab) reader() nfnl.Reader {
	l.Helper()
	if l.sim != nil {
		return l.sim.fake.Open()
	}
	conn, err := nfnl.Open(l.node.Fd())
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (t *interpreted) entry(key, value string) string {
	service, class := unmix(value)
	switch class {
	case classExtLocal:
		return t.list(service, key, t.sets[setVIPCluster][key]) + " | " + t.list(service, key, t.sets[setVIPLocal][key])
	case classRanges:
		return "ranges " + t.list(service, key, t.sets[setVIPCluster][key])
	case classRangesLocal:
		return "ranges " + t.list(service, key, t.sets[setVIPCluster][key]) + " | " + t.list(service, key, t.sets[setVIPLocal][key])
	}
	return t.list(service, key, value)
}

// list reads a pick chain's name as its meaning; that its rules are right is
// for traffic to show.
func (t *interpreted) list(service uint16, key, value string) string {
	_, class := unmix(value)
	verdict, ok := t.sets[setLists][mix(0, class)]
	v := nfnl.ParseVerdict(verdict)
	switch {
	case !ok:
		return fmt.Sprintf("class %x is in no chain", class)
	case v.Code == 0:
		return "drop"
	case v.Chain == chainNoEndpoint:
		return "reject"
	case !t.chains[v.Chain]:
		return "chain without rules: " + v.Chain
	}
	parts := strings.Split(v.Chain, "-") // pick-mark-list-n[-affinity][-hash]
	var slots, base int
	_, _ = fmt.Sscan(parts[3], &slots)
	if parts[2] == "local" {
		base = localSlots
	}
	seen := map[string]bool{}
	for i := range slots {
		slot := nfnl.Host(uint32(base + i))
		proto := key[t.words:t.words+1] + "\x00\x00\x00"
		endpoint, ok := t.sets[setEP][mix(service, 0)+proto+slot]
		if !ok {
			return fmt.Sprintf("slot %d of %d is missing", i, slots)
		}
		seen[readEndpoint(endpoint).String()] = true
		if len(parts) > 4 && strings.HasSuffix(parts[4], "s") {
			id := t.sets[setEPID][mix(service, 0)+slot]
			ids := t.sets[setIDCluster]
			if base > 0 {
				ids = t.sets[setIDLocal]
			}
			if ids[id+proto] != endpoint {
				return fmt.Sprintf("slot %d and its id lead to different endpoints", i)
			}
		}
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return parts[1] + " " + strings.Join(names, " ")
}

// TestFlapWithTraffic: a list shrinks and grows while clients connect. No
// connection fails, and none that began and ended while an endpoint was out
// reaches it.
func TestFlapWithTraffic(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.serve(proxy.TCP, i, netip.AddrPortFrom(podIP(false, i), 8080))
	}
	m := l.mode(Options{})
	state := func(pods ...int) proxy.Change {
		return spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) { s.IPv4.Cluster = targets(false, 8080, pods...) })
	}
	l.apply(m, state(0, 1, 2))
	at := netip.AddrPortFrom(vipAt(false, 0), 80)
	ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer stop()
	flaps := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			_ = m.Apply(context.Background(), []proxy.Change{state(0, 1)})
			_ = m.Apply(context.Background(), []proxy.Change{state(0, 1, 2)})
			_ = m.Apply(context.Background(), []proxy.Change{state(2, 1)})
			_ = m.Apply(context.Background(), []proxy.Change{state(0, 1, 2)})
		}
		flaps <- n
	}()
	connections := 0
	for ctx.Err() == nil {
		who, _, err := ask(context.Background(), l.client, proxy.TCP, "", at, 2*time.Second)
		if (err != nil || who < 0) && !errors.Is(err, unix.EINTR) {
			t.Errorf("connection failed: %d, %v", who, err)
		}
		connections++
	}
	t.Logf("%d connections, %d flaps", connections, <-flaps)
}

package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

var testMark = nftables.ListMark(7, false)

var testKey = Key{proxy.IPv4, testMark}

func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
}

func targets(weights ...uint32) (out []proxy.Target) {
	for i, w := range weights {
		out = append(out, proxy.Target{Addr: at(i + 1), Weight: w})
	}
	return out
}

// fakeRoutes are routes in memory.
type fakeRoutes struct {
	have []netip.Prefix
	fail error
}

func (r *fakeRoutes) close() error { return nil }

func (r *fakeRoutes) set(want []netip.Prefix) (int, error) {
	if r.fail != nil {
		return 0, r.fail
	}
	n := 0
	if !slices.Equal(r.have, want) {
		n = 1
	}
	r.have = slices.Clone(want)
	return n, nil
}

// bench is a table on a fake.
type bench struct {
	*testing.T
	*table
	fake   *Fake
	routes *fakeRoutes
}

func newBench(t *testing.T, fake *Fake, scheduler string) *bench {
	t.Helper()
	r := &fakeRoutes{}
	b := &bench{t, newTable(fake, r, scheduler, slog.New(slog.DiscardHandler)), fake, r}
	if err := b.Adopt(); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) list(protocol proxy.Protocol, list []proxy.Target, held ...netip.AddrPort) {
	b.Helper()
	b.Want(nftables.List{Family: proxy.IPv4, Mark: testMark, Protocol: protocol, Targets: list, Held: held})
	if err := errors.Join(b.Before(), b.After()); err != nil {
		b.Fatal(err)
	}
}

// has checks the service: its scheduler, and "address=weight" of its destinations; empty: it is not there.
func (b *bench) has(want string) {
	b.Helper()
	var got []string
	services, _ := b.fake.Services()
	for _, s := range services {
		got = append(got, s.Scheduler)
		dests, _ := b.fake.Destinations(s.Key)
		for _, d := range dests {
			got = append(got, fmt.Sprintf("%d=%d", d.Addr.Addr().As4()[3], d.Weight))
		}
	}
	if text := strings.Join(got, " "); text != want {
		b.Fatalf("IPVS has %q, want %q", text, want)
	}
}

func (b *bench) compared(want int) {
	b.Helper()
	if n, err := b.compare(); err != nil || n != want {
		b.Fatalf("the comparison repaired %d, %v, want %d", n, err, want)
	}
}

func TestListsBecomeServices(t *testing.T) {
	b := newBench(t, &Fake{}, Default)
	b.list(proxy.TCP, targets(1, 1))
	b.has("rr 1=1 2=1")
	b.list(proxy.TCP, targets(10, 30))
	b.has("wrr 1=1 2=3")
	before := b.fake.Changes
	b.list(proxy.TCP, targets(10, 30))
	b.compared(0)
	if b.fake.Changes != before {
		t.Errorf("the same list is written again: %d changes", b.fake.Changes-before)
	}
	b.list(proxy.TCP, nil)
	b.has("")
	b.compared(0)
}

// TestRemovedEndpointsDrain: a TCP endpoint gets weight 0 and is deleted when it is idle; of others it goes at once.
func TestRemovedEndpointsDrain(t *testing.T) {
	b := newBench(t, &Fake{}, Default)
	b.list(proxy.TCP, targets(1, 1))
	b.fake.Connect(testKey, at(2), 1, 0)
	b.list(proxy.TCP, targets(1))
	b.has("rr 1=1 2=0")
	b.compared(0)
	b.has("rr 1=1 2=0")
	b.fake.Connect(testKey, at(2), 0, 3)
	b.compared(0)
	b.has("rr 1=1 2=0")
	b.fake.Connect(testKey, at(2), 0, 0)
	b.compared(0)
	b.has("rr 1=1")

	b.fake.Connect(testKey, at(1), 1, 0)
	b.list(proxy.TCP, nil)
	b.has("rr 1=0")
	b.fake.Connect(testKey, at(1), 0, 0)
	b.compared(0)
	b.has("")

	b.list(proxy.UDP, targets(1, 1))
	b.fake.Connect(testKey, at(1), 5, 5)
	b.list(proxy.UDP, targets(1, 1)[1:])
	b.has("rr 2=1")
	b.list(proxy.UDP, targets(1), at(2))
	b.has("rr 1=1 2=0")
	b.fake.Connect(testKey, at(1), 5, 5)
	b.list(proxy.UDP, nil)
	b.has("")
}

// TestEndpointComesBack: one that ends and is wanted again has its weight again.
func TestEndpointComesBack(t *testing.T) {
	b := newBench(t, &Fake{}, Default)
	b.list(proxy.TCP, targets(1, 1))
	b.fake.Connect(testKey, at(2), 1, 0)
	b.list(proxy.TCP, targets(1))
	b.list(proxy.TCP, targets(1, 1))
	b.has("rr 1=1 2=1")
	b.list(proxy.TCP, nil)
	b.list(proxy.TCP, targets(1, 1))
	b.has("rr 1=1 2=1")
}

func TestComparisonRepairs(t *testing.T) {
	for name, tamper := range map[string]func(*Fake) error{
		"service deleted":     func(f *Fake) error { return f.DeleteService(testKey) },
		"destination deleted": func(f *Fake) error { return f.DeleteDestination(testKey, at(1)) },
		"destination added":   func(f *Fake) error { return f.AddDestination(testKey, Destination{Addr: at(9), Weight: 1}) },
		"weight changed":      func(f *Fake) error { return f.SetDestination(testKey, Destination{Addr: at(2), Weight: 5}) },
		"scheduler changed":   func(f *Fake) error { return f.SetService(Service{testKey, "lc"}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &Fake{}, Default)
			b.list(proxy.TCP, targets(1, 3))
			if err := tamper(b.fake); err != nil {
				t.Fatal(err)
			}
			b.compared(1)
			b.compared(0)
			b.has("wrr 1=1 2=3")
		})
	}
}

// TestRestartTakesOver: the state of an earlier process stays where it is wanted, without a write.
func TestRestartTakesOver(t *testing.T) {
	fake := &Fake{}
	foreign := Service{Key{proxy.IPv4, 0x99}, "rr"}
	if err := fake.AddService(foreign); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, fake, Default)
	b.list(proxy.TCP, targets(1, 1))
	other := Key{proxy.IPv6, nftables.ListMark(8, true)}
	if err := fake.AddService(Service{other, "rr"}); err != nil {
		t.Fatal(err)
	}
	before := fake.Changes
	again := newBench(t, fake, Default)
	again.list(proxy.TCP, targets(1, 1))
	if n := fake.Changes - before; n != 1 {
		t.Errorf("%d changes, want the removal of one service alone", n)
	}
	again.has("rr rr 1=1 2=1")
	if err := cleanServices(fake); err != nil {
		t.Fatal(err)
	}
	again.has("rr") // the foreign one
}

// TestErrorsAreMadeUpFor: whatever fails, a later call has the whole state.
func TestErrorsAreMadeUpFor(t *testing.T) {
	for n := range 8 {
		fake := &Fake{}
		b := newBench(t, fake, Default)
		b.list(proxy.TCP, targets(1, 2, 3))
		count := 0
		fake.Fail = func(string) error {
			if count++; count == n+1 {
				return unix.ENOMEM
			}
			return nil
		}
		b.Want(nftables.List{Family: proxy.IPv4, Mark: testMark, Protocol: proxy.UDP, Targets: targets(4, 4, 4)[1:]})
		if err := errors.Join(b.Before(), b.After()); err != nil && !errors.Is(err, unix.ENOMEM) {
			t.Fatal(err)
		}
		fake.Fail = nil
		if err := errors.Join(b.Before(), b.After()); err != nil {
			t.Fatal(err)
		}
		b.has("rr 2=1 3=1")
	}
}

// TestLeave: after a switch to another mode connections go on, and what has none is removed.
func TestLeave(t *testing.T) {
	fake := &Fake{}
	foreign := Service{Key{proxy.IPv4, 0x99}, "rr"}
	if err := fake.AddService(foreign); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, fake, Default)
	b.list(proxy.TCP, targets(1, 1, 1))
	fake.Connect(testKey, at(2), 1, 0)
	fake.Connect(testKey, at(3), 0, 2)
	for range 2 {
		if left, err := leaveServices(fake); !left || err != nil {
			t.Fatalf("left: %v, %v", left, err)
		}
		b.has("rr rr 2=0 3=0")
	}
	fake.Connect(testKey, at(2), 0, 0)
	fake.Connect(testKey, at(3), 0, 0)
	if left, err := leaveServices(fake); left || err != nil {
		t.Fatalf("after they have ended, left: %v, %v", left, err)
	}
	b.has("rr") // the foreign one
}

func TestAddressesAreRouted(t *testing.T) {
	b := newBench(t, &Fake{}, Default)
	b.setRanges([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	for _, a := range []string{"10.96.0.1", "192.0.2.7", "192.0.2.7", "2001:db8::7"} {
		b.Address(netip.MustParseAddr(a), true)
	}
	b.Address(netip.MustParseAddr("192.0.2.7"), false)
	b.routes.fail = unix.EPERM
	if err := b.Before(); !errors.Is(err, unix.EPERM) {
		t.Fatalf("a failure of routes: %v", err)
	}
	b.routes.fail = nil
	if err := b.Before(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(b.routes.have); got != "[10.96.0.0/16 192.0.2.7/32 2001:db8::7/128]" {
		t.Errorf("routed: %s", got)
	}
	a := netip.MustParseAddr("192.0.2.7")
	b.Want(nftables.List{Family: proxy.IPv4, Mark: testMark, Protocol: proxy.TCP, Targets: targets(1)})
	if err := errors.Join(b.Before(), b.After()); err != nil {
		t.Fatal(err)
	}
	b.fake.Connect(testKey, at(1), 1, 0)
	b.Address(a, false)
	b.list(proxy.TCP, nil)
	if len(b.routes.have) != 3 {
		t.Errorf("while a connection goes on by an address that went, routed: %v", b.routes.have)
	}
	b.fake.Connect(testKey, at(1), 0, 0)
	b.compared(0)
	if len(b.routes.have) != 2 {
		t.Errorf("when it has ended, routed: %v", b.routes.have)
	}
	b.Address(a, true)
	if err := b.Before(); err != nil {
		t.Fatal(err)
	}
	b.routes.have = nil
	b.Want(nftables.List{Family: proxy.IPv4, Mark: testMark, Targets: targets(1)})
	if err := errors.Join(b.Before(), b.After()); err != nil {
		t.Fatal(err)
	}
	b.compared(1)
	if len(b.routes.have) != 3 {
		t.Errorf("after a repair, routed: %v", b.routes.have)
	}
}

func TestWeightsAreSmallAndInProportion(t *testing.T) {
	for name, c := range map[string]struct {
		scheduler string
		weights   []uint32
		want      string
	}{
		"equal":            {"wrr", []uint32{500, 500}, "[1 1]"},
		"none":             {"wrr", []uint32{0, 0}, "[1 1]"},
		"exact":            {"wrr", []uint32{100, 300, 600}, "[1 3 6]"},
		"sum of 1024":      {"wrr", []uint32{1_000_003, 3_000_007}, "[256 768]"},
		"sum of 256":       {"sh", []uint32{1_000_003, 3_000_007}, "[64 192]"},
		"negligible":       {"wrr", []uint32{1, 1_000_000, 1_000_001}, "[0 512 512]"},
		"at least a share": {"wrr", []uint32{1, 1500, 1}, "[1 1022 1]"},
	} {
		got := weightsOf(c.scheduler, targets(c.weights...))
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func TestSchedulerNames(t *testing.T) {
	for _, s := range append(Schedulers(), Default) {
		if err := CheckScheduler(s); err != nil {
			t.Error(err)
		}
	}
	if err := CheckScheduler("twos"); err == nil || !strings.Contains(err.Error(), "rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, mh, fo, ovf") {
		t.Errorf("an unknown name: %v", err)
	}
	for s, without := range map[string]bool{"rr": true, "lc": true, "dh": true, "fo": true, "ovf": true, "wrr": false, "sh": false, "mh": false, Default: false} {
		if (WithoutPlan(s) != "") != without {
			t.Errorf("%q: %q", s, WithoutPlan(s))
		}
	}
}

func TestCheckNamesModules(t *testing.T) {
	err := check(&Fake{Lacks: []string{"sh"}}, []string{"rr", "sh"})
	missing := new(MissingError)
	if !errors.As(err, &missing) || !slices.Equal(missing.Modules, []string{"ip_vs_sh"}) {
		t.Errorf("%v", err)
	}
	fake := &Fake{}
	if err := check(fake, Schedulers()); err != nil {
		t.Error(err)
	}
	if left, _ := fake.Services(); len(left) > 0 {
		t.Errorf("the check left %v", left)
	}
}

func TestComparisonIsRare(t *testing.T) {
	if idle(time.Millisecond) != 500*time.Millisecond || idle(100*time.Millisecond) != 10*time.Second {
		t.Error(idle(time.Millisecond), idle(100*time.Millisecond))
	}
}

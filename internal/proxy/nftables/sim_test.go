//go:build linux

package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// sim is a machine in memory: its tables, addresses and UDP flows.
type sim struct {
	fake nfnl.Fake

	mu        sync.Mutex
	addresses []netip.Addr
	flows     []conntrack.Flow
	changed   []chan struct{}
}

// newSim is a lab without a kernel, on which no traffic flows. Its node has the
// addresses that newLab's has.
func newSim(t *testing.T) *lab {
	s := &sim{}
	for _, a := range []string{"127.0.0.1", "::1", "fe80::1", nodeIP, nodeIP6, "10.244.0.1", "2001:db8:2::1"} {
		s.addresses = append(s.addresses, netip.MustParseAddr(a))
	}
	return &lab{T: t, sim: s}
}

// open makes a system of the machine. It takes the place of openSystem.
func (s *sim) open() (*system, error) {
	conn := s.fake.Open()
	changed := &addressListener{c: make(chan struct{}, 16), closed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, changed.c)
	return &system{kernel: conn, flows: s, tables: s.fake.Listen(conn), addresses: changed, list: s.list}, nil
}

func (s *sim) list() ([]netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.addresses), nil
}

// setAddresses changes the node's addresses.
func (s *sim) setAddresses(addresses ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = addresses
	for _, c := range s.changed {
		c <- struct{}{}
	}
}

// Prune is that of conntrack.Table, for frontends with an address.
func (s *sim) Prune(keep conntrack.Keep) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.flows)
	s.flows = slices.DeleteFunc(s.flows, func(f conntrack.Flow) bool {
		endpoints, found := keep[conntrack.Frontend{Protocol: f.Protocol, Addr: f.Frontend}]
		return found && !slices.Contains(endpoints, f.Endpoint)
	})
	return before - len(s.flows), nil
}

// addressListener says that addresses changed, not which.
type addressListener struct{ c, closed chan struct{} }

func (l *addressListener) Receive(each func(nfnl.Message)) error {
	select {
	case <-l.closed:
		return os.ErrClosed
	case <-l.c:
		each(nfnl.Message{})
		return nil
	}
}

func (l *addressListener) Close() error { close(l.closed); return nil }

// tables describes both families' tables.
func (l *lab) tables() map[string]string {
	l.Helper()
	out := map[string]string{}
	for _, d := range []dims{ipv4, ipv6} {
		text, err := nfnl.Dump(l.reader(), nfnl.Table{Family: d.proto, Name: DefaultTable})
		if err != nil {
			l.Fatal(err)
		}
		out[fmt.Sprint(d.proto)] = text
	}
	return out
}

// TestMemoryAndKernelHaveTheSameTables: the same changes make the same tables of
// the kernel and of its fake, object by object.
func TestMemoryAndKernelHaveTheSameTables(t *testing.T) {
	real, memory := newLab(t), newSim(t)
	a, b := real.mode(Options{}), memory.mode(Options{})
	all := append(full(false), rename(full(true), "6")...)
	steps := [][]proxy.Change{all, nil}
	for _, c := range all { // their addresses are needed again
		steps[1] = append(steps[1], proxy.Change{Name: c.Name})
	}
	r := rand.New(rand.NewPCG(7, 7))
	for range 40 {
		steps = append(steps, []proxy.Change{randomChange(r), randomChange(r)})
	}
	for i, step := range steps {
		real.apply(a, step...)
		memory.apply(b, step...)
		if diff := cmp.Diff(real.tables(), memory.tables()); diff != "" {
			t.Fatalf("step %d (-kernel +memory):\n%s", i, diff)
		}
	}
}

// TestDriftIsRepairedInMemory: whatever another program does to our tables, the
// mode has them as they were within a moment; what is in other tables stays.
func TestDriftIsRepairedInMemory(t *testing.T) {
	ip := nfnl.Table{Family: ipv4.proto, Name: DefaultTable}
	ip6 := nfnl.Table{Family: ipv6.proto, Name: DefaultTable}
	other := nfnl.Table{Family: ipv4.proto, Name: "other"}
	vip := func(f *family) *nfnl.Set { return &f.vip.def }
	for name, tamper := range map[string]func(*nfnl.Batch, *Mode){
		"both tables deleted": func(b *nfnl.Batch, _ *Mode) { b.DeleteTable(ip); b.DeleteTable(ip6) },
		"a chain flushed":     func(b *nfnl.Batch, _ *Mode) { b.FlushChain(ip, chainDispatch) },
		"a rule added":        func(b *nfnl.Batch, _ *Mode) { b.AddRule(ip6, chainPre, drop("theirs")) },
		"a chain added":       func(b *nfnl.Batch, _ *Mode) { b.AddChain(ip, nfnl.Chain{Name: "theirs"}) },
		"a set added": func(b *nfnl.Batch, _ *Mode) {
			b.AddSet(ip, &nfnl.Set{Name: "theirs", KeyType: nfnl.TypeIPAddr, KeyLen: 4})
		},
		"an element deleted": func(b *nfnl.Batch, m *Mode) {
			b.DeleteElem(ip, vip(m.families[0]), vipKey(vipAt(false, 0), proxy.TCP, 80))
		},
		"an element added": func(b *nfnl.Batch, m *Mode) {
			b.AddElem(ip6, &m.families[1].clusterIPs.def, nfnl.Elem{Key: addrKey(vipAt(true, 77))})
		},
		"a hook somewhere else": func(b *nfnl.Batch, _ *Mode) {
			b.DeleteTable(ip)
			b.AddTable(ip)
			b.AddChain(ip, nfnl.Chain{Name: chainPre, Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: 50})
		},
		"another version's set": func(b *nfnl.Batch, _ *Mode) {
			b.DeleteTable(ip)
			b.AddTable(ip)
			b.AddSet(ip, &nfnl.Set{Name: setVIP, KeyType: nfnl.TypeIPAddr, KeyLen: 4})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newSim(t)
				m := l.mode(Options{})
				l.apply(m, append(full(false), rename(full(true), "6")...)...)
				want := l.tables()
				program := l.sim.fake.Open()
				var b nfnl.Batch
				b.AddTable(other)
				tamper(&b, m)
				if err := program.Commit(&b); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * calm)
				synctest.Wait()
				if diff := cmp.Diff(want, l.tables()); diff != "" {
					t.Errorf("not repaired (-want +got):\n%s", diff)
				}
				if n := testutil.ToFloat64(m.metrics.repairs); n != 1 {
					t.Errorf("%g repairs, want 1", n)
				}
				if there, _, _ := program.HasTable(other); !there {
					t.Error("another program's table is gone")
				}
				l.stop(m)
			})
		})
	}
}

// TestRestartInMemory: a new process takes over what it finds and writes nothing.
func TestRestartInMemory(t *testing.T) {
	l := newSim(t)
	all := append(full(false), rename(full(true), "6")...)
	m := l.mode(Options{})
	for _, c := range slices.Backward(all) { // numbers that no fresh start would give
		l.apply(m, c)
	}
	l.stop(m)
	before := l.tables()
	k := &counting{}
	m = l.mode(Options{wrap: func(real kernel) kernel { k.kernel = real; return k }})
	l.apply(m, all...)
	if diff := cmp.Diff(before, l.tables()); diff != "" || k.commits != 0 {
		t.Errorf("%d transactions though nothing changed:\n%s", k.commits, diff)
	}
}

func TestNodePortsFollowAddressesInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSim(t)
		m := l.mode(Options{})
		l.apply(m, spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) {
			s.IPv4.Cluster = targets(false, 8080, 0)
			s.Port.NodePort = 30080
		}))
		served := func() (out []string) {
			got, _ := l.interpret(m)
			for _, at := range slices.Sorted(maps.Keys(got)) {
				if at != vipAt(false, 0).String()+" tcp 80" {
					out = append(out, at)
				}
			}
			return out
		}
		if want := []string{"10.244.0.1 tcp 30080", "192.0.2.1 tcp 30080"}; !slices.Equal(served(), want) {
			t.Errorf("node ports at %v, want %v: not on loopback, not of the other family", served(), want)
		}
		l.sim.setAddresses(netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("fe80::1"))
		time.Sleep(2 * calm)
		synctest.Wait()
		if want := []string{"192.0.2.99 tcp 30080"}; !slices.Equal(served(), want) {
			t.Errorf("node ports at %v, want %v", served(), want)
		}
		l.stop(m)
	})
}

// TestFlowsEndInMemory: UDP flows end with their endpoint or service, and those
// that lead where they should stay.
func TestFlowsEndInMemory(t *testing.T) {
	l := newSim(t)
	m := l.mode(Options{})
	dns := func(pods ...int) proxy.Change {
		return spec("dns", proxy.UDP, 53, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) { s.IPv4.Cluster = targets(false, 5353, pods...) })
	}
	flow := func(vip, pod int, protocol proxy.Protocol) conntrack.Flow {
		return conntrack.Flow{
			Protocol: protocol, Frontend: netip.AddrPortFrom(vipAt(false, vip), 53), Endpoint: netip.AddrPortFrom(podIP(false, pod), 5353),
		}
	}
	l.apply(m, dns(0, 1))
	l.sim.flows = []conntrack.Flow{flow(0, 0, proxy.UDP), flow(0, 1, proxy.UDP), flow(0, 1, proxy.TCP), flow(9, 1, proxy.UDP)}
	left := func(want ...conntrack.Flow) {
		t.Helper()
		if !slices.Equal(l.sim.flows, want) {
			t.Errorf("flows %v are left, want %v", l.sim.flows, want)
		}
	}
	l.apply(m, dns(0))
	left(flow(0, 0, proxy.UDP), flow(0, 1, proxy.TCP), flow(9, 1, proxy.UDP))
	l.apply(m, gone("dns"))
	left(flow(0, 1, proxy.TCP), flow(9, 1, proxy.UDP))
}

// TestCountsInMemory: counts go on over the kernel's counters' end.
func TestCountsInMemory(t *testing.T) {
	l := newSim(t)
	m := l.mode(Options{})
	state := spec("a", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) { s.IPv4.Cluster = targets(false, 8080, 0) })
	l.apply(m, state)
	table := nfnl.Table{Family: ipv4.proto, Name: DefaultTable}
	count := func(packets, want uint64) {
		t.Helper()
		l.sim.fake.Count(table, setDemand, mix(m.ports[state.Name].number, 0), packets)
		for name, c := range m.Counts() {
			if name == state.Name && c.Connections != want {
				t.Errorf("%d connections, want %d", c.Connections, want)
			}
		}
	}
	count(5, 5)
	var b nfnl.Batch
	b.DeleteTable(table)
	if err := l.sim.fake.Open().Commit(&b); err != nil {
		t.Fatal(err)
	}
	l.eventually("table repaired", func() bool { return l.tables()[fmt.Sprint(ipv4.proto)] != "" })
	count(0, 5)
	count(6, 11)
}

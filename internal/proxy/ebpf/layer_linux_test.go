package ebpf

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// nothingBelow serves nothing: what passes fails, as a virtual address has no route.
type nothingBelow struct{ isolated []proxy.Isolation }

func (b *nothingBelow) Name() string { return "none" }
func (b *nothingBelow) Apply(context.Context, []proxy.Change) error {
	return nil
}
func (b *nothingBelow) Close(context.Context) error { return nil }
func (b *nothingBelow) Isolate(i proxy.Isolation) error {
	b.isolated = append(b.isolated, i)
	return nil
}
func (b *nothingBelow) Isolates() proxy.Isolates { return proxy.Isolates{} }

// world is a network namespace with endpoints on its loopback interface, and the layer alone.
type world struct {
	*testing.T
	*place
	mode *Mode
}

// newWorld is for a test in a process of its own, see again.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, place: newPlace(t)}
	here, err := core.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	if err := here.SetLinkUp("lo", true); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		for _, v6 := range []bool{false, true} {
			a := podAt(v6, i)
			if err := here.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The kernel gives addresses of IPv6 free a little later.
	w.within("addresses", func() bool {
		for i := range 3 {
			c, err := net.Dial("tcp", netip.AddrPortFrom(podAt(true, i), 1).String())
			if err == nil {
				_ = c.Close()
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				return false
			}
		}
		return true
	})
	w.open(nil)
	return w
}

// open a mode, as an agent that starts. edit changes its options.
func (w *world) open(edit func(*Options)) {
	w.Helper()
	opts := w.options()
	opts.Logger = slog.New(slog.NewTextHandler(w.Output(), nil))
	if edit != nil {
		edit(&opts)
	}
	m, err := New(opts, &nothingBelow{})
	if err != nil {
		w.Fatal(err)
	}
	w.mode = m
	w.Cleanup(func() { w.close(m) })
}

func (w *world) close(m *Mode) {
	w.Helper()
	if err := m.Close(context.Background()); err != nil {
		w.Error(err)
	}
}

func (w *world) apply(states ...*proxy.PortState) {
	w.Helper()
	var changes []proxy.Change
	for _, s := range states {
		changes = append(changes, proxy.Change{Name: s.Name, State: s})
	}
	if err := w.mode.Apply(w.Context(), changes); err != nil {
		w.Fatal(err)
	}
	if s := w.mode.Status(); s.Passing != "" {
		w.Fatalf("the layer translates nothing: %s", s.Passing)
	}
}

// service port with a cluster IP per family, and endpoints at pods.
func (w *world) service(name string, vip int, pods ...int) *proxy.PortState {
	w.Helper()
	s := state(name, func(s *proxy.PortState) {
		s.Port.NodePort, s.Service.ExternalIPs, s.Service.LoadBalancerIPs = 0, nil, nil
		s.Service.ClusterIPs = []netip.Addr{vipOf(false, vip), vipOf(true, vip)}
		s.IPv4.Cluster, s.IPv6.Cluster = nil, nil
		for _, i := range pods {
			s.IPv4.Cluster = append(s.IPv4.Cluster, proxy.Target{Addr: netip.AddrPortFrom(podAt(false, i), 8080), Weight: 1})
			s.IPv6.Cluster = append(s.IPv6.Cluster, proxy.Target{Addr: netip.AddrPortFrom(podAt(true, i), 8080), Weight: 1})
		}
	})
	return s
}

func vipOf(v6 bool, i int) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x96, 15: byte(i + 1)})
	}
	return netip.AddrFrom4([4]byte{10, 96, 1, byte(i + 1)})
}

// listen at pods, until the test ends.
func (w *world) listen(pods ...int) {
	w.Helper()
	for _, i := range pods {
		for _, v6 := range []bool{false, true} {
			ln, err := net.Listen("tcp", netip.AddrPortFrom(podAt(v6, i), 8080).String())
			if err != nil {
				w.Fatal(err)
			}
			w.Cleanup(func() { _ = ln.Close() })
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
				}
			}()
		}
	}
}

// dial says at which endpoint a connection to an address ends; the zero value: it was not translated.
func dial(t *testing.T, d net.Dialer, network string, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	d.Timeout = 5 * time.Second
	c, err := d.Dial(network, to.String())
	if errors.Is(err, syscall.ENETUNREACH) {
		return netip.AddrPort{}
	}
	if err != nil {
		t.Errorf("connecting to %s: %v", to, err)
		return netip.AddrPort{}
	}
	defer func() { _ = c.Close() }()
	if network == "udp" {
		return netip.AddrPort{}
	}
	at := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

func (w *world) vip(v6 bool, i int) netip.AddrPort { return netip.AddrPortFrom(vipOf(v6, i), 80) }

func (w *world) reach(v6 bool, vip int) netip.AddrPort {
	w.Helper()
	return dial(w.T, net.Dialer{}, "tcp", w.vip(v6, vip))
}

func (w *world) want(v6 bool, vip int, pods ...int) {
	w.Helper()
	at := w.reach(v6, vip)
	if len(pods) == 0 && at.IsValid() {
		w.Errorf("%s is translated to %s; want that it passes", w.vip(v6, vip), at)
	}
	if len(pods) > 0 && !slices.ContainsFunc(pods, func(i int) bool { return at == netip.AddrPortFrom(podAt(v6, i), 8080) }) {
		w.Errorf("%s is translated to %v; want pods %v", w.vip(v6, vip), at, pods)
	}
}

func (w *world) both(vip int, pods ...int) {
	w.Helper()
	w.want(false, vip, pods...)
	w.want(true, vip, pods...)
}

// within a few periods; repairs are not instant.
func (w *world) within(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("%s: not within 20 s", what)
		}
	}
}

// inside runs the test's body in a process with a network namespace of its own.
func inside(t *testing.T, body func(*world)) {
	t.Helper()
	const env = "PROXIMA_TEST_EBPF_INSIDE"
	if os.Getenv(env) == "" {
		again(t, env)
		return
	}
	body(newWorld(t))
}

// TestTranslates: what the programs translate, and what passes.
func TestTranslates(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1)
		udp := w.service("udp", 1, 0)
		udp.Port.Protocol = proxy.UDP
		ranges := w.service("empty", 2)
		w.apply(w.service("api", 0, 0, 1), udp, ranges)
		for range 20 {
			w.both(0, 0, 1)
		}
		w.both(1)
		w.both(2)
		w.both(3) // nobody has it

		// An IPv6 socket that connects to a mapped address.
		if at := connectMapped(t, w.vip(false, 0)); at != netip.AddrPortFrom(podAt(false, 0), 8080) && at != netip.AddrPortFrom(podAt(false, 1), 8080) {
			t.Errorf("a mapped address: %v", at)
		}
		// A socket that is bound to an address asks for its packets to leave with that.
		if at := dial(t, net.Dialer{LocalAddr: &net.TCPAddr{IP: podAt(false, 2).AsSlice()}}, "tcp", w.vip(false, 0)); at.IsValid() {
			t.Errorf("a bound socket is translated to %s", at)
		}
		if at := dial(t, net.Dialer{LocalAddr: &net.TCPAddr{IP: podAt(true, 2).AsSlice()}}, "tcp", w.vip(true, 0)); at.IsValid() {
			t.Errorf("a bound socket is translated to %s", at)
		}
		// A port alone is no hindrance.
		if at := dial(t, net.Dialer{LocalAddr: &net.TCPAddr{Port: 45678}}, "tcp", w.vip(false, 0)); !at.IsValid() {
			t.Error("a socket with a port of its own passes")
		}
		// Multipath TCP.
		d := net.Dialer{}
		d.SetMultipathTCP(true)
		if at := dial(t, d, "tcp", w.vip(false, 0)); !at.IsValid() {
			t.Error("multipath TCP passes")
		}
		// Datagrams to the same address and port.
		if c, err := net.Dial("udp", w.vip(false, 0).String()); err == nil {
			t.Errorf("a datagram socket is translated to %s", c.RemoteAddr())
			_ = c.Close()
		}
		// A thread of another cgroup.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		back, err := w.leave()
		if err != nil {
			t.Fatal(err)
		}
		defer back()
		w.both(0)
	})
}

// connectMapped connects an IPv6 socket to ::ffff:a.b.c.d, and says at which endpoint it is.
func connectMapped(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(s) }()
	if err := unix.Connect(s, &unix.SockaddrInet6{Port: int(to.Port()), Addr: netip.AddrFrom16(to.Addr().As16()).As16()}); err != nil {
		t.Errorf("connecting to a mapped address: %v", err)
		return netip.AddrPort{}
	}
	peer, err := unix.Getpeername(s)
	if err != nil {
		t.Fatal(err)
	}
	p := peer.(*unix.SockaddrInet6)
	return netip.AddrPortFrom(netip.AddrFrom16(p.Addr).Unmap(), uint16(p.Port))
}

// TestChanges: lists and addresses follow, and counts go on over generations and removals of lists.
func TestChanges(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1, 2)
		w.apply(w.service("api", 0, 0))
		name := w.service("api", 0).Name
		total := func() proxy.Counts {
			for n, c := range w.mode.Counts() {
				if n == name {
					return c
				}
			}
			return proxy.Counts{}
		}
		asked := uint64(0)
		ask := func(pods ...int) {
			t.Helper()
			w.both(0, pods...)
			if len(pods) > 0 {
				asked++
			}
			if c := total(); c.Connections != 2*asked || c.IPv6.Connections != asked || !c.ByFamily {
				t.Fatalf("%d connections of either family are counted as %+v", asked, c)
			}
		}
		for range 3 {
			ask(0)
			w.apply(w.service("api", 0, 1, 2))
			ask(1, 2)
			w.apply(w.service("api", 0)) // no endpoint: it passes
			ask()
			w.apply(w.service("api", 0, 2))
			ask(2)
			w.mode.mu.Lock()
			w.mode.generate()
			w.mode.mu.Unlock()
			ask(2)
			w.apply(w.service("api", 0, 0))
		}
		// All that was let go of is given back.
		w.within("space is given back", func() bool {
			w.mode.mu.Lock()
			defer w.mode.mu.Unlock()
			g := w.mode.gen
			return len(w.mode.freed)+len(w.mode.retired) == 0 && g.of4.left == g.sizes.slots4-1 && g.numbers.left == g.sizes.lists-2
		})
		ask(0)
		// Another owner of the address; then two.
		if err := w.mode.Apply(t.Context(), []proxy.Change{{Name: name}, {Name: w.service("heir", 0).Name, State: w.service("heir", 0, 1)}}); err != nil {
			t.Fatal(err)
		}
		w.both(0, 1)
		if c := total(); c.Connections != 0 {
			t.Errorf("a service port that went has %+v", c)
		}
		w.apply(w.service("other", 0, 2))
		w.both(0)
	})
}

// TestGrows: more lists, slots and addresses than a generation holds.
func TestGrows(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1)
		w.apply(w.service("first", 0, 0))
		before := w.mode.gen.sizes
		var all []*proxy.PortState
		for i := range 1500 {
			all = append(all, state("many-"+strconv.Itoa(i), func(s *proxy.PortState) {
				s.Port.NodePort, s.Service.ExternalIPs, s.Service.LoadBalancerIPs = 0, nil, nil
				s.Service.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})}
				s.IPv4.Cluster = []proxy.Target{{Addr: netip.AddrPortFrom(podAt(false, 1), 8080), Weight: 1}}
				s.IPv6.Cluster = nil
			}))
		}
		w.apply(all...)
		if now := w.mode.gen.sizes; now.lists <= before.lists || now.vip4 <= before.vip4 {
			t.Errorf("sizes %+v, before %+v", now, before)
		}
		w.both(0, 0)
		for _, i := range []int{0, 700, 1499} {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 80)
			if at := dial(t, net.Dialer{}, "tcp", to); at != netip.AddrPortFrom(podAt(false, 1), 8080) {
				t.Errorf("%s: %v", to, at)
			}
		}
		// As many changes as there is no room for without a grace period.
		for i := range 3000 {
			w.apply(w.service("first", 0, i%2))
		}
		w.both(0, 1)
	})
}

// TestRestart: what is pinned translates while no agent runs, clients that are remembered stay, and clean-up
// leaves nothing.
func TestRestart(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0, 1, 2)
		sticky := func(pods ...int) *proxy.PortState {
			s := w.service("sticky", 1, pods...)
			s.Service.AffinityTimeout = time.Hour
			return s
		}
		w.apply(w.service("api", 0, 0), sticky(0, 1, 2))
		where := map[bool]netip.AddrPort{}
		for _, v6 := range []bool{false, true} {
			where[v6] = w.reach(v6, 1)
			for range 20 {
				if at := w.reach(v6, 1); at != where[v6] {
					t.Fatalf("a client with affinity goes to %s, then to %s", where[v6], at)
				}
			}
		}
		for range 3 {
			w.close(w.mode)
			w.both(0, 0)
			w.open(nil)
			w.both(0, 0) // the first state is not there yet
			w.apply(w.service("api", 0, 0), sticky(0, 1, 2))
			for _, v6 := range []bool{false, true} {
				if at := w.reach(v6, 1); at != where[v6] {
					t.Errorf("after a restart, a client with affinity goes from %s to %s", where[v6], at)
				}
			}
		}
		// Its endpoint goes: it moves, and stays there.
		var left []int
		for i := range 3 {
			if where[false].Addr() != podAt(false, i) {
				left = append(left, i)
			}
		}
		w.apply(sticky(left...))
		moved := w.reach(false, 1)
		if moved == where[false] || !moved.IsValid() {
			t.Errorf("the endpoint is gone: %v", moved)
		}
		w.apply(sticky(0, 1, 2))
		for range 20 {
			if at := w.reach(false, 1); at != moved {
				t.Fatalf("after its move, a client goes to %s, and was at %s", at, moved)
			}
		}
		w.close(w.mode)
		if err := Cleanup(w.options()); err != nil {
			t.Fatal(err)
		}
		w.both(0)
		left2, err := filepath.Glob(filepath.Join(w.bpffs, pinFolder, "*"))
		if err != nil || len(left2) > 0 {
			t.Errorf("pins are left: %v, %v", left2, err)
		}
		if err := Cleanup(w.options()); err != nil {
			t.Errorf("a second clean-up: %v", err)
		}
	})
}

// TestRepairs: links, pins and addresses that others remove come back.
func TestRepairs(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0)
		w.apply(w.service("api", 0, 0))
		translated := func() bool { return w.reach(false, 0).IsValid() && w.reach(true, 0).IsValid() }
		locked := func(f func() error) {
			t.Helper()
			w.mode.mu.Lock()
			defer w.mode.mu.Unlock()
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
		locked(func() error {
			return errors.Join(detachLink(w.mode.links.of[0]), detachLink(w.mode.links.of[1]))
		})
		w.both(0)
		w.within("links", translated)
		locked(func() error { return os.RemoveAll(w.mode.links.dir) })
		w.within("pins", func() bool {
			found, _ := filepath.Glob(filepath.Join(w.bpffs, pinFolder, "*", "connect?"))
			return len(found) == 2
		})
		locked(func() error {
			for at := range w.mode.gen.vips {
				if err := w.mode.gen.vipMap(at.Addr()).Delete(vipKey(at)); err != nil {
					return err
				}
			}
			return nil
		})
		w.both(0)
		w.within("addresses", translated)
		w.close(w.mode)
		w.both(0, 0) // also by the pins that were made again
	})
}

// TestForeignProgram: where another program at the cgroup allows none beside it, connections pass, status says
// why, and the layer comes when the other one has gone.
func TestForeignProgram(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0)
		other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		dir, err := os.Open(w.node)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dir.Close() }()
		exclusive := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: other, Attach: ebpf.AttachCGroupInet4Connect}
		if err := link.RawAttachProgram(exclusive); err != nil {
			t.Fatal(err)
		}
		if err := w.mode.Apply(t.Context(), []proxy.Change{{Name: w.service("api", 0).Name, State: w.service("api", 0, 0)}}); err != nil {
			t.Fatalf("the layer's failure is one of Apply: %v", err)
		}
		if s := w.mode.Status(); !strings.Contains(s.Passing, "another program") {
			t.Errorf("status: %+v", s)
		}
		w.want(false, 0)
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: other, Attach: ebpf.AttachCGroupInet4Connect}); err != nil {
			t.Fatal(err)
		}
		w.within("the other program has gone", func() bool { return w.reach(false, 0).IsValid() })
		if s := w.mode.Status(); s.Passing != "" || s.Translated != 2 {
			t.Errorf("status: %+v", s)
		}
	})
}

// TestExempt: sockets of exempt network namespaces and cgroups pass, as do those of namespaces that are not the
// host's where HostOnly says so.
func TestExempt(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0)
		w.apply(w.service("api", 0, 0))
		cookie, err := core.Cookie()
		if err != nil {
			t.Skip(err)
		}
		var group unix.Stat_t
		if err := unix.Stat(w.node, &group); err != nil {
			t.Fatal(err)
		}
		// The test's cgroup is two levels below the root: ROOT/proxima-ebpf-PID/node.
		var above unix.Stat_t
		if err := unix.Stat(w.root, &above); err != nil {
			t.Fatal(err)
		}
		type groups = map[proxy.Cgroup]struct{}
		type networks = map[uint64]struct{}
		for what, c := range map[string]struct{ on, other func() }{
			"network namespace": {func() { w.mode.ExemptNetworks(networks{cookie: {}}) }, func() { w.mode.ExemptNetworks(networks{cookie + 9: {}}) }},
			"cgroup":            {func() { w.mode.ExemptCgroups(groups{{ID: group.Ino, Level: 2}: {}}) }, func() { w.mode.ExemptCgroups(groups{{ID: group.Ino, Level: 3}: {}}) }},
			"cgroup above":      {func() { w.mode.ExemptCgroups(groups{{ID: above.Ino, Level: 1}: {}}) }, func() { w.mode.ExemptCgroups(groups{{ID: above.Ino, Level: 40}: {}}) }},
		} {
			w.both(0, 0)
			c.on()
			if at := w.reach(false, 0); at.IsValid() {
				t.Errorf("a socket of an exempt %s is translated to %s", what, at)
			}
			w.both(0)
			c.other()
			w.both(0, 0)
			w.mode.ExemptCgroups(nil)
			w.mode.ExemptNetworks(nil)
		}
		// One more, and one fewer, in the maps that there are.
		w.mode.ExemptNetworks(networks{cookie + 1: {}})
		w.both(0, 0)
		w.mode.ExemptNetworks(networks{cookie + 1: {}, cookie: {}})
		w.both(0)
		w.mode.ExemptNetworks(networks{cookie + 1: {}})
		w.both(0, 0)
		if host, err := OnHost(); err != nil || host {
			t.Errorf("a namespace of its own is the host's: %v, %v", host, err)
		}
		w.close(w.mode)
		w.open(func(o *Options) { o.HostOnly = true })
		w.apply(w.service("api", 0, 0))
		w.both(0)
	})
}

// TestIsolation: an address that is not for everybody any more passes before the mode below tells clients apart,
// and is translated again afterwards.
func TestIsolation(t *testing.T) {
	inside(t, func(w *world) {
		w.listen(0)
		s := w.service("api", 0, 0)
		s.Service.Scope.Mesh = "a"
		w.apply(s, w.service("all", 1, 0))
		w.both(0, 0)
		for _, change := range []proxy.Isolation{{Active: true}, {Active: true}} {
			if err := w.mode.Isolate(change); err != nil {
				t.Fatal(err)
			}
			w.both(0)
			w.both(1, 0)
		}
		if err := w.mode.Isolate(proxy.Isolation{Reset: true}); err != nil {
			t.Fatal(err)
		}
		w.both(0, 0)
		if n := len(w.mode.below.(*nothingBelow).isolated); n != 3 {
			t.Errorf("the mode below was told %d times", n)
		}
	})
}

// TestNeedsCgroup: an agent with a network namespace of its own has to be given a cgroup.
func TestNeedsCgroup(t *testing.T) {
	inside(t, func(w *world) {
		if _, err := New(Options{}, &nothingBelow{}); !errors.Is(err, ErrNamespace) {
			t.Errorf("without a cgroup: %v", err)
		}
		w.close(w.mode)
		w.open(func(o *Options) { o.Cgroup = filepath.Join(w.root, "missing") })
		s := w.service("api", 0, 0)
		if err := w.mode.Apply(t.Context(), []proxy.Change{{Name: s.Name, State: s}}); err != nil {
			t.Fatal(err)
		}
		if st := w.mode.Status(); !strings.Contains(st.Passing, "missing") {
			t.Errorf("status: %+v", st)
		}
		w.close(w.mode)
		w.open(func(o *Options) { o.Cgroup = t.TempDir() })
		if err := w.mode.Apply(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if st := w.mode.Status(); !strings.Contains(st.Passing, "cgroup2") {
			t.Errorf("status: %+v", st)
		}
	})
}

package permit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// world is a node with a pod, and two clients on other machines, of both families.
type world struct {
	*testing.T
	node, pod *netns.NS
	clients   map[string]*netns.NS
	keeper    *Keeper
}

func addrOf(v6 bool, n int) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd01:%d::2", n))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.1.%d.2", n))
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, node: netns.New(t, "kern-node"), clients: map[string]*netns.NS{}}
	w.node.Set("net.ipv4.ip_forward", "1")
	w.node.Set("net.ipv6.conf.all.forwarding", "1")
	for n, name := range []string{"pod", "a", "b"} {
		ns := netns.New(t, "kern-"+name)
		gateway4, gateway6 := fmt.Sprintf("10.1.%d.1/24", n), fmt.Sprintf("fd01:%d::1/64", n)
		if err := core.Connect(
			core.End{NS: w.node.NS, Link: "to-" + name, Addrs: []netip.Prefix{netip.MustParsePrefix(gateway4), netip.MustParsePrefix(gateway6)}},
			core.End{NS: ns.NS, Link: "up", Addrs: []netip.Prefix{netip.PrefixFrom(addrOf(false, n), 24), netip.PrefixFrom(addrOf(true, n), 64)}},
		); err != nil {
			t.Fatal(err)
		}
		for to, via := range map[string]string{"0.0.0.0/0": gateway4, "::/0": gateway6} {
			if err := ns.AddRoute(netip.MustParsePrefix(to), netip.MustParsePrefix(via).Addr()); err != nil {
				t.Fatal(err)
			}
		}
		if name == "pod" {
			w.pod = ns
		} else {
			w.clients[name] = ns
		}
	}
	w.clients["node"] = w.node
	for _, v6 := range []bool{false, true} {
		for _, port := range []int{80, 81} {
			ln, err := w.pod.Listen("tcp", netip.AddrPortFrom(addrOf(v6, 0), uint16(port)).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ln.Close() })
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte("x"))
					_ = c.Close()
				}
			}()
		}
	}
	w.open()
	return w
}

func (w *world) open() {
	w.Helper()
	k, err := New(Config{Node: "n1", Namespace: w.node.Fd()})
	if err != nil {
		w.Fatal(err)
	}
	w.keeper = k
	w.Cleanup(func() { _ = k.Close() })
}

// ask reports who may connect to port 80 of the pod: as "a+ b- node+". Port 81 is open to all.
func (w *world) want(when, want string) {
	w.Helper()
	for _, v6 := range []bool{false, true} {
		got := ""
		for _, name := range []string{"a", "b", "node"} {
			to := netip.AddrPortFrom(addrOf(v6, 0), 80)
			verdict := w.connects(name, to)
			if name != "node" {
				from := addrOf(v6, map[string]int{"a": 1, "b": 2}[name])
				if admitted, _ := w.keeper.Decide(from, to, proxy.TCP); admitted != (verdict == "+") {
					w.Errorf("%s: %s: the kernel says %s, Decide %t", when, from, verdict, admitted)
				}
			}
			got += " " + name + verdict
			if w.connects(name, netip.AddrPortFrom(addrOf(v6, 0), 81)) != "+" {
				w.Errorf("%s: %s does not reach a port that is not guarded", when, name)
			}
		}
		if got[1:] != want {
			w.Errorf("%s (IPv6: %t): %s, want %s", when, v6, got[1:], want)
		}
	}
}

func (w *world) connects(client string, to netip.AddrPort) (verdict string) {
	w.Helper()
	err := w.clients[client].Do(func() error {
		c, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	switch {
	case err == nil:
		return "+"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "-"
	}
	return "(" + err.Error() + ")"
}

func (w *world) apply(reset bool, all ...*proxy.Workload) {
	w.Helper()
	workloads := map[proxy.ServiceName]*proxy.Workload{}
	for _, one := range all {
		workloads[one.Name] = one
	}
	w.keeper.Apply(reset, workloads)
	if err := w.keeper.Flush(); err != nil {
		w.Fatal(err)
	}
}

func workload(name string, n int, sets ...string) *proxy.Workload {
	return &proxy.Workload{Name: proxy.ServiceName{Namespace: "ns", Name: name}, Node: "n2", Addrs: []netip.Addr{addrOf(false, n), addrOf(true, n)}, Sets: sets}
}

func guard(p proxy.GuardedPort) *proxy.Workload {
	w := workload("pod", 0)
	p.Port, p.Protocol = 80, proxy.TCP
	w.Node, w.Ports = "n1", []proxy.GuardedPort{p}
	return w
}

const front, back = "0f", "ba"

func TestPermissions(t *testing.T) {
	w := newWorld(t)
	w.want("before anything", "a+ b+ node+")
	allowFront := guard(proxy.GuardedPort{Allow: []proxy.Callers{{Set: front}}, Refuse: true})
	w.apply(true, allowFront, workload("a", 1, front), workload("b", 2, back))
	w.want("one namespace", "a+ b- node+")
	w.apply(false, workload("a", 1, back), workload("b", 2, front))
	w.want("labels change", "a- b+ node+")
	w.apply(false, workload("a", 1, back, front))
	w.want("one more", "a+ b+ node+")
	w.apply(false, guard(proxy.GuardedPort{Deny: []proxy.Callers{{Set: back}}, Allow: []proxy.Callers{{Set: front}}, Refuse: true}))
	w.want("deny before allow", "a- b+ node+")
	w.apply(false, guard(proxy.GuardedPort{Refuse: true}))
	w.want("the mesh denies by default", "a- b- node+")
	w.apply(false, guard(proxy.GuardedPort{Allow: []proxy.Callers{{Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24"), netip.MustParsePrefix("fd01:1::/64")}}}, Refuse: true}))
	w.want("ranges", "a+ b- node+")
	w.apply(false, guard(proxy.GuardedPort{Deny: []proxy.Callers{{Set: front, Ranges: []netip.Prefix{netip.MustParsePrefix("10.1.1.2/32"), netip.MustParsePrefix("fd01:1::2/128")}}}}))
	w.want("a set and ranges", "a- b+ node+")
	w.apply(false, guard(proxy.GuardedPort{Deny: []proxy.Callers{{}}}))
	w.want("everybody is denied", "a- b- node+")

	// Another workload takes the address over, in either order, and one of two leaves.
	successor := guard(proxy.GuardedPort{Allow: []proxy.Callers{{Set: front}}, Refuse: true})
	successor.Name.Name = "successor"
	w.keeper.Apply(false, map[proxy.ServiceName]*proxy.Workload{successor.Name: successor})
	w.keeper.Apply(false, map[proxy.ServiceName]*proxy.Workload{guard(proxy.GuardedPort{}).Name: nil})
	w.apply(false)
	w.want("another workload at the address", "a+ b+ node+")
	w.apply(false, workload("b", 2, back))
	w.want("which is guarded", "a+ b- node+")
	w.apply(false, workload("b", 2, front), allowFront)
	w.keeper.Apply(false, map[proxy.ServiceName]*proxy.Workload{successor.Name: nil})
	w.node.Run("nft", "delete", "table", "ip", TableName)
	if err := w.keeper.Flush(); err != nil {
		t.Fatal(err)
	}
	w.want("a table was deleted, and is there again", "a+ b+ node+")
	w.open() // another process
	if err := w.keeper.Flush(); err != nil {
		t.Fatal(err)
	}
	before := w.keeper
	w.apply(true, allowFront, workload("a", 1, front))
	w.want("after a restart", "a+ b- node+")
	before.Apply(false, map[proxy.ServiceName]*proxy.Workload{{Namespace: "ns", Name: "pod"}: nil})
	if err := before.Flush(); err != nil {
		t.Fatal(err)
	}
	w.want("the pod has gone", "a+ b+ node+")
	if out := w.node.Run("nft", "list", "tables"); out != "" {
		t.Errorf("tables are left: %s", out)
	}
}

// TestConnectionsGoOn: a permission does not end connections that are there.
func TestConnectionsGoOn(t *testing.T) {
	w := newWorld(t)
	ln, err := w.pod.Listen("tcp", "10.1.0.2:82")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	var c net.Conn
	if err := w.clients["a"].Do(func() (err error) { c, err = net.Dial("tcp", "10.1.0.2:82"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	served, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = served.Close() }()
	one := guard(proxy.GuardedPort{Refuse: true})
	one.Ports[0].Port = 82
	w.apply(true, one)
	if got := w.connects("a", netip.MustParseAddrPort("10.1.0.2:82")); got != "-" {
		t.Errorf("a new connection: %s", got)
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = served.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := served.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestChangesCostWhatChanged: a change of one workload is one element, however many there are, and sets
// and chains that nothing names any more go.
func TestChangesCostWhatChanged(t *testing.T) {
	w := newWorld(t)
	all := []*proxy.Workload{guard(proxy.GuardedPort{Allow: []proxy.Callers{{Set: front}}, Refuse: true})}
	for i := range 2000 {
		one := workload(fmt.Sprint("w", i), 1, front)
		one.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})}
		all = append(all, one)
	}
	w.apply(true, all...)
	w.keeper.Apply(false, map[proxy.ServiceName]*proxy.Workload{all[7].Name: nil})
	if n := len(w.keeper.want.changedSets[front]); n != 1 || len(w.keeper.want.changedPorts) != 0 {
		t.Errorf("%d addresses and %d ports are to be programmed", n, len(w.keeper.want.changedPorts))
	}
	if err := w.keeper.Flush(); err != nil {
		t.Fatal(err)
	}
	w.apply(false, guard(proxy.GuardedPort{Deny: []proxy.Callers{{Set: back}}}))
	if f := w.keeper.kernel.families[0]; len(f.sets) != 1 || len(f.named) != 1 {
		t.Errorf("sets %d, chains %d, want one of each", len(f.sets), len(f.named))
	}
}

// TestCounts: what was admitted and refused is counted, also while rules change, and the sums do not fall
// when ports go. The node itself does not count.
func TestCounts(t *testing.T) {
	w := newWorld(t)
	w.want("before anything", "a+ b+ node+") // the addresses are ready: no packet is sent again
	w.apply(true, guard(proxy.GuardedPort{Allow: []proxy.Callers{{Set: front}}, Refuse: true}), workload("a", 1, front))
	w.want("one of two", "a+ b- node+")
	want := func(when string, ports int, admitted, refused uint64) {
		t.Helper()
		s := w.keeper.Status()
		if s.Ports != ports || s.Admitted != admitted || s.Refused != refused || s.Problem+s.Unable != "" {
			t.Errorf("%s: %+v, want %d ports, %d admitted, %d refused", when, s, ports, admitted, refused)
		}
	}
	want("one of two", 2, 2, 2) // of each family
	w.apply(false, guard(proxy.GuardedPort{Deny: []proxy.Callers{{}}}))
	w.want("other rules", "a- b- node+")
	want("other rules", 2, 2, 6)
	if r := w.keeper.Status().Refusing; len(r) != 2 || r[0].Refused != 3 || r[0].Address != netip.AddrPortFrom(addrOf(false, 0), 80) {
		t.Errorf("ports that refuse: %+v", r)
	}
	w.node.Run("nft", "delete", "table", "ip", TableName)
	if err := w.keeper.Flush(); err != nil {
		t.Fatal(err)
	}
	w.want("a table that was written again", "a- b- node+")
	want("a table that was written again", 2, 2, 10)
	w.keeper.Apply(false, map[proxy.ServiceName]*proxy.Workload{{Namespace: "ns", Name: "pod"}: nil})
	if err := w.keeper.Flush(); err != nil {
		t.Fatal(err)
	}
	want("the port is gone", 0, 2, 10)
}

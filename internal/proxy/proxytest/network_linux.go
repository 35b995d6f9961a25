package proxytest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// Who is who on the network. The node under test:
const (
	nodeName = "node-a"
	nodeZone = "zone-a"
)

// Pods that serve: two on the node, three on the other one.
const (
	local1, local2            = "local-1", "local-2"
	remote1, remote2, remote3 = "remote-1", "remote-2", "remote-3"
)

// Ports that every pod serves.
const (
	backendPort = 8080
	otherPort   = 8081
)

// family of addresses. All ranges are for documentation or private use (RFC
// 5737, 3849, 1918, 4193), and the namespaces have no way out.
type family struct{ plan }

type plan struct {
	name                       string
	service, external_         string // ranges
	node, peer                 string // network between the nodes
	nodeOutside, outsidePrefix string // network towards outside
	localPods, remotePods      string // first part of pods' addresses
	bits, podBits              int
	workloads, everywhere      string
}

var (
	ipv4 = family{plan{
		name: "IPv4", service: "10.96.0.0/16", external_: "203.0.113.0/24",
		node: "192.0.2.1", peer: "192.0.2.2", nodeOutside: "198.51.100.1", outsidePrefix: "198.51.100.",
		localPods: "10.244.1.", remotePods: "10.244.2.", bits: 24, podBits: 30,
		workloads: "10.244.0.0/16", everywhere: "0.0.0.0/0",
	}}
	ipv6 = family{plan{
		name: "IPv6", service: "fd00:96::/108", external_: "2001:db8:203::/112",
		node: "2001:db8:2::1", peer: "2001:db8:2::2", nodeOutside: "2001:db8:100::1", outsidePrefix: "2001:db8:100::",
		localPods: "fd00:244:1::", remotePods: "fd00:244:2::", bits: 112, podBits: 126,
		workloads: "fd00:244::/32", everywhere: "::/0",
	}}
)

func (f family) String() string { return f.name }

// nth address of a range, of at most 64 Ki.
func nth(cidr string, i int) netip.Addr {
	b := netip.MustParsePrefix(cidr).Addr().AsSlice()
	b[len(b)-2] += byte(i >> 8)
	b[len(b)-1] += byte(i)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (f family) vip(i int) netip.Addr      { return nth(f.service, 256+i) }
func (f family) external(i int) netip.Addr { return nth(f.external_, 1+i) }

// pod addresses are in pairs, the node's end first.
func (f family) local(i int) (node, pod string) {
	if f.bits == 24 {
		return fmt.Sprint(f.localPods, 4*i+1), fmt.Sprint(f.localPods, 4*i+2)
	}
	return fmt.Sprintf("%s%x", f.localPods, 4*i+1), fmt.Sprintf("%s%x", f.localPods, 4*i+2)
}

func (f family) remote(i int) string { return fmt.Sprint(f.remotePods, i+1) }

// outside addresses: the i-th client's.
func (f family) outside(i int) string {
	if f.bits == 24 {
		return fmt.Sprint(f.outsidePrefix, 2+i)
	}
	return fmt.Sprintf("%s%x", f.outsidePrefix, 2+i)
}

// outsideClients is how many addresses there are outside.
const outsideClients = 40

// backend pod. It answers with its own name and the client's address.
type backendPod struct {
	name, node string
	zone       locality.Zone
	ns         *core.NS
	addrs      map[string]netip.Addr // by family
}

func (b *backendPod) addr(f family) netip.Addr { return b.addrs[f.name] }

// network of the node, which is this process's namespace, and what is around it.
type network struct {
	node            *core.NS
	pod             *netns.NS // a client on the node, without an endpoint
	remote, outside *netns.NS
	backends        map[string]*backendPod
	podAddr         map[string]netip.Addr // of pod, by family
	flows           atomic.Uint32         // of UDP that were opened
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	here, err := core.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	n := &network{
		node: here, remote: netns.New(t, "remote"), outside: netns.New(t, "outside"),
		backends: map[string]*backendPod{}, podAddr: map[string]netip.Addr{},
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		must(here.SetSysctl(name, "1"))
	}
	must(here.SetSysctl("net.ipv6.conf.default.accept_dad", "0"))
	// Refusals are asked for faster than hosts like to send them (icmp(7)). The
	// first two belong to the namespace only since Linux 6.11 and may be missing.
	_ = here.SetSysctl("net.ipv4.icmp_msgs_per_sec", "100000")
	_ = here.SetSysctl("net.ipv4.icmp_msgs_burst", "100000")
	must(here.SetSysctl("net.ipv4.icmp_ratelimit", "0"))
	must(here.SetSysctl("net.ipv6.icmp.ratelimit", "0"))
	must(here.SetLinkUp("lo", true))

	n.connect(t, n.remote, "remote", func(f family) (string, string, int) { return f.node, f.peer, f.bits })
	n.connect(t, n.outside, "outside", func(f family) (string, string, int) { return f.nodeOutside, f.outside(0), f.bits })
	for _, f := range []family{ipv4, ipv6} {
		for i := range outsideClients - 1 {
			n.outside.Addr("eth0", fmt.Sprintf("%s/%d", f.outside(i+1), f.bits))
		}
		must(here.AddRoute(netip.PrefixFrom(netip.MustParseAddr(f.remote(0)), f.bits).Masked(), netip.MustParseAddr(f.peer)))
		// The kernel looks for a route before it translates; nodes have a default one.
		must(here.AddRoute(netip.MustParsePrefix(f.everywhere), netip.MustParseAddr(f.peer)))
	}
	n.addLocalPods(t)
	n.addRemotePods(t)
	for _, b := range n.backends {
		b.serve(t)
	}
	n.catchLeaks(t)
	n.warm(t)
	return n
}

// addLocalPods: two that serve, and a client, each with a cable of its own to the
// node, as between ports of a bridge answers would pass the node by.
func (n *network) addLocalPods(t *testing.T) {
	t.Helper()
	for i, name := range []string{local1, local2, "pod"} {
		ns := netns.New(t, name)
		n.connect(t, ns, name, func(f family) (string, string, int) {
			ours, theirs := f.local(i)
			return ours, theirs, f.podBits
		})
		addrs := map[string]netip.Addr{}
		for _, f := range []family{ipv4, ipv6} {
			_, pod := f.local(i)
			addrs[f.name] = netip.MustParseAddr(pod)
		}
		if name == "pod" {
			n.pod, n.podAddr = ns, addrs
			continue
		}
		n.backends[name] = &backendPod{name: name, node: nodeName, zone: nodeZone, ns: ns.NS, addrs: addrs}
	}
}

// addRemotePods as addresses of the other node.
func (n *network) addRemotePods(t *testing.T) {
	t.Helper()
	for i, name := range []string{remote1, remote2, remote3} {
		b := &backendPod{name: name, node: "node-b", zone: "zone-b", ns: n.remote.NS, addrs: map[string]netip.Addr{}}
		for _, f := range []family{ipv4, ipv6} {
			a := netip.MustParseAddr(f.remote(i))
			b.addrs[f.name] = a
			n.remote.Addr("lo", netip.PrefixFrom(a, a.BitLen()).String())
		}
		n.backends[name] = b
	}
}

// warm asks everybody directly, so that neighbours know each other before a case
// takes slowness for silence, and a network that is laid wrong shows at once.
func (n *network) warm(t *testing.T) {
	t.Helper()
	for _, c := range []client{
		{name: "node", ns: n.node, flows: &n.flows}, {name: "pod", ns: n.pod.NS, flows: &n.flows}, {name: "outside", ns: n.outside.NS, flows: &n.flows},
	} {
		for _, b := range n.backends {
			for _, addr := range b.addrs {
				if a, err := c.ask(proxy.TCP, netip.AddrPortFrom(addr, backendPort), prompt); err != nil || a.who != b.name {
					t.Fatalf("%s does not reach %s at %s: %s, %v", c.name, b.name, addr, a.who, err)
				}
			}
		}
	}
}

// connect the node with a machine, which has it as its only way.
func (n *network) connect(t *testing.T, peer *netns.NS, link string, addrs func(family) (ours, theirs string, bits int)) {
	t.Helper()
	a, b := core.End{NS: n.node, Link: link}, core.End{NS: peer.NS, Link: "eth0"}
	for _, f := range []family{ipv4, ipv6} {
		ours, theirs, bits := addrs(f)
		a.Addrs = append(a.Addrs, netip.PrefixFrom(netip.MustParseAddr(ours), bits))
		b.Addrs = append(b.Addrs, netip.PrefixFrom(netip.MustParseAddr(theirs), bits))
	}
	if err := core.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	for _, f := range []family{ipv4, ipv6} {
		ours, _, _ := addrs(f)
		peer.Route(f.everywhere, ours)
	}
}

func (n *network) describe() KernelNode {
	node := KernelNode{Name: nodeName, Zone: nodeZone}
	for _, f := range []family{ipv4, ipv6} {
		node.ServiceCIDRs = append(node.ServiceCIDRs, netip.MustParsePrefix(f.service))
		node.WorkloadCIDRs = append(node.WorkloadCIDRs, netip.MustParsePrefix(f.workloads))
		node.ExternalCIDRs = append(node.ExternalCIDRs, netip.MustParsePrefix(f.external_))
		node.Addresses = append(node.Addresses, netip.MustParseAddr(f.node), netip.MustParseAddr(f.nodeOutside))
	}
	return node
}

// serve both families, protocols and ports until the test ends.
func (b *backendPod) serve(t *testing.T) {
	t.Helper()
	for _, addr := range b.addrs {
		for _, port := range []uint16{backendPort, otherPort} {
			at := netip.AddrPortFrom(addr, port)
			ln, err := b.ns.Listen("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			pc, err := b.ns.ListenPacket("udp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = ln.Close(), pc.Close() })
			go b.serveStreams(ln, port)
			go b.serveDatagrams(pc, port)
		}
	}
}

// hello is what a backend says: who it is, the port it was asked at, and the
// client it sees.
func (b *backendPod) hello(port uint16, from net.Addr) []byte {
	return fmt.Appendf(nil, "%s %d %s\n", b.name, port, from)
}

func (b *backendPod) serveStreams(ln net.Listener, port uint16) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = c.Write(b.hello(port, c.RemoteAddr()))
			_, _ = io.Copy(c, c)
		}()
	}
}

func (b *backendPod) serveDatagrams(c net.PacketConn, port uint16) {
	buf := make([]byte, 2048)
	for {
		_, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(b.hello(port, from), from)
		}
	}
}

// client asks from a place on the network.
type client struct {
	name string
	ns   *core.NS
	// addr it asks from; invalid: as the kernel chooses.
	addr netip.Addr
	// port it asks from; 0: any.
	port uint16
	// flows of the network.
	flows *atomic.Uint32
	// foreign, for a client that is not on the node; see KernelEnv. It may be nil.
	foreign func() (leave func(), err error)
}

// clients: a pod of the node, the node itself, and the i-th outside.
func (k *kernel) pod() client  { return client{name: "pod", ns: k.net.pod.NS, flows: &k.net.flows} }
func (k *kernel) node() client { return client{name: "node", ns: k.net.node, flows: &k.net.flows} }
func (k *kernel) outside(i int) client {
	return client{name: fmt.Sprint("outside-", i), ns: k.net.outside.NS, addr: netip.MustParseAddr(k.family.outside(i)), flows: &k.net.flows, foreign: k.env.Foreign}
}

// of a pod that serves.
func (k *kernel) inside(pod string) client {
	c := client{name: pod, ns: k.net.backends[pod].ns, flows: &k.net.flows}
	if k.net.backends[pod].node != nodeName {
		c.foreign = k.env.Foreign
	}
	return c
}

// answer of a backend, or refused or silent.
type answer struct {
	who    string
	port   uint16
	source netip.Addr
}

// What may come instead of a backend's name.
const (
	whoRefused = "(refused)"
	whoSilent  = "(silence)"
)

// open a connection or flow; it must not hang. Each flow of UDP has a port of its own: flows go on
// after what opened them, so a question from the port of an earlier one would follow that.
func (c client) open(proto proxy.Protocol, to netip.AddrPort, wait time.Duration) (conn net.Conn, err error) {
	const first, ports = 40000, 20000
	err = c.ns.Do(func() error {
		if c.foreign != nil {
			leave, err := c.foreign()
			if err != nil {
				return err
			}
			defer leave()
		}
		for {
			d := net.Dialer{Timeout: wait}
			switch {
			case c.port != 0 && proto == proxy.UDP:
				d.LocalAddr = &net.UDPAddr{IP: c.addr.AsSlice(), Port: int(c.port)}
			case c.port != 0:
				d.LocalAddr, d.Control = &net.TCPAddr{IP: c.addr.AsSlice(), Port: int(c.port)}, reuseAddress
			case proto == proxy.UDP:
				d.LocalAddr = &net.UDPAddr{IP: c.addr.AsSlice(), Port: int(first + c.flows.Add(1)%ports)}
			case c.addr.IsValid():
				d.LocalAddr = &net.TCPAddr{IP: c.addr.AsSlice()}
			}
			if conn, err = d.Dial(strings.ToLower(string(proto)), to.String()); c.port != 0 || proto != proxy.UDP || !errors.Is(err, syscall.EADDRINUSE) {
				return err
			}
		}
	})
	return conn, err
}

// reuseAddress lets a socket have a port that a closed connection to another address had.
func reuseAddress(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(err, failed)
}

// ask once, as a new connection or flow.
func (c client) ask(proto proxy.Protocol, to netip.AddrPort, wait time.Duration) (answer, error) {
	conn, err := c.open(proto, to, wait)
	if err != nil {
		return failure(err)
	}
	defer func() { _ = conn.Close() }()
	if tcp, ok := conn.(*net.TCPConn); ok && c.port != 0 {
		_ = tcp.SetLinger(0) // the port is free at once, whoever knows of the connection
	}
	return question(conn, proto, wait)
}

// question on an open connection or flow: a stream's backend speaks first.
func question(conn net.Conn, proto proxy.Protocol, wait time.Duration) (answer, error) {
	_ = conn.SetDeadline(time.Now().Add(wait))
	if proto == proxy.UDP {
		// EPERM: the packet was dropped on its way out of this very machine, where a
		// refusal, if there is one, arrives on its own.
		if _, err := conn.Write([]byte("?")); err != nil && !errors.Is(err, syscall.EPERM) {
			return failure(err)
		}
	}
	line, err := bufio.NewReaderSize(conn, 128).ReadString('\n')
	if err != nil {
		return failure(err)
	}
	return parseAnswer(line)
}

func parseAnswer(line string) (answer, error) {
	words := strings.Fields(line)
	if len(words) != 3 {
		return answer{}, fmt.Errorf("a backend said %q", line)
	}
	port, err := strconv.ParseUint(words[1], 10, 16)
	if err != nil {
		return answer{}, err
	}
	source, err := netip.ParseAddrPort(words[2])
	return answer{who: words[0], port: uint16(port), source: source.Addr().Unmap()}, err
}

func failure(err error) (answer, error) {
	switch kindOf(err) {
	case refused:
		return answer{who: whoRefused}, nil
	case silent:
		return answer{who: whoSilent}, nil
	}
	return answer{}, fmt.Errorf("unexpected kind of failure: %w", err)
}

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// The network of nodes and pods. Nodes are on a bridge of this process's namespace, which also
// has the API server; a pod has a link to its node, and a network of two addresses on it. A
// bridge of pods would let answers past the node, which has to translate them back.
const (
	// PodCIDR is the range of the pods' addresses.
	PodCIDR = "10.244.0.0/16"
	// PodCIDR6 is that of a cluster of two families.
	PodCIDR6   = "fd00:10:244::/48"
	nodeBridge = "nodes"
	// maxNodes and maxPods of a node follow from the addresses.
	maxNodes = 200
	maxPods  = 60
)

// nodeAddr is the address of a node by its number, from 1.
func nodeAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(n + 1)}) }

// podLink is the network of a pod: the node's address, and the pod's.
func podLink(node, pod int) (gateway, own netip.Addr) {
	base := byte(4 * pod)
	return netip.AddrFrom4([4]byte{10, 244, byte(node), base + 1}), netip.AddrFrom4([4]byte{10, 244, byte(node), base + 2})
}

// The same of IPv6: a node has 2^16 links of pods.
func nodeAddr6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00:5100::%x", n+1)) }

func podLink6(node, pod int) (gateway, own netip.Addr) {
	at := func(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%x:%x::%d", node, pod, n)) }
	return at(1), at(2)
}

// network makes the bridge of the nodes, once for a cluster.
func (c *Cluster) network(t testing.TB) *kernelnetns.NS {
	t.Helper()
	if c.outer != nil {
		return c.outer
	}
	outer, err := kernelnetns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outer.Close() })
	bridge := []netip.Prefix{netip.PrefixFrom(nodeAddr(0), 24)}
	if c.dual {
		bridge = append(bridge, netip.PrefixFrom(nodeAddr6(0), 64))
		for _, name := range []string{"all.accept_dad", "default.accept_dad"} { // addresses are usable at once
			if err := outer.SetSysctl("net.ipv6.conf."+name, "0"); err != nil {
				t.Fatal(err)
			}
		}
		if err := outer.SetSysctl("net.ipv6.conf.all.forwarding", "1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := outer.AddBridge(nodeBridge, bridge...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := outer.DeleteLink(nodeBridge); err != nil {
			t.Error(err)
		}
	})
	if err := outer.SetSysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	c.outer = outer
	return outer
}

var everything, everything6 = netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// nodeNetwork makes the namespace of a node.
func (c *Cluster) nodeNetwork(t testing.TB, name string, number int) *netns.NS {
	t.Helper()
	outer := c.network(t)
	ns := netns.New(t, name)
	addr := nodeAddr(number)
	addrs := []netip.Prefix{netip.PrefixFrom(addr, 24)}
	if c.dual {
		addrs = append(addrs, netip.PrefixFrom(nodeAddr6(number), 64))
	}
	err := kernelnetns.Connect(
		kernelnetns.End{NS: outer, Link: fmt.Sprintf("node%d", number), Bridge: nodeBridge},
		kernelnetns.End{NS: ns.NS, Link: "eth0", Addrs: addrs})
	if err == nil && c.dual {
		err = errors.Join(ns.AddRoute(everything6, nodeAddr6(0)),
			outer.AddRoute(netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", number)), nodeAddr6(number)))
	}
	if err == nil {
		err = ns.AddRoute(everything, nodeAddr(0))
	}
	if err == nil {
		err = outer.AddRoute(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), 24), addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	ns.Forward()
	// The kernel limits refusals by ICMP, and those beyond the limit look like drops: it limits
	// no type (ip-sysctl, icmp_ratemask).
	ns.Set("net.ipv4.icmp_ratemask", "0")
	if c.dual {
		ns.Set("net.ipv6.icmp.ratelimit", "0")
	}
	return ns
}

// AddMachine makes a machine beside the nodes: a network namespace on their network, which is of no
// cluster. It is gone when the test ends.
func (c *Cluster) AddMachine(t testing.TB, name string) (*netns.NS, netip.Addr) {
	t.Helper()
	c.nodes++
	if c.nodes > maxNodes {
		t.Fatalf("more than %d nodes", maxNodes)
	}
	return c.nodeNetwork(t, name, c.nodes), nodeAddr(c.nodes)
}

// RunOn runs a program in a namespace, until the test ends.
func (c *Cluster) RunOn(t testing.TB, ns *netns.NS, name, path string, env []string, args ...string) *Program {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = env
	return &Program{startIn(t, ns, c.dir, name, cmd)}
}

// podNetwork makes the namespace of a pod, and its link to the node.
func (n *Node) podNetwork(name string, number int) (*kernelnetns.NS, netip.Addr, error) {
	ns, err := kernelnetns.New(name)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	gateway, own := podLink(n.number, number)
	ends := [2][]netip.Prefix{{netip.PrefixFrom(gateway, 30)}, {netip.PrefixFrom(own, 30)}}
	gateway6, own6 := podLink6(n.number, number)
	if n.c.dual {
		ends[0], ends[1] = append(ends[0], netip.PrefixFrom(gateway6, 80)), append(ends[1], netip.PrefixFrom(own6, 80))
	}
	err = kernelnetns.Connect(
		kernelnetns.End{NS: n.NS.NS, Link: fmt.Sprintf("pod%d", number), Addrs: ends[0]},
		kernelnetns.End{NS: ns, Link: "eth0", Addrs: ends[1]})
	if err == nil {
		err = ns.AddRoute(everything, gateway)
	}
	if err == nil && n.c.dual {
		err = ns.AddRoute(everything6, gateway6)
	}
	if err != nil {
		_ = ns.Close()
		return nil, netip.Addr{}, err
	}
	return ns, own, nil
}

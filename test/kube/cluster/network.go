package cluster

import (
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
	PodCIDR    = "10.244.0.0/16"
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
	if err := outer.AddBridge(nodeBridge, netip.PrefixFrom(nodeAddr(0), 24)); err != nil {
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

var everything = netip.PrefixFrom(netip.IPv4Unspecified(), 0)

// nodeNetwork makes the namespace of a node.
func (c *Cluster) nodeNetwork(t testing.TB, name string, number int) *netns.NS {
	t.Helper()
	outer := c.network(t)
	ns := netns.New(t, name)
	addr := nodeAddr(number)
	err := kernelnetns.Connect(
		kernelnetns.End{NS: outer, Link: fmt.Sprintf("node%d", number), Bridge: nodeBridge},
		kernelnetns.End{NS: ns.NS, Link: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
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
	err = kernelnetns.Connect(
		kernelnetns.End{NS: n.NS.NS, Link: fmt.Sprintf("pod%d", number), Addrs: []netip.Prefix{netip.PrefixFrom(gateway, 30)}},
		kernelnetns.End{NS: ns, Link: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(own, 30)}})
	if err == nil {
		err = ns.AddRoute(everything, gateway)
	}
	if err != nil {
		_ = ns.Close()
		return nil, netip.Addr{}, err
	}
	return ns, own, nil
}

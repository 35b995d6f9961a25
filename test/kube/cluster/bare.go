package cluster

import (
	"fmt"
	"os/exec"
	"testing"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// Bare is the network of a cluster, without Kubernetes: for machines on which a control plane of it takes too long. It has
// nodes of [Cluster.AddBareNode] and machines of [Cluster.AddMachine]; the methods of an API server must not be called.
func Bare(t testing.TB, dualStack bool) *Cluster {
	t.Helper()
	return &Cluster{t: t, dir: t.TempDir(), dual: dualStack}
}

// AddBareNode makes the network of a node, which nobody registers. It is gone, with its pods, when the test ends.
func (c *Cluster) AddBareNode(t testing.TB, name string) *Node {
	t.Helper()
	ns, addr := c.AddMachine(t, name)
	outer, link := c.outer, fmt.Sprintf("node%d", c.nodes)
	t.Cleanup(func() { // the kernel removes it with the namespace, but later
		if err := outer.DeleteLink(link); err != nil {
			t.Error(err)
		}
	})
	n := &Node{Name: name, NS: ns, Addr: addr.String(), c: c, t: t, number: c.nodes}
	if c.dual {
		n.Addr6 = nodeAddr6(n.number).String()
	}
	return n
}

// Bridge is the address of this process's network namespace in the network of the nodes.
func (c *Cluster) Bridge() string { return nodeAddr(0).String() }

// RunPod runs a command in a network of a pod, until the test ends, and returns that network and its addresses; addr6 is
// empty in a cluster of one family.
func (n *Node) RunPod(t testing.TB, name string, cmd *exec.Cmd) (ns *kernelnetns.NS, addr, addr6 string) {
	t.Helper()
	n.mu.Lock()
	n.next++
	number := n.next
	n.mu.Unlock()
	ns, own, err := n.podNetwork(name, number)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	if n.c.dual {
		_, own6 := podLink6(n.number, number)
		addr6 = own6.String()
	}
	// The namespace is closed here, and not with its test.
	startIn(t, &netns.NS{NS: ns}, n.c.dir, "pod-"+name, cmd)
	return ns, own.String(), addr6
}

package cluster

import (
	"context"
	"encoding/json"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// renewals of a node's Lease within the time after which the node is not ready any more; kubelet and
// the controller manager have 10 s and 50 s.
const renewals = 5

// renew the Lease of the node until ctx ends, as kubelet does (KEP-589), except while it is off.
func (n *Node) renew(ctx context.Context, grace time.Duration) {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	tick := time.NewTicker(grace / renewals)
	defer tick.Stop()
	for {
		if !n.isOff() {
			now := metav1.NowMicro()
			spec, err := json.Marshal(map[string]any{"spec": coordinationv1.LeaseSpec{
				HolderIdentity: &n.Name, LeaseDurationSeconds: new(int32(grace / time.Second)), RenewTime: &now,
			}})
			if err == nil {
				_, err = leases.Patch(ctx, n.Name, types.MergePatchType, spec, metav1.PatchOptions{})
			}
			if apierrors.IsNotFound(err) {
				_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
			} // any other error is one of an API server that is away
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) isOff() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.off
}

// namespaces of the node and its pods.
func (n *Node) namespaces() []*kernelnetns.NS {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := []*kernelnetns.NS{n.NS.NS}
	for _, p := range n.pods {
		if p.ns != nil && !p.gone {
			out = append(out, p.ns)
		}
	}
	return out
}

// signal all processes on the node.
func (n *Node) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	for _, ns := range n.namespaces() {
		if err := ns.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
}

// Hang stops all that runs on the node, kubelet included, by SIGSTOP, until resume, which is idempotent.
// The kernel of the node goes on: it takes connections, to which nothing answers.
func (n *Node) Hang(t testing.TB) (resume func()) {
	t.Helper()
	n.setOff(true)
	n.signal(t, syscall.SIGSTOP)
	hangs := true
	resume = func() {
		if !hangs {
			return
		}
		hangs = false
		n.signal(t, syscall.SIGCONT)
		n.setOff(false)
		n.reportAgain(t)
	}
	t.Cleanup(resume)
	return resume
}

func (n *Node) setOff(off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off = off
}

// reportAgain writes what kubelet does after a pause: that the node is ready, and its pods as they are.
func (n *Node) reportAgain(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	if err := n.writeStatus(ctx, corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready()}}); err != nil {
		t.Logf("node %s: %v", n.Name, err) // at the end of a test there may be no API server
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.order {
		if run := n.pods[p.UID]; run != nil && !run.gone {
			n.work.Go(func() { n.status(ctx, p, run, corev1.PodRunning, n.answers(ctx, p, run)) })
		}
	}
}

// PowerOff ends the cluster as a loss of power does: links first, so that nothing outside is told, then
// every process of all nodes and of the control plane, by SIGKILL. Nothing comes back.
func (c *Cluster) PowerOff(t testing.TB) {
	t.Helper()
	for _, n := range c.all {
		n.setOff(true)
		if err := n.NS.SetLinkUp("eth0", false); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []*part{c.api, c.manager, c.etcd} {
		p.stop(t, syscall.SIGKILL)
	}
	for _, n := range c.all {
		for _, ns := range n.namespaces() {
			if err := ns.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestLeases: a node whose lease runs out is not ready; if many run out together and no
// witness confirms it, none is marked for as long again and status says why; once they are
// back, all is as before. The nodes are objects alone, with leases of seconds, so that the test need not
// wait for those of real agents.
func TestLeases(t *testing.T) {
	p := startPlane(t)
	client, err := kubeclient.New(p.config(), kind.All())
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, client: client, dead: map[int]bool{}}
	const nodes = 10
	for i := range nodes {
		f.register(i)
	}
	ctx, stop := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer stop()
	renewing.Go(func() { f.renew(ctx, nodes) })

	f.kill(0)
	testkit.Eventually(t, "the one dead node is not ready", func() bool { return f.ready(nodes) == nodes-1 })
	if out := p.proxima("status"); strings.Contains(out, "leases:") {
		t.Errorf("one of ten is no reason to hold anything:\n%s", out)
	}

	f.kill(1, 2, 3)
	testkit.Eventually(t, "status says that leases run out together", func() bool {
		return strings.Contains(p.proxima("status"), "leases:")
	})
	if n := f.ready(nodes); n != nodes-1 {
		t.Errorf("%d of %d nodes are ready; three died together and should not have been marked yet", n, nodes)
	}
	if out := p.proxima("status"); !strings.Contains(out, "at most: no agent of another machine has been able to probe it") {
		t.Errorf("status does not say why and until when:\n%s", out)
	}
	testkit.Eventually(t, "without witnesses they are marked after twice their leases", func() bool { return f.ready(nodes) == nodes-4 })

	f.revive()
	testkit.Eventually(t, "status has nothing to say", func() bool {
		return !strings.Contains(p.proxima("status"), "leases:")
	})
	testkit.Eventually(t, "the first node, reported ready by its agent, stays so", func() bool { return f.ready(nodes) == nodes })
}

const leaseOfTest = 6 * time.Second

type fleet struct {
	t      *testing.T
	client resource.Client
	mu     sync.Mutex
	dead   map[int]bool
}

func (f *fleet) kill(which ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range which {
		f.dead[i] = true
	}
}

func (f *fleet) revive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.dead)
}

func (f *fleet) alive(i int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.dead[i]
}

func fleetNode(i int) string { return fmt.Sprintf("node-%d", i) }

func (f *fleet) register(i int) {
	f.t.Helper()
	_, err := f.client.Create(f.t.Context(), kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fleetNode(i)}})
	if err == nil {
		err = f.tellReady(f.t.Context(), i)
	}
	if err == nil {
		now, seconds := metav1.NowMicro(), int32(leaseOfTest/time.Second)
		_, err = f.client.Create(f.t.Context(), kind.Lease, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: fleetNode(i)},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &now, LeaseDurationSeconds: &seconds},
		})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// tellReady does what an agent does with every heartbeat: its node is ready.
func (f *fleet) tellReady(ctx context.Context, i int) error {
	obj, err := f.client.Get(ctx, kind.Node, resource.Key{Name: fleetNode(i)})
	if err != nil {
		return err
	}
	node := obj.(*corev1.Node)
	if isReady(node) {
		return nil
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady"}}
	_, err = f.client.UpdateStatus(ctx, kind.Node, node)
	return err
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// renew keeps the living alive until ctx ends.
func (f *fleet) renew(ctx context.Context, nodes int) {
	for ctx.Err() == nil {
		for i := range nodes {
			if !f.alive(i) {
				continue
			}
			key := resource.Key{Namespace: corev1.NamespaceNodeLease, Name: fleetNode(i)}
			obj, err := f.client.Get(ctx, kind.Lease, key)
			if err == nil {
				lease, now := obj.(*coordinationv1.Lease), metav1.NowMicro()
				lease.Spec.RenewTime = &now
				_, err = f.client.Update(ctx, kind.Lease, lease)
			}
			if err == nil {
				err = f.tellReady(ctx, i)
			}
			if err != nil && ctx.Err() == nil {
				f.t.Logf("node %d: %v", i, err) // a conflict; the next round mends it
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(leaseOfTest / 8):
		}
	}
}

func (f *fleet) ready(nodes int) int {
	f.t.Helper()
	n := 0
	for i := range nodes {
		obj, err := f.client.Get(f.t.Context(), kind.Node, resource.Key{Name: fleetNode(i)})
		if err != nil {
			f.t.Fatal(err)
		}
		if isReady(obj.(*corev1.Node)) {
			n++
		}
	}
	return n
}

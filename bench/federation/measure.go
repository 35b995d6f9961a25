package main

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func (w *world) measurements() []measurement {
	return []measurement{
		{"workload ready → used in its zone", "p50 ≤ 10", func(ctx context.Context, _ int) (time.Duration, error) {
			return w.toggle(ctx, true, w.clientHere, w.vipHere)
		}},
		{"workload ready → used in the other zone", "p50 ≤ 15, p99 ≤ 50", func(ctx context.Context, _ int) (time.Duration, error) {
			return w.toggle(ctx, true, w.clientAway, w.vipAway)
		}},
		{"workload not ready → unused in the other zone", "≤ 20", func(ctx context.Context, _ int) (time.Duration, error) {
			return w.toggle(ctx, false, w.clientAway, w.vipAway)
		}},
		{"new service → name in the other zone", "≤ 50", w.newName},
		{"policy at global → zone", "≤ 20", w.policy},
	}
}

// settle is longer than the windows in which controllers collect changes.
const settle = 250 * time.Millisecond

// toggle makes the workload ready or not, and waits until a client notices: the first byte
// of a connection has reached the workload, or there is none any more. Before it begins, the
// other state has settled everywhere.
func (w *world) toggle(ctx context.Context, ready bool, client *netns.NS, vip string) (time.Duration, error) {
	if err := w.setReady(ctx, !ready); err != nil {
		return 0, err
	}
	for _, c := range []struct {
		from *netns.NS
		vip  string
	}{{w.clientHere, w.vipHere}, {w.clientAway, w.vipAway}} {
		if _, err := until(ctx, func() bool { return answers(ctx, c.from, c.vip) == !ready }); err != nil {
			return 0, fmt.Errorf("settle: %w", err)
		}
	}
	// The windows in which controllers collect changes end.
	time.Sleep(settle)
	w.reached.Store(nil)
	w.trace.start()
	begin := time.Now()
	if err := w.setReady(ctx, ready); err != nil {
		return 0, err
	}
	_, err := until(ctx, func() bool { return answers(ctx, client, vip) == ready })
	if ready && err == nil {
		return w.reached.Load().Sub(begin), err
	}
	return time.Since(begin), err
}

// newName exports a new Service, and waits until an agent in the other zone has its name.
func (w *world) newName(ctx context.Context, round int) (time.Duration, error) {
	name := fmt.Sprintf("new-%d-%d", time.Now().UnixNano()%1e6, round)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.node.DialContext(ctx, network, "127.0.0.1:53")
	}}
	time.Sleep(settle)
	w.trace.start()
	begin := time.Now()
	if err := w.exported(ctx, name); err != nil {
		return 0, err
	}
	_, err := until(ctx, func() bool {
		found, err := resolver.LookupNetIP(ctx, "ip4", name+"."+namespace+".svc.clusterset.local.")
		return err == nil && len(found) > 0
	})
	return time.Since(begin), err
}

// policy creates a Mesh at global, and waits until a zone has it.
func (w *world) policy(ctx context.Context, round int) (time.Duration, error) {
	watch, err := w.away.Watch(ctx, kind.Mesh, resource.WatchOptions{})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	name := fmt.Sprintf("mesh-%d-%d", time.Now().UnixNano()%1e6, round)
	time.Sleep(settle)
	w.trace.start()
	begin := time.Now()
	if _, err := w.global.Create(ctx, kind.Mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return 0, err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case event, ok := <-watch.ResultChan():
			if !ok {
				return 0, fmt.Errorf("the watch of meshes ended")
			}
			if mesh, ok := event.Object.(*meshv1alpha1.Mesh); ok && mesh.Name == name {
				return time.Since(begin), nil
			}
		case <-late.C:
			return 0, errPatience
		}
	}
}

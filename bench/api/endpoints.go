package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
)

const (
	endpointsPerSlice = 100
	zones             = 3
)

// endpoints loads many slices, and follows them as an informer does.
func (b *bench) endpoints(ctx context.Context) error {
	p, err := b.startPlane(ctx, "sqlite:")
	if err != nil {
		return err
	}
	defer p.end()
	clients, err := p.clients(ctx, 8)
	if err != nil {
		return err
	}
	before, err := p.resident()
	if err != nil {
		return err
	}
	took, err := each(len(clients), b.slices, func(w, i int) error {
		_, err := clients[w].DiscoveryV1().EndpointSlices("default").Create(ctx, slice(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d endpoints in %d slices: ", b.slices*endpointsPerSlice, b.slices)
	b.atMost(name+"load", took.Seconds(), 5, "%.2f s")
	if err := pause(ctx, b.idleAfter); err != nil {
		return err
	}
	after, err := p.resident()
	if err != nil {
		return err
	}
	b.atMost(name+"memory of the control plane before", before, 0, "%.0f MB")
	b.atMost(name+"memory of the control plane, settled", after, 250, "%.0f MB")
	var synced durations
	for range 5 {
		d, err := p.syncInformer(ctx, b.slices)
		if err != nil {
			return err
		}
		synced = append(synced, d)
	}
	b.atMost(name+"an informer is in sync (protobuf)", synced.quantile(0.5)/1000, 1, "%.2f s")
	after, err = p.resident()
	b.atMost(name+"memory of the control plane after 5 informers", after, 0, "%.0f MB")
	return err
}

// syncInformer is how long a new informer takes to have everything.
func (p *process) syncInformer(ctx context.Context, want int) (time.Duration, error) {
	c, err := p.client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	factory := informers.NewSharedInformerFactory(c, 0)
	informer := factory.Discovery().V1().EndpointSlices()
	handle := informer.Informer()
	began := time.Now()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	took := time.Since(began)
	n := len(handle.GetStore().ListKeys())
	cancel()
	factory.Shutdown()
	if n < want {
		return 0, fmt.Errorf("the informer has %d slices, want %d", n, want)
	}
	return took, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("interrupted"), ctx.Err())
	}
}

func slice(n int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("many-%d", n), Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("many-%d", n), discoveryv1.LabelManagedBy: "bench"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for i := range endpointsPerSlice {
		at := n*endpointsPerSlice + i
		zone := fmt.Sprintf("zone-%d", at%zones)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 1+at>>16, at>>8&255, at&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", at%500)), Zone: &zone,
			TargetRef: &corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: "default",
				Name:      fmt.Sprintf("many-%d-%d", n, i),
				UID:       "00000000-0000-4000-8000-000000000000",
			},
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return s
}

package main

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/topology"
)

// disabled is the mode of Services that are not to be planned, though it is the default; to
// earlier programs it is no mode.
const disabled = "Disabled"

// planZones are the zones of planned Services.
const planZones = 3

// plans measures what a planned Service adds to the memory of a control plane: the same
// Services, with and without the annotation. Garbage is collected after every tenth of the
// heap: with the default, resident memory depends on when the last collection was.
func (b *bench) plans(ctx context.Context) error {
	b.env = []string{"GOGC=10"}
	defer func() { b.env = nil }()
	plain, err := b.planned(ctx, disabled)
	if err != nil {
		return err
	}
	planned, err := b.planned(ctx, topology.Adaptive)
	if err != nil {
		return err
	}
	n := float64(b.services)
	name := fmt.Sprintf("%d Services of 9 endpoints in %d zones: ", b.services, planZones)
	b.atMost(name+"memory of the control plane", plain, 0, "%.1f MB")
	b.atMost(name+"memory of the control plane, all planned", planned, 0, "%.1f MB")
	b.atMost(name+"memory of a plan", (planned-plain)*1000/n, 0, "%.1f kB")
	return nil
}

// planned is the memory of a control plane, in MB, when its Services have this topology mode.
func (b *bench) planned(ctx context.Context, mode string) (float64, error) {
	p, err := b.startPlane(ctx, "memory")
	if err != nil {
		return 0, err
	}
	defer p.end()
	clients, err := p.clients(ctx, 8)
	if err != nil {
		return 0, err
	}
	for i := range planZones {
		if err := p.node(ctx, i); err != nil {
			return 0, err
		}
	}
	_, err = each(len(clients), b.services, func(w, i int) error {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i), Namespace: "default"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
		s.Annotations = map[string]string{corev1.AnnotationTopologyMode: mode}
		if _, err := clients[w].CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := clients[w].DiscoveryV1().EndpointSlices("default").Create(ctx, zoneSlice(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, b.idleAfter); err != nil {
		return 0, err
	}
	want := 0
	if mode != disabled {
		want = b.services
	}
	if err := p.hasPlans(ctx, want); err != nil {
		return 0, err
	}
	return p.resident()
}

// hasPlans checks that there are so many TrafficPlans. Versions without that kind pass.
func (p *process) hasPlans(ctx context.Context, want int) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	raw, err := c.RESTClient().Get().AbsPath("/apis/planner.mesh.proxima.dev/v1alpha1/trafficplans").
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil
	}
	var list metav1.PartialObjectMetadataList
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err == nil && len(list.Items) != want {
		err = fmt.Errorf("%d TrafficPlans after the pause, want %d", len(list.Items), want)
	}
	return err
}

// node creates a ready Node in the zone of this number.
func (p *process) node(ctx context.Context, zone int) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	name := zoneName(zone)
	n, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Bench"}}
	_, err = c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}

// zoneSlice has 9 endpoints, one zone after the other.
func zoneSlice(n int) *discoveryv1.EndpointSlice {
	s := slice(n)
	s.Endpoints = s.Endpoints[:9]
	for i := range s.Endpoints {
		s.Endpoints[i].Zone = new(zoneName(i % planZones))
		s.Endpoints[i].NodeName, s.Endpoints[i].Hints = nil, nil
	}
	return s
}

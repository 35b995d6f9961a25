package topology

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// crowd is a controller with many planned Services of 9 endpoints in 3 zones.
func crowd(tb testing.TB, n int) (*Controller, *catalog.Snapshot, *fakeDemand) {
	client := resourcetest.New()
	client.Seed(equalNodes("abc")...)
	for i := range n {
		s := adaptive()
		s.Name, s.UID = fmt.Sprintf("s%05d", i), ""
		client.Seed(s, sliceOf(s.Name, "aaabbbccc"))
	}
	without := snapshotOfClient(tb, client)
	f := &fakeDemand{rates: map[string]float64{"a": 10, "b": 10, "c": 10}}
	c := New(Config{Demand: f})
	for key := range without.Services.All() {
		client.Seed(planOf(tb, c, without, key)[0])
	}
	return c, snapshotOfClient(tb, client), f
}

func sliceOf(service, zones string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for i, z := range zones {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}, Zone: ptr.To(string(z)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return s
}

// BenchmarkStep is what demand costs every 10 s.
func BenchmarkStep(b *testing.B) {
	c, s, _ := crowd(b, 10_000)
	for key := range s.Services.All() {
		planOf(b, c, s, key)
	}
	for b.Loop() {
		for key, service := range s.Services.All() {
			if !c.stands(key, service) {
				b.Fatal("nothing has changed")
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/10k-services")
}

// BenchmarkFailZone is what a question costs that concerns 10,000 planned Services of 3 endpoints, among 100 zones.
func BenchmarkFailZone(b *testing.B) {
	client, zones := resourcetest.New(), []string{}
	for i := range 100 {
		zones = append(zones, fmt.Sprintf("z%02d", i))
		client.Seed(node("n-"+zones[i], zones[i]))
	}
	for i := range 10_000 {
		s := adaptive()
		s.Name, s.UID = fmt.Sprintf("s%05d", i), ""
		slice := sliceOf(s.Name, "xxx")
		for k := range slice.Endpoints {
			slice.Endpoints[k].Zone = &zones[(i+7*k)%len(zones)]
		}
		client.Seed(s, slice)
	}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- world.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	c := New(Config{Client: client, Catalog: world})
	testkit.Eventually(b, "the catalog is read", world.Synced)
	for b.Loop() {
		s, err := c.Simulate(Change{FailZones: []locality.Zone{"z02"}, Summary: true})
		if err != nil || s.Summary.Services != 10_000 {
			b.Fatalf("%+v, %v", s, err)
		}
	}
}

// BenchmarkEndpointChange is what one changed slice costs among 10,000 Services: the
// planner, and the readers of plans.
func BenchmarkEndpointChange(b *testing.B) {
	c, s, _ := crowd(b, 10_000)
	key := resource.Key{Namespace: "shop", Name: "s00007"}
	service, _ := s.Services.Get(key)
	slice, _ := s.Slices.Get(resource.Key{Namespace: "shop", Name: "s00007-1"})
	var table trafficplan.Table
	for b.Loop() {
		planOf(b, c, s, resource.KeyOf(service))
		table.Apply(
			&catalog.Delta{
				Before: s,
				After:  s,
				Slices: []catalog.Change[*discoveryv1.EndpointSlice]{{Key: resource.KeyOf(slice), Old: slice, New: slice}},
			},
		)
	}
}

// BenchmarkWeights is what a view asks for each planned slice.
func BenchmarkWeights(b *testing.B) {
	_, s, _ := crowd(b, 10)
	slice, _ := s.Slices.Get(resource.Key{Namespace: "shop", Name: "s00007-1"})
	plan := trafficplan.Of(s, trafficplan.ServiceOf(slice))
	for b.Loop() {
		if plan.Weights("a", slice) == nil {
			b.Fatal("no plan")
		}
	}
}

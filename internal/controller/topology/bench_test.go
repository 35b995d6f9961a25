package topology

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// crowd is a controller with many planned Services of 9 endpoints in 3 zones.
func crowd(tb testing.TB, n int) (*Controller, *catalog.Snapshot, *fakeDemand) {
	client := resourcetest.New()
	var d catalog.Delta
	for _, o := range equalNodes("abc") {
		d.Nodes = append(d.Nodes, catalog.Change[*corev1.Node]{Key: resource.KeyOf(o), New: o.(*corev1.Node)})
	}
	for i := range n {
		s := adaptive()
		s.Name, s.UID = fmt.Sprintf("s%05d", i), ""
		client.Seed(s, sliceOf(s.Name, "aaabbbccc"))
	}
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	stop := runCatalog(tb, world)
	defer stop()
	d.Before, d.After = world.Snapshot(), world.Snapshot()
	for key, s := range d.After.Services.All() {
		d.Services = append(d.Services, catalog.Change[*corev1.Service]{Key: key, New: s})
	}
	f := &fakeDemand{rates: map[string]float64{"a": 10, "b": 10, "c": 10}}
	c := New(Config{Demand: f})
	c.plan(&d)
	return c, d.After, f
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
	c, _, _ := crowd(b, 10_000)
	now := time.Now()
	for b.Loop() {
		now = now.Add(10 * time.Second)
		c.step(now)
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/10k-services")
}

// BenchmarkEndpointChange is what one changed slice costs beside 10,000 Services.
func BenchmarkEndpointChange(b *testing.B) {
	c, s, _ := crowd(b, 10_000)
	key := resource.Key{Namespace: "shop", Name: "s00007-1"}
	slice, _ := s.Slices.Get(key)
	for b.Loop() {
		d := catalog.Delta{Before: s, After: s, Slices: []catalog.Change[*discoveryv1.EndpointSlice]{{Key: key, Old: slice, New: slice}}}
		c.plan(&d)
	}
}

// BenchmarkWeights is what a view asks for each planned slice.
func BenchmarkWeights(b *testing.B) {
	c, s, _ := crowd(b, 10)
	slice, _ := s.Slices.Get(resource.Key{Namespace: "shop", Name: "s00007-1"})
	for b.Loop() {
		if c.Weights("a", slice) == nil {
			b.Fatal("no plan")
		}
	}
}

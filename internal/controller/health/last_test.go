package health

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// sliceOf a Service with endpoints "NAME" of Dataplanes, "!NAME" of those that are not
// ready, and "-" of something else.
func sliceOf(service string, family discoveryv1.AddressType, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: family}
	s.Namespace, s.Name = "shop", service+"-"+strings.ToLower(string(family))
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for _, name := range endpoints {
		name, down := strings.CutPrefix(name, "!")
		e := discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(!down)}}
		if name != "-" {
			e.TargetRef = &corev1.ObjectReference{Kind: "Dataplane", Namespace: "shop", Name: name}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func TestLastEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		service := func(name string) *corev1.Service {
			return &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
				Spec:       corev1.ServiceSpec{Selector: map[string]string{name: "yes"}},
			}
		}
		workload := func(name string, services ...string) {
			dp := newDataplane(name, "n1", start)
			dp.Labels = map[string]string{}
			for _, s := range services {
				dp.Labels[s] = "yes"
			}
			client.Seed(dp)
		}
		workload("only", "alone", "shared")
		workload("second", "shared", "both", "other")
		workload("third", "both", "dual")
		workload("down", "broken")
		workload("fourth", "dual")
		for _, name := range []string{"alone", "shared", "both", "other", "broken", "dual"} {
			client.Seed(service(name))
		}
		client.Seed(
			sliceOf("alone", discoveryv1.AddressTypeIPv4, "only"),
			sliceOf("shared", discoveryv1.AddressTypeIPv4, "only", "second", "living"),
			sliceOf("both", discoveryv1.AddressTypeIPv4, "second", "third", "!living"),
			sliceOf("other", discoveryv1.AddressTypeIPv4, "second", "-"),
			sliceOf("broken", discoveryv1.AddressTypeIPv4, "!down"),
			sliceOf("dual", discoveryv1.AddressTypeIPv4, "fourth", "living"),
			sliceOf("dual", discoveryv1.AddressTypeIPv6, "fourth"),
		)
		world := catalog.New(catalog.Config{Client: client, Descriptors: kind.All(), Epoch: "e"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- world.Run(ctx) }()
		if err := world.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
		check := func(dead string, want string) {
			t.Helper()
			var keys []resource.Key
			for _, name := range strings.Fields(dead) {
				keys = append(keys, resource.Key{Namespace: "shop", Name: name})
			}
			got := LastEndpoints(world.Snapshot(), keys)
			var lines []string
			for _, key := range slices.SortedFunc(maps.Keys(got), func(a, b resource.Key) int { return strings.Compare(a.Name, b.Name) }) {
				lines = append(lines, key.Name+"="+strings.TrimPrefix(got[key], "shop/"))
			}
			if text := strings.Join(lines, " "); text != want {
				t.Errorf("of %s last are %q, want %q", dead, text, want)
			}
		}
		check("only second third down gone", "only=alone second=both third=both")
		check("second", "")
		check("second third", "second=both third=both")
		check("down", "")
		check("fourth", "fourth=dual")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

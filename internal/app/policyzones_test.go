package app

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
)

// trafficKinds are policies of traffic, and routeKinds the kinds of the Gateway API.
func trafficKinds() []*resource.Descriptor {
	return []*resource.Descriptor{kind.TrafficPermission, kind.BackendPolicy, kind.WorkloadPolicy, kind.ProxyPatch}
}

func routeKinds() []*resource.Descriptor {
	return []*resource.Descriptor{kind.HTTPRoute, kind.GRPCRoute, kind.TCPRoute, kind.ReferenceGrant}
}

// example of a kind, in namespace shop.
func example(t *testing.T, d *resource.Descriptor, name string) resource.Object {
	t.Helper()
	obj := d.New()
	if err := yaml.Unmarshal([]byte(kindtest.Valid()[d.GVK.Kind]), obj); err != nil {
		t.Fatal(err)
	}
	obj.SetName(name)
	return obj
}

// TestPoliciesReachZones: policies of traffic and routes are written at global and applied in every
// zone, whose own ones stay there.
func TestPoliciesReachZones(t *testing.T) {
	s := startSites(t)
	for _, p := range []*plane{s.global, s.a, s.b} {
		p.create(kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	}
	for _, d := range append(trafficKinds(), routeKinds()...) {
		s.global.create(d, example(t, d, "common"))
	}
	for _, p := range []*plane{s.a, s.b} {
		for _, d := range append(trafficKinds(), routeKinds()...) {
			until(t, "the "+d.GVK.Kind+" of global in zone "+p.cfg.Zone, func() bool { return p.has(d, "common") })
			s.copied(p, d)
		}
	}
	for _, d := range trafficKinds() {
		s.ownPolicy(d)
	}
	for _, d := range routeKinds() {
		s.a.create(d, example(t, d, "own")) // no label is needed
	}
	for _, d := range append(trafficKinds(), routeKinds()...) {
		if err := s.global.client.Delete(t.Context(), d, resource.Key{Namespace: "shop", Name: "common"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		until(t, "the "+d.GVK.Kind+" is gone", func() bool { return !s.a.has(d, "common") && !s.b.has(d, "common") })
		if !s.a.has(d, "own") || s.global.has(d, "own") || s.b.has(d, "own") {
			t.Errorf("the %s of zone a is not there alone", d.GVK.Kind)
		}
	}
}

// copied checks a copy: it has the time of its original, and global alone changes it.
func (s *sites) copied(p *plane, d *resource.Descriptor) {
	s.t.Helper()
	obj := p.displayed(d)["common"]
	if d != kind.ReferenceGrant {
		want := s.global.displayed(d)["common"].GetCreationTimestamp().UTC().Format(time.RFC3339)
		if got := obj.GetAnnotations()[meshv1alpha1.AnnotationCreated]; got != want {
			s.t.Errorf("a %s was created at %q, want %q", d.GVK.Kind, got, want)
		}
	}
	err := p.client.Delete(s.t.Context(), d, resource.KeyOf(obj), resource.Preconditions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "copy of an object of global") {
		s.t.Errorf("deletion of the copy of a %s: %v", d.GVK.Kind, err)
	}
}

// ownPolicy of zone a needs a label. What zones observe of the one of global is shown there.
func (s *sites) ownPolicy(d *resource.Descriptor) {
	s.t.Helper()
	own := example(s.t, d, "own")
	if _, err := s.a.client.Create(s.t.Context(), d, own); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "label it") {
		s.t.Errorf("a %s without the label: %v", d.GVK.Kind, err)
	}
	own.SetLabels(map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone})
	s.a.create(d, own)
	until(s.t, "what zones observe of the "+d.GVK.Kind, func() bool {
		zones := policystatus.StatusOf(s.global.displayed(d)["common"]).Zones
		return len(zones) == 2 && zones[0].Zone == "a" && len(zones[0].Conditions) > 0 && len(zones[1].Conditions) > 0
	})
}

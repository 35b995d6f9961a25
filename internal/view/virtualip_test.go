package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// TestVirtualIPsAreInViews: a name is in the views while its service is there.
func TestVirtualIPsAreInViews(t *testing.T) {
	object := func(edit func(*meshv1alpha1.VirtualIPSpec)) *meshv1alpha1.VirtualIP {
		v := &meshv1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: meshv1alpha1.VirtualIPSpec{
			Mesh: "default", Hostname: "web_ns_svc_80", Addresses: []string{"240.0.0.1", "fd00:240::1"}, Namespace: "ns", Service: "web", Port: 80,
		}}
		if edit != nil {
			edit(&v.Spec)
		}
		return v
	}
	unused := object(func(s *meshv1alpha1.VirtualIPSpec) { s.UnusedSince = &metav1.Time{} })
	moved := object(func(s *meshv1alpha1.VirtualIPSpec) { s.Mesh = "blue" })
	b := NewBuilder(BuilderConfig{})
	sequence := uint64(0)
	next := func(old, now *meshv1alpha1.VirtualIP) *catalog.Delta {
		sequence++
		d := viewtest.Delta(sequence)
		d.VirtualIPs = []catalog.Change[*meshv1alpha1.VirtualIP]{{Key: catalog.Key{Name: "v"}, Old: old, New: now}}
		return d
	}
	replace(t, b, next(nil, object(nil)))
	scope, err := b.Scope("")
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	if err := s.Step(delta.Request{Type: wire.VirtualIPType}); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "default/web_ns_svc_80.mesh")
	apply(t, b, next(object(nil), unused))
	expect(t, s, "-default/web_ns_svc_80.mesh")
	apply(t, b, next(unused, moved))
	expect(t, s, "blue/web_ns_svc_80.mesh")
	apply(t, b, next(moved, nil))
	expect(t, s, "-blue/web_ns_svc_80.mesh")
}

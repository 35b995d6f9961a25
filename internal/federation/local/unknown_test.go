package local

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// copyWith is a put of a Mesh as a zone gets it.
func copyWith(version, payload string) federation.Put {
	return federation.Put{
		Copy: federation.Copy{Resource: "/m", Version: version, Key: federation.Key{Name: "m"}},
		Object: &federation.Object{
			Labels: map[string]string{federation.LabelOrigin: federation.OriginGlobal},
			Annotations: map[string]string{
				federation.AnnotationSyncName: "/m", federation.AnnotationSyncVersion: version, AnnotationUnknown: "of the peer", "note": "x",
			},
			Payload: []byte(payload),
		},
	}
}

// TestUnknownFieldsAreKept: what a newer program wrote travels on from a program that does
// not know it.
func TestUnknownFieldsAreKept(t *testing.T) {
	s := &site{t: t, name: "east", side: federation.AtZone, kinds: newDescriptors()}
	s.client = resourcetest.New(s.kinds.mesh, s.kinds.config)
	in := s.inlet("east")
	k := in.kinds["mesh.proxima.dev/Mesh"]
	const newer = `{"spec":{"mtls":{"backends":[{"name":"a","hue":7},{"name":"b"}],"enabledBackend":"a"},"shape":{"round":true}},"more":[1]}`
	if err := in.put(t.Context(), k, copyWith("v1", newer)); err != nil {
		t.Fatal(err)
	}
	stored, err := s.client.Get(t.Context(), s.kinds.mesh, resource.Key{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	u, ok := unknownOf(stored)
	if got := fmt.Sprint(u.Fields); !ok || got != "[more spec.mtls.backends[0].hue spec.shape]" || k.learnt(stored) {
		t.Errorf("unknown: %s, learnt %t", got, k.learnt(stored))
	}
	stored.(*meshv1alpha1.Mesh).Spec.MTLS.EnabledBackend = "b" // what is known counts
	sent, err := k.encode(stored)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"more":[1],"spec":{"mtls":{"backends":[{"hue":7,"name":"a"},{"name":"b"}],"enabledBackend":"b"},"shape":{"round":true}}}`
	if canonical(t, sent.Payload) != canonical(t, []byte(want)) {
		t.Errorf("sent on: %s\nwant %s", sent.Payload, want)
	}
	if len(sent.Annotations) != 1 || sent.Annotations["note"] != "x" {
		t.Errorf("annotations sent on: %v", sent.Annotations)
	}
	// On an object of this control plane the annotation means nothing.
	stored.SetLabels(nil)
	if sent, err = k.encode(stored); err != nil || strings.Contains(string(sent.Payload), "shape") {
		t.Errorf("sent of an own object: %s, %v", sent.Payload, err)
	}

	if err := in.put(t.Context(), k, copyWith("v1", `{"spec":{}}`)); err != nil {
		t.Fatal(err)
	}
	if stored, err = s.client.Get(t.Context(), s.kinds.mesh, resource.Key{Name: "m"}); err != nil || stored.GetAnnotations()[AnnotationUnknown] != "" {
		t.Errorf("nothing is unknown, and kept is %v, %v", stored.GetAnnotations(), err)
	}
}

// canonical JSON, without the status and empty fields that a Mesh has.
func canonical(t *testing.T, b []byte) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	delete(v, "status")
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestUnknownFieldsAreBounded: what is too large to be kept twice is fetched again by every
// stream, until it is known.
func TestUnknownFieldsAreBounded(t *testing.T) {
	s := &site{t: t, name: "east", side: federation.AtZone, kinds: newDescriptors()}
	s.client = resourcetest.New(s.kinds.mesh, s.kinds.config)
	in := s.inlet("east")
	k := in.kinds["mesh.proxima.dev/Mesh"]
	large := copyWith("v1", fmt.Sprintf(`{"spec":{%q:%q}}`, strings.Repeat("f", 1000), strings.Repeat("x", maxUnknown)))
	if err := in.put(t.Context(), k, large); err != nil {
		t.Fatal(err)
	}
	stored, err := s.client.Get(t.Context(), s.kinds.mesh, resource.Key{Name: "m"})
	if err != nil || len(stored.GetAnnotations()[AnnotationUnknown]) > 1000 || !k.learnt(stored) {
		t.Errorf("%d bytes are kept, %v", len(stored.GetAnnotations()[AnnotationUnknown]), err)
	}
	again := copyWith("v2", `{}`)
	again.Before = "v1"
	if err := in.put(t.Context(), k, again); err != nil {
		t.Error(err)
	}
}

// TestUnknownFieldsAreLearnt: after an upgrade a zone has the fields that the program before
// did not know, though global has not changed the object since.
func TestUnknownFieldsAreLearnt(t *testing.T) {
	for protocol := 1; protocol <= 2; protocol++ {
		t.Run(fmt.Sprintf("protocol %d", protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testLearnt(t, protocol) })
		})
	}
}

func testLearnt(t *testing.T, protocol int) {
	w, cut := newWorld(t, protocol)
	m := newMesh("shop")
	m.Spec.Routing = &meshv1alpha1.MeshRouting{Export: meshv1alpha1.ExportAll}
	w.global.create(w.global.kinds.mesh, m)
	w.global.create(w.global.kinds.mesh, newMesh("other"))
	time.Sleep(time.Second)
	cut()
	// As if the program before had no spec.routing.
	get := func() *meshv1alpha1.Mesh {
		obj, err := w.east.client.Get(context.Background(), kind.Mesh, resource.Key{Name: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*meshv1alpha1.Mesh)
	}
	before := get()
	if before.Spec.Routing == nil {
		t.Fatal("the copy has no routing")
	}
	before.Spec.Routing = nil
	before.Annotations[AnnotationUnknown] = `{"fields":["spec.routing"],"payload":{"spec":{"routing":{"export":"All"}}}}`
	if _, err := w.east.client.Update(context.Background(), kind.Mesh, before); err != nil {
		t.Fatal(err)
	}
	again := w.east.inlet("east")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	outlet, err := NewOutlet(OutletConfig{Client: w.global.client, Kinds: w.global.kinds.kinds(t), Side: federation.AtGlobal, StoreEpoch: "epoch-global"})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = outlet.Run(ctx) })
	running.Go(func() { link(ctx, t, outlet, "east", again, protocol) })
	time.Sleep(time.Minute)
	cancel()
	running.Wait()
	if after := get(); after.Spec.Routing == nil || after.Spec.Routing.Export != meshv1alpha1.ExportAll || after.Annotations[AnnotationUnknown] != "" {
		t.Errorf("after the upgrade: %+v %v", after.Spec, after.Annotations)
	}
}

func FuzzUnknown(f *testing.F) {
	f.Add(`{"fields":["spec.x"],"payload":{"spec":{"x":1}}}`, `{"spec":{"x":[{"y":1}]}}`)
	k := newDescriptors().kinds(f)[0]
	f.Fuzz(func(t *testing.T, note, payload string) {
		m := newMesh("m")
		m.Labels = map[string]string{federation.LabelOrigin: federation.OriginGlobal}
		m.Annotations = map[string]string{federation.AnnotationSyncName: "/m", AnnotationUnknown: note}
		k.learnt(m)
		if o, err := k.encode(m); err == nil && !json.Valid(o.Payload) {
			t.Errorf("%q became %q", note, o.Payload)
		}
		obj, err := k.decode(copyWith("v1", payload))
		if err == nil && len(obj.GetAnnotations()[AnnotationUnknown]) > maxUnknown {
			t.Error("too much is kept")
		}
	})
}

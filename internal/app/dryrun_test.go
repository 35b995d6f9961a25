package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// dryRun creates an object in a dry run, and returns the HTTP status, the body and the
// warnings.
func (p *plane) dryRun(k *resource.Descriptor, obj resource.Object) (code int, body string, warnings string) {
	p.t.Helper()
	obj = obj.DeepCopyObject().(resource.Object)
	obj.GetObjectKind().SetGroupVersionKind(k.GVK)
	in, err := json.Marshal(obj)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.send(http.MethodPost, p.pathOf(k, obj.GetNamespace())+"?dryRun=All", in)
}

// pathOf the objects of a kind.
func (p *plane) pathOf(k *resource.Descriptor, namespace string) string {
	path := "/apis/" + k.GVK.GroupVersion().String() + "/"
	if k.Namespaced {
		path += "namespaces/" + namespace + "/"
	}
	return path + k.Resource
}

// send a request as the admin, and return the HTTP status, the body and the warnings.
func (p *plane) send(method, path string, in []byte) (code int, body string, warnings string) {
	p.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.DataDir, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, cfg.Host+path, bytes.NewReader(in))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(out), strings.Join(resp.Header.Values("Warning"), "\n")
}

// testDryDeletion: a dry run of a deletion at global tells what uses the object in zones, and
// deletes nothing.
func testDryDeletion(s *sites) {
	t := s.t
	s.global.create(kind.ZoneCosts, &meshv1alpha1.ZoneCosts{ObjectMeta: metav1.ObjectMeta{Name: "cheap"}})
	s.global.create(kind.TopologyHeuristic, &meshv1alpha1.TopologyHeuristic{
		ObjectMeta: metav1.ObjectMeta{Name: "home"}, Spec: meshv1alpha1.TopologyHeuristicSpec{Zones: "[endpoint.zone]"},
	})
	until(t, "the policies are in zone a", func() bool { return s.a.has(kind.TopologyHeuristic, "home") && s.a.has(kind.ZoneCosts, "cheap") })
	for name, annotations := range map[string]map[string]string{
		"planned": {corev1.AnnotationTopologyMode: topology.Adaptive, topology.AnnotationCosts: "cheap"},
		"ruled":   {corev1.AnnotationTopologyMode: meshv1alpha1.TopologyHeuristicPrefix + "home"},
	} {
		s.a.create(kind.Service, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	for _, test := range []struct {
		kind       *resource.Descriptor
		name, want string
	}{
		{kind.TopologyHeuristic, "home", "zone a: Services that have chosen it: 1, first default/ruled: their hints and weights would stay as they are"},
		{kind.ZoneCosts, "cheap", "zone a: Services planned with it: 1, first default/planned: the costs named default would hold"},
	} {
		until(t, "zone a tells who uses "+test.name, func() bool {
			code, body, got := s.global.send(http.MethodDelete, s.global.pathOf(test.kind, "")+"/"+test.name+"?dryRun=All", nil)
			if code != http.StatusOK {
				t.Fatalf("dry deletion of %s: %d %s", test.name, code, body)
			}
			if strings.Contains(got, "zone b") {
				t.Fatalf("dry deletion of %s: zone b does not use it: %q", test.name, got)
			}
			return strings.Contains(got, test.want)
		})
		if !s.global.has(test.kind, test.name) || !s.a.has(test.kind, test.name) {
			t.Errorf("%s was deleted by a dry run", test.name)
		}
	}
}

// TestDryRunAsksZones: what zones would make of an object is said in a dry run at global.
func TestDryRunAsksZones(t *testing.T) {
	s := startSites(t)
	expect := func(what string, k *resource.Descriptor, obj resource.Object, code int, body string, warnings ...string) {
		t.Helper()
		gotCode, gotBody, got := s.global.dryRun(k, obj)
		if gotCode != code || !strings.Contains(gotBody, body) {
			t.Errorf("%s: %d %s, want %d with %q", what, gotCode, gotBody, code, body)
		}
		for _, want := range warnings {
			if !strings.Contains(got, want) {
				t.Errorf("%s: warnings %q, want %q", what, got, want)
			}
		}
		if len(warnings) == 0 && strings.Contains(got, "zone") {
			t.Errorf("%s: warnings %q", what, got)
		}
	}
	expect("a Mesh", kind.Mesh, namedMesh("shop"), http.StatusCreated, `"shop"`)
	own := namedMesh("own")
	own.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	s.a.create(kind.Mesh, own)
	expect("a name that is taken in zone a", kind.Mesh, namedMesh("own"), http.StatusCreated, "own",
		"zone a: it would replace own, a policy of the zone itself")
	s.global.create(kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	s.b.create(kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	es := &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"},
		Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"pay.example"}, Ports: []meshv1alpha1.ExternalServicePort{{Port: 443}},
		},
	}
	expect("a namespace that zone a lacks", kind.ExternalService, es, http.StatusCreated, "pay",
		`zone a: it would wait: namespaces \"shop\" not found`)
	expect("what global refuses itself", kind.Mesh, namedMesh("No_Name"), http.StatusUnprocessableEntity, "No_Name")
	expect("what does not go to zones", kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, http.StatusCreated, "c")

	testDryDeletion(s)

	// A zone that refuses, as one of another version may, and one that hangs.
	checker := *s.a.cp.zone.checker
	try := func(f func(context.Context, *resource.Descriptor, resource.Object) error) func() {
		before := s.a.cp.zone.checker
		s.a.cp.zone.checker = &local.Checker{Zone: "a", Client: checker.Client, Kinds: checker.Kinds, Try: f}
		return func() { s.a.cp.zone.checker = before }
	}
	restore := try(func(context.Context, *resource.Descriptor, resource.Object) error {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Mesh"}, "shop", nil)
	})
	expect("a zone that refuses", kind.Mesh, namedMesh("shop"), http.StatusUnprocessableEntity, "zone a would refuse it: Mesh")
	restore()
	restore = try(func(ctx context.Context, _ *resource.Descriptor, _ resource.Object) error {
		<-ctx.Done()
		return ctx.Err()
	})
	begin := time.Now()
	expect("a zone that hangs", kind.Mesh, namedMesh("shop"), http.StatusCreated, "shop", "zones that were not asked: a (no answer within 2s)")
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("waited for %s", took)
	}
	restore()
	s.b.stop()
	until(t, "zone b is not asked", func() bool {
		_, _, got := s.global.dryRun(kind.Mesh, namedMesh("shop"))
		return strings.Contains(got, "zones that were not asked: b (not connected)")
	})
	for name, p := range map[string]*plane{"global": s.global, "zone a": s.a} {
		if p.has(kind.Mesh, "shop") {
			t.Errorf("a dry run was stored at %s", name)
		}
	}
	if s.global.has(kind.ExternalService, "pay") {
		t.Error("a dry run was stored at global")
	}
}

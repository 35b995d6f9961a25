package app

import (
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
)

// dryRun creates an object in a dry run, and returns the HTTP status, the body and the
// warnings.
func (p *plane) dryRun(k *resource.Descriptor, obj resource.Object) (code int, body string, warnings string) {
	p.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.DataDir, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	obj = obj.DeepCopyObject().(resource.Object)
	obj.GetObjectKind().SetGroupVersionKind(k.GVK)
	in, err := json.Marshal(obj)
	if err != nil {
		p.t.Fatal(err)
	}
	path := "/apis/" + k.GVK.GroupVersion().String() + "/"
	if k.Namespaced {
		path += "namespaces/" + obj.GetNamespace() + "/"
	}
	resp, err := client.Post(cfg.Host+path+k.Resource+"?dryRun=All", "application/json", strings.NewReader(string(in)))
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

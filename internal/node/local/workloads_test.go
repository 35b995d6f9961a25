package local

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func dataplane(name, node string) *v1alpha1.Dataplane {
	return &v1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       v1alpha1.DataplaneSpec{NodeName: node, Addresses: []string{"192.0.2.1"}},
	}
}

// overSocket is a client of the agent of node-a, whose control plane is a fake.
func overSocket(t *testing.T) (*kubeclient.Client, *resourcetest.Client) {
	t.Helper()
	plane := resourcetest.New()
	dir := t.TempDir()
	agent(t, dir, Workloads(WorkloadsConfig{Client: plane, Node: "node-a", MachineID: "machine-1"}))
	transport := (&Client{DataDir: dir}).Transport()
	t.Cleanup(transport.CloseIdleConnections)
	client, err := kubeclient.New(&rest.Config{Host: "http://agent", Transport: transport, QPS: -1}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	return client, plane
}

// A workload of the agent's node lives its whole life through the socket.
func TestWorkloadOverTheSocket(t *testing.T) {
	client, plane := overSocket(t)
	ctx := t.Context()
	given := dataplane("web-1", "node-a")
	given.Annotations = map[string]string{v1alpha1.AnnotationMachineID: "forged"}
	out, err := client.Create(ctx, kind.Dataplane, given)
	if err != nil {
		t.Fatal(err)
	}
	dp := out.(*v1alpha1.Dataplane)
	if got := dp.Annotations[v1alpha1.AnnotationMachineID]; got != "machine-1" {
		t.Errorf("the machine is %q, want the agent's", got)
	}
	if _, err := client.Create(ctx, kind.Dataplane, given); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second create: %v", err)
	}
	dp.Labels["app"] = "api"
	delete(dp.Annotations, v1alpha1.AnnotationMachineID)
	if out, err = client.Update(ctx, kind.Dataplane, dp); err != nil {
		t.Fatal(err)
	}
	dp = out.(*v1alpha1.Dataplane)
	dp.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Probe"}}
	if _, err = client.UpdateStatus(ctx, kind.Dataplane, dp); err != nil {
		t.Fatal(err)
	}
	got, err := client.Get(ctx, kind.Dataplane, resource.KeyOf(dp))
	if err != nil {
		t.Fatal(err)
	}
	dp = got.(*v1alpha1.Dataplane)
	if dp.Labels["app"] != "api" || len(dp.Status.Conditions) != 1 || dp.Annotations[v1alpha1.AnnotationMachineID] != "machine-1" {
		t.Errorf("got %+v", dp)
	}
	if err := client.Delete(ctx, kind.Dataplane, resource.KeyOf(dp), resource.Preconditions{UID: "other", Now: true}); !apierrors.IsConflict(err) {
		t.Errorf("delete of another UID: %v", err)
	}
	if err := client.Delete(ctx, kind.Dataplane, resource.KeyOf(dp), resource.Preconditions{UID: dp.UID, Now: true}); err != nil {
		t.Error(err)
	}
	if _, err := plane.Get(ctx, kind.Dataplane, resource.KeyOf(dp)); !apierrors.IsNotFound(err) {
		t.Errorf("after the delete: %v", err)
	}
}

// Nothing of another node can be read or changed, and a workload cannot be given
// to another node.
func TestWorkloadsOfOtherNodesAreForbidden(t *testing.T) {
	client, plane := overSocket(t)
	ctx := t.Context()
	theirs := dataplane("theirs", "node-b")
	plane.Seed(theirs, dataplane("ours", "node-a"))
	stolen := dataplane("theirs", "node-a")
	given := dataplane("ours", "node-b")
	for name, try := range map[string]func() error{
		"create for another node":  func() error { _, err := client.Create(ctx, kind.Dataplane, dataplane("new", "node-b")); return err },
		"create for no node":       func() error { _, err := client.Create(ctx, kind.Dataplane, dataplane("new", "")); return err },
		"get":                      func() error { _, err := client.Get(ctx, kind.Dataplane, resource.KeyOf(theirs)); return err },
		"update":                   func() error { _, err := client.Update(ctx, kind.Dataplane, theirs); return err },
		"take from another node":   func() error { _, err := client.Update(ctx, kind.Dataplane, stolen); return err },
		"give to another node":     func() error { _, err := client.Update(ctx, kind.Dataplane, given); return err },
		"status of another node's": func() error { _, err := client.UpdateStatus(ctx, kind.Dataplane, stolen); return err },
		"delete": func() error {
			return client.Delete(ctx, kind.Dataplane, resource.KeyOf(theirs), resource.Preconditions{})
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "node-a") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingElseIsServed(t *testing.T) {
	client, plane := overSocket(t)
	ctx := t.Context()
	plane.Seed(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	if list, _, err := client.List(ctx, kind.Service, resource.ListOptions{Namespace: "shop"}); err != nil || len(list) != 1 {
		t.Errorf("services for the environment: %v, %v", list, err)
	}
	if _, err := client.Get(ctx, kind.Service, resource.Key{Namespace: "shop", Name: "web"}); err != nil {
		t.Error(err)
	}
	for name, try := range map[string]func() error{
		"list dataplanes": func() error {
			_, _, err := client.List(ctx, kind.Dataplane, resource.ListOptions{Namespace: "shop"})
			return err
		},
		"all services": func() error { _, _, err := client.List(ctx, kind.Service, resource.ListOptions{}); return err },
		"secrets": func() error {
			_, _, err := client.List(ctx, kind.Secret, resource.ListOptions{Namespace: "shop"})
			return err
		},
		"write a service": func() error {
			_, err := client.Create(ctx, kind.Service, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api"}})
			return err
		},
		"node": func() error { _, err := client.Get(ctx, kind.Node, resource.Key{Name: "node-a"}); return err },
	} {
		if err := try(); err == nil {
			t.Errorf("%s: it is served", name)
		}
	}
}

// A control plane that is away is a 503, which `run` takes for a reason to try
// again; its own refusals are passed on.
func TestErrorsOfTheControlPlane(t *testing.T) {
	client, plane := overSocket(t)
	plane.Intercept(func(resourcetest.Call) error { return errors.New("connection refused") })
	if _, err := client.Create(t.Context(), kind.Dataplane, dataplane("web-1", "node-a")); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("away: %v", err)
	}
	plane.Intercept(func(resourcetest.Call) error {
		return apierrors.NewForbidden(dataplaneResource, "web-1", errors.New("namespace shop is not in the token's"))
	})
	if _, err := client.Create(t.Context(), kind.Dataplane, dataplane("web-1", "node-a")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "not in the token's") {
		t.Errorf("a refusal: %v", err)
	}
}

func TestBodiesThatAreRefused(t *testing.T) {
	h := Workloads(WorkloadsConfig{Client: resourcetest.New(), Node: "node-a"})
	const path = "/apis/mesh.proxima.dev/v1alpha1/namespaces/shop/dataplanes"
	for name, tc := range map[string]struct {
		method, path, body string
		code               int
	}{
		"no JSON":           {"POST", path, "apiVersion: v1", 400},
		"empty":             {"POST", path, "", 400},
		"too large":         {"POST", path, `{"metadata":{"name":"` + strings.Repeat("x", maxBody) + `"}}`, 413},
		"another namespace": {"POST", path, `{"metadata":{"name":"a","namespace":"b"},"spec":{"nodeName":"node-a"}}`, 400},
		"another name":      {"PUT", path + "/b", `{"metadata":{"name":"a"},"spec":{"nodeName":"node-a"}}`, 400},
		"another verb":      {"PATCH", path + "/a", `{}`, 404},
		"another kind":      {"POST", "/apis/mesh.proxima.dev/v1alpha1/meshes", `{}`, 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, bytes.NewBufferString(tc.body)))
		if w.Code != tc.code || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tc.code)
		}
	}
}

// FuzzWorkloads: whatever a local program sends, nothing is written for another
// node.
func FuzzWorkloads(f *testing.F) {
	f.Add("POST", "", []byte(`{"metadata":{"name":"a"},"spec":{"nodeName":"node-a"}}`))
	f.Add("PUT", "/a/status", []byte(`{"metadata":{"name":"a"},"spec":{"nodeName":"node-b"}}`))
	f.Add("DELETE", "/a", []byte(`{"preconditions":{"uid":"1"}}`))
	f.Fuzz(func(t *testing.T, method, rest string, body []byte) {
		plane := resourcetest.New()
		theirs := dataplane("a", "node-b")
		plane.Seed(theirs)
		h := Workloads(WorkloadsConfig{Client: plane, Node: "node-a"})
		req, err := http.NewRequest(method, "http://agent/apis/mesh.proxima.dev/v1alpha1/namespaces/shop/dataplanes"+rest, bytes.NewReader(body))
		if err != nil {
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), req)
		got, err := plane.Get(t.Context(), kind.Dataplane, resource.KeyOf(theirs))
		if err != nil || got.(*v1alpha1.Dataplane).Spec.NodeName != "node-b" {
			t.Fatalf("another node's workload is %v, %v", got, err)
		}
		list, _, err := plane.List(t.Context(), kind.Dataplane, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, obj := range list {
			if dp := obj.(*v1alpha1.Dataplane); dp.Name != "a" && dp.Spec.NodeName != "node-a" {
				t.Fatalf("written for another node: %v", dp)
			}
		}
	})
}

package kubeclient_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// recorder answers each request with an empty list, and notes its query.
type recorder struct{ queries []url.Values }

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.queries = append(r.queries, req.URL.Query())
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(strings.NewReader(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)),
		Request:    req,
	}, nil
}

// Lists and watches select by the same fields and labels.
func TestSelection(t *testing.T) {
	wire := &recorder{}
	client, err := kubeclient.New(&rest.Config{Host: "http://api.test", Transport: wire, QPS: -1}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	selection := resource.ListOptions{
		Labels: labels.SelectorFromSet(labels.Set{"app": "web"}),
		Fields: fields.OneTermEqualSelector("metadata.name", "a"),
	}
	if _, version, err := client.List(t.Context(), kind.ConfigMap, selection); err != nil || version != "7" {
		t.Fatalf("list: version %q, %v", version, err)
	}
	w, err := client.Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ListOptions: selection, ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if len(wire.queries) != 2 {
		t.Fatalf("%d requests, want 2", len(wire.queries))
	}
	for _, query := range wire.queries {
		if query.Get("fieldSelector") != "metadata.name=a" || query.Get("labelSelector") != "app=web" {
			t.Errorf("query %v", query)
		}
	}
}

// requests notes methods and whether they store nothing.
type requests struct {
	recorder
	log []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.log = append(r.log, req.Method+" "+req.URL.Path+" "+req.URL.Query().Get("dryRun"))
	return r.recorder.RoundTrip(req)
}

// TestTry: what is tried is never stored.
func TestTry(t *testing.T) {
	wire := &requests{}
	client, err := kubeclient.New(&rest.Config{Host: "http://api.test", Transport: wire, QPS: -1}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	mesh := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if err := client.Try(t.Context(), kind.Mesh, mesh); err != nil {
		t.Fatal(err)
	}
	mesh.ResourceVersion = "7"
	if err := client.Try(t.Context(), kind.Mesh, mesh); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/mesh.proxima.dev/v1alpha1/meshes"
	if want := []string{"POST " + path + " All", "PUT " + path + "/shop All"}; !slices.Equal(wire.log, want) {
		t.Errorf("requests %q, want %q", wire.log, want)
	}
	if err := client.Try(t.Context(), kind.Node, &metav1.PartialObjectMetadata{}); err == nil {
		t.Error("a Mesh was tried as a Node")
	}
}

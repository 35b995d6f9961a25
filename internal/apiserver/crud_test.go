package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

var contentTypes = map[string]string{
	"json":     runtime.ContentTypeJSON,
	"yaml":     runtime.ContentTypeYAML,
	"protobuf": runtime.ContentTypeProtobuf,
}

func TestEveryKindInEveryEncoding(t *testing.T) {
	ip := 0
	for _, k := range kind.All() {
		for encoding, contentType := range contentTypes {
			if encoding == "protobuf" && !isProtobuf(k) {
				continue
			}
			ip++
			name := nameFor(k, fmt.Sprintf("crud-%s%d-%s", k.Singular, ip, encoding), fmt.Sprintf("10.77.0.%d", ip))
			t.Run(k.GVK.Group+"/"+k.GVK.Kind+"/"+encoding, func(t *testing.T) {
				c := crud{client: shared.rest(t, k, contentType), kind: k, name: name, yaml: encoding == "yaml"}
				c.run(t)
			})
		}
	}
}

// crud takes one object through its life.
type crud struct {
	client rest.Interface
	kind   *resource.Descriptor
	name   string
	yaml   bool
}

func (c crud) request(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped(metav1.NamespaceDefault, c.kind.Namespaced).Resource(c.kind.Resource)
}

func (c crud) get(t *testing.T) resource.Object {
	t.Helper()
	out := c.kind.New()
	if err := c.request(c.client.Get()).Name(c.name).Do(t.Context()).Into(out); err != nil {
		t.Fatalf("get: %v", err)
	}
	return out
}

func (c crud) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	created := c.kind.New()
	if err := c.request(c.client.Post()).Body(object(t, c.kind, c.name)).Do(ctx).Into(created); err != nil {
		t.Fatalf("create: %v", err)
	}
	if created.GetUID() == "" || created.GetResourceVersion() == "" || created.GetCreationTimestamp().Time.IsZero() {
		t.Errorf("created without system fields: %+v", created)
	}
	err := c.request(c.client.Post()).Body(object(t, c.kind, c.name)).Do(ctx).Error()
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("create twice: %v", err)
	}
	// YAML cannot be streamed, in Kubernetes neither.
	var w watch.Interface
	if !c.yaml {
		w, err = c.request(c.client.Get()).Param("watch", "true").Param("resourceVersion", created.GetResourceVersion()).
			Param("fieldSelector", "metadata.name="+c.name).Watch(ctx)
		if err != nil {
			t.Fatalf("watch: %v", err)
		}
		defer w.Stop()
	}

	for parameter, selector := range map[string]string{"labelSelector": "test=" + c.name, "fieldSelector": "metadata.name=" + c.name} {
		list := c.kind.NewList()
		if err := c.request(c.client.Get()).Param(parameter, selector).Do(ctx).Into(list); err != nil {
			t.Fatalf("list: %v", err)
		}
		if n := meta.LenList(list); n != 1 {
			t.Errorf("list by %s: %d objects, want 1", selector, n)
		}
	}

	obj := c.get(t)
	obj.SetAnnotations(map[string]string{"step": "update"})
	updated := c.kind.New()
	if err := c.request(c.client.Put()).Name(c.name).Body(obj).Do(ctx).Into(updated); err != nil {
		t.Fatalf("update: %v", err)
	}
	err = c.request(c.client.Put()).Name(c.name).Body(obj).Do(ctx).Error()
	if !apierrors.IsConflict(err) {
		t.Errorf("update of an old version: %v", err)
	}
	patch := []byte(`{"metadata":{"annotations":{"step":"patch"}}}`)
	if err := c.request(c.client.Patch(types.MergePatchType)).Name(c.name).Body(patch).Do(ctx).Error(); err != nil {
		t.Fatalf("patch: %v", err)
	}
	if got := c.get(t).GetAnnotations()["step"]; got != "patch" {
		t.Errorf("after the patch: %q", got)
	}
	c.dryRun(t)
	c.delete(t, updated)
	if w != nil {
		c.watched(t, w)
	}
}

// dryRun must change nothing.
func (c crud) dryRun(t *testing.T) {
	before := c.get(t).GetResourceVersion()
	patch := []byte(`{"metadata":{"annotations":{"step":"dry"}}}`)
	out := c.kind.New()
	err := c.request(c.client.Patch(types.MergePatchType)).Name(c.name).Param("dryRun", "All").Body(patch).Do(t.Context()).Into(out)
	if err != nil {
		t.Fatalf("dry-run patch: %v", err)
	}
	if out.GetAnnotations()["step"] != "dry" {
		t.Errorf("a dry run shows no effect")
	}
	if err := c.request(c.client.Delete()).Name(c.name).Param("dryRun", "All").Do(t.Context()).Error(); err != nil {
		t.Fatalf("dry-run delete: %v", err)
	}
	if after := c.get(t).GetResourceVersion(); after != before {
		t.Errorf("a dry run wrote: %s, was %s", after, before)
	}
}

func (c crud) delete(t *testing.T, old resource.Object) {
	t.Helper()
	zero := int64(0)
	options := &metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions("other")}
	err := c.request(c.client.Delete()).Name(c.name).Body(options).Do(t.Context()).Error()
	if !apierrors.IsConflict(err) {
		t.Errorf("delete with another's UID: %v", err)
	}
	options.Preconditions = metav1.NewUIDPreconditions(string(old.GetUID()))
	if err := c.request(c.client.Delete()).Name(c.name).Body(options).Do(t.Context()).Error(); err != nil {
		t.Fatalf("delete: %v", err)
	}
	if c.kind.GVK.Kind == "Namespace" {
		return // goes when its controller has emptied it
	}
	err = c.request(c.client.Get()).Name(c.name).Do(t.Context()).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
}

// watched checks that the watch saw the life of the object in order.
func (c crud) watched(t *testing.T, w watch.Interface) {
	var steps []string
	for event := range w.ResultChan() {
		obj, ok := event.Object.(resource.Object)
		if !ok {
			t.Fatalf("watch: %v", event.Object)
		}
		if event.Type == watch.Modified && obj.GetDeletionTimestamp() != nil && c.kind.GVK.Kind != "Namespace" {
			continue // where a grace period is possible, a deletion has two steps
		}
		steps = append(steps, string(event.Type)+" "+obj.GetAnnotations()["step"])
		if event.Type == watch.Deleted || obj.GetDeletionTimestamp() != nil {
			break
		}
	}
	want := "MODIFIED update, MODIFIED patch, DELETED patch"
	if c.kind.GVK.Kind == "Namespace" {
		want = "MODIFIED update, MODIFIED patch, MODIFIED patch"
	}
	if got := strings.Join(steps, ", "); got != want {
		t.Errorf("watched %q, want %q", got, want)
	}
}

func TestDeleteCollection(t *testing.T) {
	k := descriptor(t, "ConfigMap")
	c := crud{client: shared.rest(t, k, runtime.ContentTypeJSON), kind: k}
	for i := range 3 {
		obj := object(t, k, fmt.Sprintf("collected-%d", i))
		obj.SetLabels(map[string]string{"collect": fmt.Sprint(i%2 == 0)})
		if err := c.request(c.client.Post()).Body(obj).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.request(c.client.Delete()).Param("labelSelector", "collect=true").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	list := k.NewList()
	if err := c.request(c.client.Get()).Param("labelSelector", "collect").Do(t.Context()).Into(list); err != nil {
		t.Fatal(err)
	}
	if n := meta.LenList(list); n != 1 {
		t.Errorf("%d objects left, want 1", n)
	}
	if code, _ := shared.do(t, "DELETE", "/api/v1/namespaces", "admin", nil, ""); code != http.StatusMethodNotAllowed {
		t.Errorf("namespaces can be deleted as a collection: %d", code)
	}
}

func TestFieldSelectors(t *testing.T) {
	for _, k := range kind.All() {
		labels := []string{"metadata.name"}
		if k.Namespaced {
			labels = append(labels, "metadata.namespace")
		}
		if k.Fields != nil {
			for label := range k.Fields(k.New()) {
				labels = append(labels, label)
			}
		}
		path := "/apis/" + k.GVK.GroupVersion().String()
		if k.GVK.Group == "" {
			path = "/api/v1"
		}
		for _, label := range labels {
			code, body := shared.do(t, "GET", path+"/"+k.Resource+"?fieldSelector="+label+"%3Dx", "admin", nil, "")
			if code != http.StatusOK {
				t.Errorf("%s by %s: %d: %s", k.GVK, label, code, body)
			}
		}
		code, body := shared.do(t, "GET", path+"/"+k.Resource+"?fieldSelector=no.such%3Dx", "admin", nil, "")
		want := "field label not supported: no.such"
		if k.Fields == nil && k.GVK.Kind != "Event" { // the two texts of Kubernetes
			want = `\"no.such\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"`
		}
		if code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s by an unknown field: %d: %s", k.GVK, code, body)
		}
	}
}

func TestTables(t *testing.T) {
	header := http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}}
	for _, k := range kind.All() {
		path := "/apis/" + k.GVK.GroupVersion().String() + "/" + k.Resource
		if k.GVK.Group == "" {
			path = "/api/v1/" + k.Resource
		}
		code, body := shared.do(t, "GET", path, "admin", header, "")
		var table metav1.Table
		if err := json.Unmarshal([]byte(body), &table); code != 200 || err != nil || table.Kind != "Table" {
			t.Errorf("%s: %d: %v: %s", k.GVK, code, err, body)
			continue
		}
		if len(table.ColumnDefinitions) < 2 || table.ColumnDefinitions[0].Name != "Name" && k.GVK.Kind != "Event" {
			t.Errorf("%s: columns %+v", k.GVK, table.ColumnDefinitions)
		}
		for _, row := range table.Rows {
			if len(row.Cells) != len(table.ColumnDefinitions) {
				t.Errorf("%s: %d cells under %d columns", k.GVK, len(row.Cells), len(table.ColumnDefinitions))
			}
		}
	}
}

func TestEventsAreTheSameRows(t *testing.T) {
	cs := shared.clientset(t, "")
	core := object(t, descriptor(t, "Event"), "same-rows")
	k := descriptor(t, "Event")
	c := crud{client: shared.rest(t, k, runtime.ContentTypeJSON), kind: k}
	if err := c.request(c.client.Post()).Body(core).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	e, err := cs.EventsV1().Events("default").Get(t.Context(), "same-rows", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Note != "m" || e.Regarding.Name != "p" || e.Reason != "Tested" {
		t.Errorf("as events.k8s.io: %+v", e)
	}
	// Each version is validated by its own rules: the newer one is stricter.
	short := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "short"}, Regarding: e.Regarding, Reason: "R", Type: "Normal"}
	if _, err := cs.EventsV1().Events("default").Create(t.Context(), short, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "eventTime") {
		t.Errorf("events.k8s.io without eventTime: %v", err)
	}
	list, err := cs.EventsV1().Events("default").List(t.Context(),
		metav1.ListOptions{FieldSelector: "regarding.name=p,metadata.name=same-rows"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("list by regarding.name: %v, %+v", err, list)
	}
	if err := cs.EventsV1().Events("default").Delete(t.Context(), "same-rows", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Events("default").Get(t.Context(), "same-rows", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted in one group, in the other: %v", err)
	}
}

package kubeclient_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// streaming answers watches with a stream of events, and lists with pages.
type streaming struct {
	events  string          // of a watch, as JSON, one after the other
	refusal *metav1.Status  // of a watch; nil: none
	pages   []string        // of lists
	asked   []*http.Request // so far
}

func (s *streaming) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, r)
	code, body := http.StatusOK, ""
	switch {
	case r.URL.Query().Get("watch") == "":
		body, s.pages = s.pages[0], s.pages[1:]
	case s.refusal != nil:
		data, _ := json.Marshal(s.refusal)
		code, body = int(s.refusal.Code), string(data)
	default:
		body = s.events
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

func event(typ, name, version, annotations string) string {
	return `{"type":"` + typ + `","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"ns","name":"` + name +
		`","resourceVersion":"` + version + `","annotations":{` + annotations + `},"managedFields":[{"manager":"x"}]}}}` + "\n"
}

const lastInitial = `"` + metav1.InitialEventsAnnotationKey + `":"true"`

func streamed(t *testing.T, s *streaming) *kubeclient.Streamed {
	t.Helper()
	client, err := kubeclient.New(&rest.Config{Host: "http://api.test", Transport: s, QPS: -1}, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	return kubeclient.NewStreamed(client, func(o resource.Object) { o.SetManagedFields(nil) })
}

func namesOf(t *testing.T, objects []resource.Object) (names []string) {
	for _, o := range objects {
		if len(o.GetManagedFields()) > 0 {
			t.Errorf("%s was not stripped", o.GetName())
		}
		names = append(names, o.GetName())
	}
	return names
}

// TestListByWatch: a list is the events up to the mark, changes among them included.
func TestListByWatch(t *testing.T) {
	s := &streaming{events: event("ADDED", "a", "1", "") + event("ADDED", "b", "2", "") + event("ADDED", "c", "3", "") + event("BOOKMARK", "", "3", "") +
		event("MODIFIED", "a", "4", `"new":"yes"`) + event("DELETED", "b", "5", "") + event("MODIFIED", "d", "6", "") +
		event("BOOKMARK", "", "6", lastInitial) + event("ADDED", "late", "7", "")}
	objects, version, err := streamed(t, s).List(t.Context(), kind.ConfigMap, resource.ListOptions{})
	if err != nil || version != "6" {
		t.Fatalf("version %q, %v", version, err)
	}
	if got := namesOf(t, objects); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("listed %v", got)
	}
	if objects[0].GetAnnotations()["new"] != "yes" {
		t.Error("a change before the mark is lost")
	}
	q := s.asked[0].URL.Query()
	if len(s.asked) != 1 || q.Get("sendInitialEvents") != "true" || q.Get("resourceVersionMatch") != "NotOlderThan" || q.Get("allowWatchBookmarks") != "true" {
		t.Errorf("asked %v", q)
	}
	if !strings.Contains(s.asked[0].Header.Get("Accept"), "protobuf") {
		t.Errorf("accepts %s", s.asked[0].Header.Get("Accept"))
	}
}

// TestListFails: a stream that is cut is no list, and neither is one that ends with an error.
func TestListFails(t *testing.T) {
	gone, _ := json.Marshal(apierrors.NewResourceExpired("too old").Status())
	for name, events := range map[string]string{
		"cut":   event("ADDED", "a", "1", ""),
		"error": event("ADDED", "a", "1", "") + `{"type":"ERROR","object":` + string(gone) + "}\n",
	} {
		if _, _, err := streamed(t, &streaming{events: events}).List(t.Context(), kind.ConfigMap, resource.ListOptions{}); err == nil {
			t.Errorf("%s: a list", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := streamed(t, &streaming{}).List(ctx, kind.ConfigMap, resource.ListOptions{}); err == nil {
		t.Error("a list after the end of its context")
	}
}

// TestOldServers are listed by pages, and asked once whether they stream.
func TestOldServers(t *testing.T) {
	page := func(name, next string) string {
		return `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"` + next + `"},"items":[{"metadata":{"namespace":"ns","name":"` +
			name + `","managedFields":[{"manager":"x"}]}}]}`
	}
	refusal := apierrors.NewInvalid(kind.ConfigMap.GVK.GroupKind(), "", nil).Status()
	s := &streaming{refusal: &refusal, pages: []string{page("a", "more"), page("b", ""), page("a", "")}}
	client := streamed(t, s)
	objects, version, err := client.List(t.Context(), kind.ConfigMap, resource.ListOptions{})
	if err != nil || version != "9" || !slices.Equal(namesOf(t, objects), []string{"a", "b"}) {
		t.Errorf("%d objects at %q, %v", len(objects), version, err)
	}
	if _, _, err := client.List(t.Context(), kind.ConfigMap, resource.ListOptions{}); err != nil || len(s.asked) != 4 {
		t.Errorf("%d requests, %v", len(s.asked), err)
	}
	// Other refusals are the outcome.
	refusal = apierrors.NewForbidden(kind.ConfigMap.GroupResource(), "", nil).Status()
	if _, _, err := streamed(t, &streaming{refusal: &refusal}).List(t.Context(), kind.ConfigMap, resource.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("forbidden: %v", err)
	}
}

// TestWatchStrips: objects of later events are stripped, too.
func TestWatchStrips(t *testing.T) {
	s := &streaming{events: event("ADDED", "a", "1", "")}
	w, err := streamed(t, s).Watch(t.Context(), kind.ConfigMap, resource.WatchOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	namesOf(t, []resource.Object{e.Object.(resource.Object)})
}

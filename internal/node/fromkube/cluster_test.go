package fromkube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server with scripted answers.
type api struct {
	t      *testing.T
	server *httptest.Server

	mu      sync.Mutex
	lists   map[string][]runtime.Object
	asked   map[string]string // label and field selector of each kind's last list
	watches map[string]chan metav1.WatchEvent
}

func newAPI(t *testing.T) *api {
	a := &api{t: t, lists: map[string][]runtime.Object{}, asked: map[string]string{}, watches: map[string]chan metav1.WatchEvent{}}
	for _, what := range []string{"services", "endpointslices", "nodes"} {
		a.watches[what] = make(chan metav1.WatchEvent)
	}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.server.Close)
	return a
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	if query.Get("sendInitialEvents") == "true" { // as servers without that feature say
		status := apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "",
			field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "not here")}).Status()
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	if query.Get("watch") == "true" {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case e, ok := <-a.watches[what]:
				if !ok {
					return
				}
				_ = json.NewEncoder(w).Encode(e)
				w.(http.Flusher).Flush()
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[what] = query.Get("labelSelector") + query.Get("fieldSelector")
	version := map[string]string{"services": "v1", "endpointslices": "discovery.k8s.io/v1", "nodes": "v1"}[what]
	kind := map[string]string{"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "NodeList"}[what]
	items := a.lists[what]
	if items == nil {
		items = []runtime.Object{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]string{"resourceVersion": "10"}, "items": items})
}

func (a *api) list(what string, objects ...runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists[what] = objects
}

func (a *api) send(what, event string, object any) {
	raw, err := json.Marshal(object)
	if err != nil {
		a.t.Fatal(err)
	}
	a.watches[what] <- metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: raw}}
}

func service(name, version, ip string) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func slice(name, version, ip string, labels ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}}},
	}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		s.Labels[k] = v
	}
	return s
}

// describe writes an update as one line, in order.
func describe(u node.Update) string {
	var parts []string
	if u.Reset {
		parts = append(parts, "reset")
	}
	var texts []string
	for name, s := range u.Services {
		if s == nil {
			texts = append(texts, "-"+name.Name)
		} else {
			texts = append(texts, fmt.Sprint("+", name.Name, s.ClusterIPs))
		}
	}
	for name, s := range u.Slices {
		if s == nil {
			texts = append(texts, "-"+name.Name)
		} else {
			texts = append(texts, fmt.Sprint("+", name.Name, "[", s.Endpoints[0].Addr, "]"))
		}
	}
	for name, n := range maps.All(u.NameSlices) {
		if n != nil {
			texts = append(texts, "names of "+name.Name)
		}
	}
	slices.Sort(texts)
	return strings.Join(append(parts, texts...), " ")
}

func follow(t *testing.T, a *api, names bool) (updates chan string, nodes chan string, feed *Feed) {
	t.Helper()
	updates, nodes = make(chan string, 64), make(chan string, 64)
	feed, err := New(Config{
		REST: &rest.Config{Host: a.server.URL}, Node: "n1", Names: names,
		Update: func(u node.Update) { updates <- describe(u) },
		OnNode: func(n *corev1.Node) {
			if n == nil {
				nodes <- "none"
				return
			}
			nodes <- n.Labels[corev1.LabelTopologyZone]
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- feed.Run(t.Context()) }()
	t.Cleanup(func() { // the test's context is done by now
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return updates, nodes, feed
}

func expect(t *testing.T, from chan string, want string) {
	t.Helper()
	if got := <-from; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestALyingWatch: duplicates, events out of order, deletions of what was never
// there and a watch that is too old; in the end the state is what the API lists.
func TestALyingWatch(t *testing.T) {
	a := newAPI(t)
	a.list("services", service("web", "1", "10.96.0.1"), service("api", "2", "10.96.0.2"))
	a.list("endpointslices", slice("web-a", "3", "10.0.0.1"))
	a.list("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "4", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}}})
	updates, nodes, feed := follow(t, a, false)
	expect(t, nodes, "z1")
	expect(t, updates, "reset +api[10.96.0.2] +web-a[10.0.0.1] +web[10.96.0.1]")
	want := map[string]string{"services": serviceSelector, "endpointslices": sliceSelector, "nodes": "metadata.name=n1"}
	if diff := cmp.Diff(want, a.asked); diff != "" {
		t.Error("selectors:", diff)
	}

	a.send("endpointslices", "ADDED", slice("web-b", "11", "10.0.0.2"))
	expect(t, updates, "+web-b[10.0.0.2]")
	a.send("endpointslices", "ADDED", slice("web-b", "11", "10.0.0.2"))
	expect(t, updates, "+web-b[10.0.0.2]")
	a.send("endpointslices", "DELETED", slice("ghost", "12", "10.0.0.9"))
	expect(t, updates, "-ghost")
	a.send("services", "MODIFIED", service("web", "13", "10.96.0.9"))
	expect(t, updates, "+web[10.96.0.9]")
	a.send("nodes", "DELETED", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "14"}})
	expect(t, nodes, "none")

	// The watch is too old. Meanwhile web-a went and web-c came.
	a.list("endpointslices", slice("web-b", "11", "10.0.0.2"), slice("web-c", "20", "10.0.0.3"))
	gone := apierrors.NewResourceExpired("too old").Status()
	gone.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	a.send("endpointslices", "ERROR", gone)
	expect(t, updates, "+web-b[10.0.0.2] +web-c[10.0.0.3] -web-a")
	if s := feed.Status(); !s.Synced || s.Services != 2 || s.Slices != 2 {
		t.Errorf("status %+v", s)
	}
}

// TestNames: headless Services are of use to DNS only.
func TestNames(t *testing.T) {
	a := newAPI(t)
	headless := service("db", "1", corev1.ClusterIPNone)
	a.list("services", headless)
	a.list("endpointslices",
		slice("db-a", "2", "10.0.0.1", corev1.IsHeadlessService+"="),
		slice("hand-made", "3", "10.0.0.2"),
		slice("web-a", "4", "10.0.0.3", discoveryv1.LabelManagedBy+"="+managedBySlices),
	)
	updates, nodes, _ := follow(t, a, true)
	expect(t, nodes, "none")
	expect(t, updates, "reset +hand-made[10.0.0.2] +web-a[10.0.0.3] -db -db-a names of db-a names of hand-made")
	if a.asked["services"] != "" {
		t.Errorf("asked for %q only", a.asked["services"])
	}
}

func TestStatusTellsErrors(t *testing.T) {
	a := newAPI(t)
	a.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	_, _, feed := follow(t, a, false)
	for feed.Status().LastError == "" {
		if t.Context().Err() != nil {
			t.Fatal("no error in status")
		}
	}
	if feed.Status().Synced {
		t.Error("synced without a state")
	}
}

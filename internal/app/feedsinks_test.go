package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// hook receives the deliveries of a sink.
type hook struct {
	t *testing.T

	mu sync.Mutex
	// got are the subjects and types of all events that arrived, with those of deliveries that the sink takes for failed.
	got []string
	// refuse deliveries by 503; lose the answers to deliveries, after they have arrived.
	refuse, lose bool
	// failed counts these.
	failed int
}

// ServeHTTP implements http.Handler.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var events []struct{ Type, Subject, Sequence string }
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil {
		h.t.Error(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse {
		h.failed++
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	for _, e := range events {
		h.got = append(h.got, e.Type+" "+e.Subject)
	}
	if h.lose {
		h.failed++
		panic(http.ErrAbortHandler)
	}
}

// set how deliveries are answered from now on.
func (h *hook) set(refuse, lose bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse, h.lose, h.failed = refuse, lose, 0
}

func (h *hook) failures() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// has reports whether a change has arrived.
func (h *hook) has(change string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.got, change)
}

// TestSinkOverRestarts: what a webhook did not accept, or whose answer was lost, is delivered after the control plane has ended
// and is started again: nothing is missing, and no change comes before one that was made earlier.
func TestSinkOverRestarts(t *testing.T) {
	p := startFed(t, FeedConfig{})
	h := &hook{t: t}
	server := httptest.NewServer(h)
	defer server.Close()
	if _, err := p.cp.api.sinks.Add(t.Context(), sink.Spec{Name: "cmdb", URL: server.URL, Resources: []string{"configmaps"}, Namespaces: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	var made []string
	create := func() string {
		t.Helper()
		name := fmt.Sprintf("c%02d", len(made))
		if _, err := p.client(p.rest).Create(t.Context(), kind.ConfigMap, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
			t.Fatal(err)
		}
		made = append(made, "dev.proxima.object.created configmaps/default/"+name)
		return made[len(made)-1]
	}
	restart := func() {
		t.Helper()
		p.stop()
		h.set(false, false)
		p.start()
	}

	first := create()
	until(t, "a delivery", func() bool { return h.has(first) })
	h.set(true, false) // refused until the control plane ends
	create()
	create()
	until(t, "a refused delivery", func() bool { return h.failures() > 0 })
	restart()
	third := create()
	until(t, "what was refused", func() bool { return h.has(third) })
	h.set(false, true) // accepted, which the control plane does not learn
	create()
	until(t, "a delivery whose answer is lost", func() bool { return h.failures() > 0 })
	create()
	restart()
	create() // the control plane ends with the change, before it may be in the feed
	restart()
	if err := p.client(p.rest).Delete(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: "c00"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	made = append(made, "dev.proxima.object.deleted configmaps/default/c00")
	until(t, "the newest change", func() bool { return h.has(made[len(made)-1]) })

	h.mu.Lock()
	defer h.mu.Unlock()
	next, again := 0, 0 // of made
	for _, got := range h.got {
		switch at := slices.Index(made, got); {
		case at < 0:
			t.Errorf("%s was not made", got)
		case at > next:
			t.Errorf("%s comes before %s", got, made[next])
		case at == next:
			next++
		default:
			again++
		}
	}
	if next != len(made) {
		t.Errorf("%d changes of %d arrived", next, len(made))
	}
	if again == 0 {
		t.Error("a delivery whose answer was lost is not repeated")
	}
}

package sink

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// objects of the tests are ConfigMaps and Secrets, whose values are a text.
type objects struct{}

func (objects) ObjectOf(key string) (*resource.Descriptor, resource.Key, bool) {
	part := strings.Split(strings.TrimPrefix(key, "/registry/"), "/")
	return map[string]*resource.Descriptor{"configmaps": kind.ConfigMap, "secrets": kind.Secret}[part[0]], resource.Key{Namespace: part[1], Name: part[2]}, true
}
func (objects) Prefix(*resource.Descriptor, resource.Key) string { return "/registry/" }
func (objects) Table(context.Context, *resource.Descriptor, []resource.Object) (*metav1.Table, error) {
	return nil, errors.New("there are no tables")
}

func (o objects) Decode(_ context.Context, key string, value []byte, _ store.Revision) (resource.Object, error) {
	k, name, _ := o.ObjectOf(key)
	meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}
	if k == kind.Secret {
		return &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"text": value}}, nil
	}
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"text": string(value)}}, nil
}

// records in memory.
type records struct {
	mu      sync.Mutex
	all     map[string][]byte
	changed func()
}

func (r *records) Names(_ context.Context, prefix string) (out []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.all {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (r *records) Load(_ context.Context, name string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[name], nil
}
func (r *records) Create(_ context.Context, name string, data []byte) error {
	return r.set(name, data)
}
func (r *records) Delete(_ context.Context, name string) error { return r.set(name, nil) }

func (r *records) set(name string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = data
	if data == nil {
		delete(r.all, name)
	}
	if r.changed != nil {
		r.changed()
	}
	return nil
}

func (r *records) Watch(ctx context.Context, changed func()) error {
	r.mu.Lock()
	r.changed = changed
	r.mu.Unlock()
	changed()
	<-ctx.Done()
	return nil
}

// followed is a feed with the position that cursors ask for.
type followed struct{ *feed.Feed }

func (f followed) First() seglog.Position { first, _ := f.Log.First(); return first }

// receiver of deliveries.
type receiver struct {
	t   *testing.T
	key []byte

	mu     sync.Mutex
	events []envelope
	ids    []string
	refuse int // so many deliveries
	got    chan struct{}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		r.t.Error(err)
	}
	id, at := req.Header.Get("webhook-id"), req.Header.Get("webhook-timestamp")
	want := "v1," + base64.StdEncoding.EncodeToString(sign(r.key, id, at, body))
	if !hmac.Equal([]byte(want), []byte(req.Header.Get("webhook-signature"))) || !strings.HasPrefix(req.Header.Get("Content-Type"), "application/cloudevents-batch+json") {
		r.t.Errorf("headers %v", req.Header)
	}
	var events []envelope
	if err := json.Unmarshal(body, &events); err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, id)
	if r.refuse > 0 {
		r.refuse--
		http.Error(w, "not now", http.StatusServiceUnavailable)
	} else {
		r.events = append(r.events, events...)
	}
	select {
	case r.got <- struct{}{}:
	default:
	}
}

// has waits until so many events arrived.
func (r *receiver) has(n int) []envelope {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		events := slices.Clone(r.events)
		r.mu.Unlock()
		if len(events) >= n {
			return events
		}
		select {
		case <-r.got:
		case <-deadline:
			r.t.Fatalf("%d events of %d arrived", len(events), n)
		}
	}
}

// rig is a store with a feed and sinks.
type rig struct {
	t       *testing.T
	store   store.Store
	feed    *feed.Feed
	cursors *cursor.Cursors
	records *records
	sinks   *Sinks
	stop    func()
}

func newRig(t *testing.T) *rig {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	f, err := feed.Open(t.Context(), feed.Config{Store: s, Prefix: "/registry/", Roots: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	r := &rig{t: t, store: s, feed: f, records: &records{all: map[string][]byte{}}}
	if r.cursors, err = cursor.New(t.Context(), cursor.Config{Store: s, Feed: followed{f}}); err != nil {
		t.Fatal(err)
	}
	r.start()
	return r
}

// start an instance.
func (r *rig) start() {
	sinks, err := New(Config{
		History: history.New(history.Config{
			Feed: r.feed, Objects: objects{}, Sealed: func(k *resource.Descriptor) bool { return k == kind.Secret }, Kept: func(*resource.Descriptor) bool { return true },
		}),
		Cursors: r.cursors, Records: r.records, Source: "//proxima/test", Known: func(s string) bool { return s == "configmaps" || s == "secrets" },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = sinks.Run(ctx) }()
	r.sinks, r.stop = sinks, func() { cancel(); <-done }
	r.t.Cleanup(func() { r.stop() })
}

func (r *rig) put(key, value string) {
	r.t.Helper()
	op := store.Op{Kind: store.Put, Key: "/registry/" + key, Value: []byte(value)}
	if value == "" {
		op = store.Op{Kind: store.Delete, Key: "/registry/" + key}
	}
	at, err := r.store.Commit(r.t.Context(), store.Txn{Ops: []store.Op{op}})
	if err == nil {
		err = r.feed.Reach(r.t.Context(), seglog.Position(at))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) add(spec Spec) *receiver {
	r.t.Helper()
	out := &receiver{t: r.t, got: make(chan struct{}, 1)}
	server := httptest.NewServer(out)
	r.t.Cleanup(server.Close)
	spec.URL = server.URL + "/hook"
	made, err := r.sinks.Add(r.t.Context(), spec)
	if err != nil {
		r.t.Fatal(err)
	}
	if out.key, err = made.key(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// settled waits until all that happened is accepted.
func (r *rig) settled() []Status {
	r.t.Helper()
	for {
		list, err := r.sinks.List(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(s Status) bool { return s.Behind > 0 }) {
			return list
		}
		runtime.Gosched()
	}
}

func text(events []envelope) string {
	var out []string
	for _, e := range events {
		out = append(out, strings.TrimPrefix(e.Type, typePrefix)+" "+e.Subject)
	}
	return strings.Join(out, ", ")
}

func TestDelivers(t *testing.T) {
	r := newRig(t)
	r.put("configmaps/shop/before", "1")
	in := r.add(Spec{Name: "cmdb"})
	r.put("configmaps/shop/a", "1")
	r.put("configmaps/shop/a", "2")
	r.put("secrets/shop/s", "topsecret")
	r.put("configmaps/shop/a", "")
	events := in.has(4)
	if got, want := text(events), "created configmaps/shop/a, updated configmaps/shop/a, created secrets/shop/s, deleted configmaps/shop/a"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	whole, _ := json.Marshal(events)
	if strings.Contains(string(whole), base64.StdEncoding.EncodeToString([]byte("topsecret"))) || strings.Contains(string(whole), "topsecret") {
		t.Errorf("the value of a secret left: %s", whole)
	}
	if e := events[1]; e.SpecVersion != "1.0" || e.Source != "//proxima/test" || !strings.HasSuffix(e.ID, "-4") || e.Sequence <= events[0].Sequence {
		t.Errorf("event %+v", e)
	}
	list := r.settled()
	if len(list) != 1 || list[0].Delivered != 4 || list[0].Behind != 0 || list[0].Problem != "" || !list[0].Here {
		t.Errorf("%+v", list)
	}
}

func TestSelects(t *testing.T) {
	r := newRig(t)
	in := r.add(Spec{Resources: []string{"configmaps"}, Namespaces: []string{"shop"}})
	for _, key := range []string{"configmaps/other/x", "secrets/shop/x", "configmaps/shop/x"} {
		r.put(key, "1")
	}
	if got := text(in.has(1)); got != "created configmaps/shop/x" {
		t.Error(got)
	}
}

// A delivery that is not accepted is repeated, as it was, and nothing overtakes it; also over a restart.
func TestRepeats(t *testing.T) {
	r := newRig(t)
	in := r.add(Spec{Name: "cmdb"})
	in.mu.Lock()
	in.refuse = 1
	in.mu.Unlock()
	r.put("configmaps/shop/a", "1")
	<-in.got
	for {
		list, err := r.sinks.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := list[0].Problem; p != "" {
			if !strings.Contains(p, "503") || !strings.Contains(p, "not now") || len(r.sinks.Problems()) != 1 {
				t.Errorf("problem %q, %v", p, r.sinks.Problems())
			}
			break
		}
	}
	r.stop()
	r.put("configmaps/shop/b", "1")
	r.start()
	if got, want := text(in.has(2)), "created configmaps/shop/a, created configmaps/shop/b"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	r.settled()
	r.stop()
	r.start()
	r.put("configmaps/shop/c", "1")
	if got := text(in.has(3)); !strings.HasSuffix(got, "b, created configmaps/shop/c") {
		t.Errorf("after a restart: %s", got)
	}
}

func TestExpired(t *testing.T) {
	r := newRig(t)
	in := r.add(Spec{Name: "cmdb"})
	r.put("configmaps/shop/a", "1")
	in.has(1)
	r.stop()
	for i := range 3 {
		r.put("configmaps/shop/a", fmt.Sprint("again", i))
	}
	if err := r.feed.Log.Seal(); err != nil {
		t.Fatal(err)
	}
	r.put("configmaps/shop/a", "once more") // the last segment stays
	if err := r.feed.Log.Sync(); err != nil {
		t.Fatal(err)
	}
	r.feed.Log.Trim(1, 0, 1<<40)
	r.start()
	r.put("configmaps/shop/b", "1")
	events := in.has(4) // the first, that changes are missing, the last segment, and the new one
	if events[1].Type != typeExpired || !strings.HasSuffix(text(events), "created configmaps/shop/b") {
		t.Errorf("%s", text(events))
	}
}

func TestAddAndRemove(t *testing.T) {
	r := newRig(t)
	for name, test := range map[string]struct {
		spec Spec
		want string
	}{
		"no URL":      {Spec{Name: "x"}, "url"},
		"a scheme":    {Spec{URL: "ftp://h/"}, "want http"},
		"a name":      {Spec{Name: "A B", URL: "http://h/"}, "name"},
		"a resource":  {Spec{URL: "http://h/", Resources: []string{"service"}}, `resource "service"`},
		"a secret":    {Spec{URL: "http://h/", Secret: "x"}, "whsec_"},
		"authorities": {Spec{URL: "https://h/", Authorities: "x"}, "authorities"},
	} {
		_, err := r.sinks.Add(t.Context(), test.spec)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	in := r.add(Spec{Name: "cmdb"})
	if _, err := r.sinks.Add(t.Context(), Spec{Name: "cmdb", URL: "http://user:password@h/"}); !errors.Is(err, ErrExists) {
		t.Error(err)
	}
	if err := r.sinks.Remove(t.Context(), "other"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := r.sinks.Remove(t.Context(), "cmdb"); err != nil {
		t.Fatal(err)
	}
	r.put("configmaps/shop/a", "1")
	if _, err := r.cursors.Get(t.Context(), "sink/cmdb"); !errors.Is(err, cursor.ErrNotFound) {
		t.Errorf("its cursor: %v", err)
	}
	if in.mu.Lock(); len(in.events) != 0 {
		t.Errorf("delivered after it was removed: %v", in.events)
	}
	in.mu.Unlock()
}

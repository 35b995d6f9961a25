package fromkube

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/node"
)

// wire carries requests to an API without a network, which a bubble's clock would
// not wait for. It can be cut.
type wire struct {
	handler http.HandlerFunc
	asked   atomic.Int64

	mu   sync.Mutex
	away bool
	open []context.CancelFunc
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return nil, syscall.ECONNREFUSED
	}
	ctx, cancel := context.WithCancel(r.Context())
	w.open = append(w.open, cancel)
	body, writer := io.Pipe()
	answer := &answer{PipeWriter: writer, header: http.Header{}, code: make(chan int, 1)}
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(io.ErrUnexpectedEOF) })
	go func() {
		w.handler(answer, r.WithContext(ctx))
		_ = writer.Close()
	}()
	return &http.Response{StatusCode: <-answer.code, Header: answer.header, Body: body, Request: r}, nil
}

// cut ends all connections, and refuses new ones until join.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = true
	for _, end := range w.open {
		end()
	}
	w.open = nil
}

func (w *wire) join() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = false
}

// answer is what a handler writes to.
type answer struct {
	*io.PipeWriter
	header http.Header
	once   sync.Once
	code   chan int
}

func (a *answer) Header() http.Header  { return a.header }
func (a *answer) WriteHeader(code int) { a.once.Do(func() { a.code <- code }) }
func (a *answer) Flush()               {}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.PipeWriter.Write(p)
}

// TestAnHourWithoutAPI: nothing changes for those who carry traffic, the API is
// asked again and again but not often, and when it is back, which has forgotten
// where the watches were, the state is soon what it lists.
func TestAnHourWithoutAPI(t *testing.T) { synctest.Test(t, testAnHourWithoutAPI) }

func testAnHourWithoutAPI(t *testing.T) {
	a := &api{t: t, lists: map[string][]runtime.Object{}, asked: map[string]string{}, watches: map[string]chan metav1.WatchEvent{}}
	for _, what := range []string{"services", "endpointslices", "nodes"} {
		a.watches[what] = make(chan metav1.WatchEvent)
	}
	a.list("services", service("web", "1", "10.96.0.1"))
	a.list("endpointslices", slice("web-a", "2", "10.0.0.1"))
	w := &wire{handler: a.serve}
	defer w.cut()

	updates := make(chan string, 64)
	feed, err := New(Config{
		REST: &rest.Config{Host: "http://api.test", Transport: w}, Node: "n1",
		Update: func(u node.Update) { updates <- describe(u) }, OnNode: func(*corev1.Node) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- feed.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	expect(t, updates, "reset +web-a[10.0.0.1] +web[10.96.0.1]")
	synctest.Wait()

	w.cut()
	w.asked.Store(0)
	time.Sleep(time.Hour) // the bubble's clock
	synctest.Wait()
	if n := len(updates); n != 0 {
		t.Errorf("%d updates while there was no API, the first: %s", n, <-updates)
	}
	if s := feed.Status(); !s.Synced || s.Services != 1 || s.Slices != 1 || s.LastError == "" {
		t.Errorf("status after an hour: %+v", s)
	}
	// Three kinds, each after a pause of 1 to 2 s in the end.
	if n := w.asked.Load(); n < 3*1700 || n > 3*3700 {
		t.Errorf("asked %d times in an hour, want about 7200", n)
	}

	a.list("services", service("web", "1", "10.96.0.1"), service("late", "30", "10.96.0.3"))
	a.list("endpointslices", slice("web-b", "31", "10.0.0.2"))
	w.join()
	for _, what := range []string{"services", "endpointslices"} {
		gone := apierrors.NewResourceExpired("too old").Status()
		gone.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		a.send(what, "ERROR", gone)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	got := map[string]bool{}
	for len(updates) > 0 {
		got[<-updates] = true
	}
	// A list that is read twice is handed on twice.
	delete(got, "+web-b[10.0.0.2]")
	if len(got) != 2 || !got["+late[10.96.0.3] +web[10.96.0.1]"] || !got["+web-b[10.0.0.2] -web-a"] {
		t.Errorf("after its return: %v", got)
	}
}

// After an outage the agent is up to date within 2 s of the API's return, however
// long the outage was.
func TestUpToDateSoonAfterAnOutage(t *testing.T) {
	for _, outage := range []time.Duration{20 * time.Second, 10 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testAfterOutage(t, outage) })
		})
	}
}

func testAfterOutage(t *testing.T, outage time.Duration) {
	a := &api{t: t, lists: map[string][]runtime.Object{}, asked: map[string]string{}, watches: map[string]chan metav1.WatchEvent{}}
	for _, what := range []string{"services", "endpointslices", "nodes"} {
		a.watches[what] = make(chan metav1.WatchEvent)
	}
	a.list("services", service("web", "1", "10.96.0.1"))
	a.list("endpointslices", slice("web-a", "2", "10.0.0.1"))
	w := &wire{handler: a.serve}
	defer w.cut()
	updates := make(chan string, 64)
	feed, err := New(Config{
		REST: &rest.Config{Host: "http://api.test", Transport: w}, Node: "n1",
		Update: func(u node.Update) { updates <- describe(u) }, OnNode: func(*corev1.Node) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- feed.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	expect(t, updates, "reset +web-a[10.0.0.1] +web[10.96.0.1]")
	synctest.Wait()

	w.cut()
	time.Sleep(outage) // the bubble's clock
	w.join()
	w.asked.Store(0)
	time.Sleep(2*time.Second + time.Millisecond)
	synctest.Wait()
	if n := w.asked.Load(); n < 3 {
		t.Errorf("2 s after the API's return %d of 3 watches were taken up again", n)
	}
}

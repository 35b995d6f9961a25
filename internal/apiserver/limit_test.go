package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// limited runs a server of its own with limits. Slow requests hang at /slow, for
// reads and writes, until release is closed.
func limited(t *testing.T, limits apiserver.Limits, release <-chan struct{}) *server {
	t.Helper()
	s := memory.New(memory.Options{})
	srv, err := start(s, func(c *apiserver.Config) {
		c.Limits = limits
		c.Metrics = prometheus.NewRegistry()
		c.ExtraHandlers = map[string]http.Handler{"/slow": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.stop(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return srv
}

func (s *server) metric(t *testing.T, line string) bool {
	t.Helper()
	code, body := s.do(t, "GET", "/metrics", "admin", nil, "")
	if code != 200 {
		t.Fatalf("metrics: %d", code)
	}
	return strings.Contains(body, line+"\n")
}

func TestBodyLimit(t *testing.T) {
	srv := limited(t, apiserver.Limits{MaxRequestBytes: 10_000}, nil)
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"a":"%s"}}`, strings.Repeat("x", 11_000))
	header := http.Header{"Content-Type": {"application/json"}}
	code, out := srv.do(t, "POST", "/api/v1/namespaces/default/configmaps", "admin", header, body)
	if code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", code, out)
	}
	code, out = srv.do(t, "POST", "/api/v1/namespaces/default/configmaps", "admin", header,
		strings.Replace(body, strings.Repeat("x", 2_000), "", 1))
	if code != http.StatusCreated {
		t.Errorf("below the limit: %d %s", code, out)
	}
	if !srv.metric(t, `proxima_api_requests_refused_total{limit="request_bytes"} 1`) {
		t.Error("not counted")
	}
}

// TestRequestsInFlight fills both lanes: one does not fill the other, refusals have a
// Retry-After, and administrators get through.
func TestRequestsInFlight(t *testing.T) {
	release := make(chan struct{})
	srv := limited(t, apiserver.Limits{RequestsInFlight: 8, MutatingInFlight: 1}, release)
	client := srv.client(t)
	get := func(method, token, path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var held []*http.Response
	for range 2 {
		held = append(held, get("GET", "reader", "/slow"))
	}
	if resp := get("GET", "reader", "/slow"); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one read too many: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	if resp := get("GET", "admin", "/api/v1/namespaces/default"); resp.StatusCode != http.StatusOK {
		t.Errorf("an administrator: %s", resp.Status)
	}
	held = append(held, get("POST", "writer", "/slow"))
	if resp := held[2]; resp.StatusCode != http.StatusOK {
		t.Errorf("a write while all read slots are taken: %s", resp.Status)
	}
	if resp := get("POST", "writer", "/slow"); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one write too many: %s", resp.Status)
	}
	close(release)
	for _, resp := range held {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	eventually(t, "there are free slots again", func() bool {
		resp := get("GET", "reader", "/api/v1/namespaces/default")
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	for _, line := range []string{
		`proxima_api_requests_refused_total{limit="mutating_requests_in_flight"} 1`,
		`proxima_api_requests_refused_total{limit="requests_in_flight"} 1`,
	} {
		if !srv.metric(t, line) {
			t.Errorf("not counted: %s", line)
		}
	}
}

func TestWatchesPerClient(t *testing.T) {
	srv := limited(t, apiserver.Limits{WatchesPerClient: 2}, nil)
	cs := srv.clientset(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		w, err := cs.CoreV1().Services("").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	code, out := srv.do(t, "GET", "/api/v1/services?watch=true", "admin", nil, "") // client-go would wait and try again
	if code != http.StatusTooManyRequests || !strings.Contains(out, "--max-watches-per-client") ||
		!strings.Contains(out, `"retryAfterSeconds":5`) {
		t.Errorf("one too many: %d %s", code, out)
	}
	if code, out := srv.do(t, "GET", "/api/v1/services?watch=true&timeoutSeconds=1", "reader", nil, ""); code != 200 {
		t.Errorf("another user: %d %s", code, out)
	}
	if !srv.metric(t, `proxima_api_requests_refused_total{limit="watches_per_client"} 1`) || !srv.metric(t, "proxima_api_watches 2") {
		t.Error("not counted")
	}
	cancel()
	eventually(t, "ended watches free their slots", func() bool { return srv.metric(t, "proxima_api_watches 0") })
}

// TestWatcherThatDoesNotRead is disconnected, over both protocols; watchers that read
// miss nothing and are not delayed meanwhile.
func TestWatcherThatDoesNotRead(t *testing.T) {
	for protocol, next := range map[string][]string{"HTTP/1.1": {"http/1.1"}, "HTTP/2": {"h2"}} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			srv := limited(t, apiserver.Limits{SlowClient: 5 * time.Second}, nil)
			cs := srv.clientset(t, "")
			stuck := srv.watchRaw(t, next)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			events := make(chan int, 1)
			go func() { events <- changesSeen(ctx, cs) }()
			// More than the buffers of a connection hold.
			const writes, size = 25, 600_000
			cm, err := cs.CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string]string{"a": strings.Repeat("x", size)}},
				metav1.CreateOptions{})
			for i := range writes {
				if err != nil {
					t.Fatal(err)
				}
				cm.Data["n"] = fmt.Sprint(i)
				if i == writes-1 {
					cm.Labels = map[string]string{"last": "yes"}
				}
				cm, err = cs.CoreV1().ConfigMaps("default").Update(t.Context(), cm, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			if seen := <-events; seen != writes+1 {
				t.Errorf("the watcher that reads saw %d of %d changes", seen, writes+1)
			}
			cancel()
			eventually(t, "the one that does not is cut off", func() bool { return !srv.metric(t, "proxima_api_slow_clients_total 0") })
			eventually(t, "no watch is counted", func() bool { return srv.metric(t, "proxima_api_watches 0") })
			if _, err := io.Copy(io.Discard, stuck); err == nil {
				t.Error("its answer ended as if it were whole")
			}
		})
	}
}

// changesSeen follows ConfigMap big until it is labelled last, and counts its
// states. As every client does, it goes on where a watch ended: the server ends
// those that lag, rather than hold more for them.
func changesSeen(ctx context.Context, cs *kubernetes.Clientset) int {
	seen, version := map[string]bool{}, "0"
	for ctx.Err() == nil {
		w, err := cs.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !ok || cm.Name != "big" {
				continue
			}
			seen[cm.ResourceVersion], version = true, cm.ResourceVersion
			if cm.Labels["last"] != "" {
				w.Stop()
				return len(seen)
			}
		}
	}
	return len(seen)
}

// client is an HTTP client like those of this server's users.
func (s *server) client(t *testing.T, protocols ...string) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: protocols},
		ForceAttemptHTTP2: len(protocols) == 0 || protocols[0] == "h2"}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// watchRaw begins a watch and reads its first bytes only.
func (s *server) watchRaw(t *testing.T, protocols []string) io.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/api/v1/namespaces/default/configmaps?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	resp, err := s.client(t, protocols...).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { resp.Body.Close() }) })
	if resp.StatusCode != 200 ||
		!strings.HasPrefix(resp.Proto, strings.ToUpper(map[string]string{"h2": "HTTP/2", "http/1.1": "HTTP/1"}[protocols[0]])) {
		t.Fatalf("%s over %s", resp.Status, resp.Proto)
	}
	return bufio.NewReaderSize(resp.Body, 16)
}

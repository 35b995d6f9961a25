package app

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// TestAgentHasOneConnection: requests and watches of all clients share a connection; new ones
// leave it when the certificate was renewed or refused, and a watch on it goes on.
func TestAgentHasOneConnection(t *testing.T) {
	var connections, suspected atomic.Int64
	refuse := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/watch" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		select {
		case <-refuse:
			w.WriteHeader(http.StatusUnauthorized)
		default:
		}
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)

	var credentials atomic.Pointer[identity.Credentials]
	credentials.Store(&identity.Credentials{})
	api := &apiTransport{newest: credentials.Load, suspect: func() { suspected.Add(1) }, open: func() *http.Transport {
		return &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	}}
	t.Cleanup(func() { api.current().CloseIdleConnections() })
	request := func(path string, want int) io.ReadCloser {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: api}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Fatalf("%s: %s", path, resp.Status)
		}
		return resp.Body
	}
	get := func(want int) {
		t.Helper()
		body := request("/", want)
		_, _ = io.Copy(io.Discard, body)
		_ = body.Close()
	}
	expect := func(what string, want int64) {
		t.Helper()
		if got := connections.Load(); got != want {
			t.Errorf("%s: %d connections, want %d", what, got, want)
		}
	}

	watch := request("/watch", http.StatusOK)
	t.Cleanup(func() { _ = watch.Close() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, watch)
	}()
	get(http.StatusOK)
	get(http.StatusOK)
	expect("a watch and two requests", 1)

	credentials.Store(&identity.Credentials{})
	get(http.StatusOK)
	get(http.StatusOK)
	expect("after a renewal", 2)

	refuse <- struct{}{}
	get(http.StatusUnauthorized)
	if suspected.Load() != 1 {
		t.Errorf("a refusal was reported %d times", suspected.Load())
	}
	get(http.StatusOK)
	expect("after a refusal", 3)
	select {
	case <-ended:
		t.Error("the watch has ended")
	default:
	}
}

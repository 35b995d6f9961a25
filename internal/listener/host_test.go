package listener_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/listener"
)

func TestHostOnLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := listener.HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"127.0.0.1:10249":       http.StatusNoContent,
		"[::1]:10249":           http.StatusNoContent,
		"[::1]":                 http.StatusNoContent,
		"192.0.2.1":             http.StatusNoContent,
		"localhost:1":           http.StatusNoContent,
		"LocalHost.":            http.StatusNoContent,
		own:                     http.StatusNoContent,
		"rebound.example:80":    http.StatusMisdirectedRequest,
		"localhost.example":     http.StatusMisdirectedRequest,
		"127.0.0.1.nip.example": http.StatusMisdirectedRequest,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestCipherSuites(t *testing.T) {
	ids := listener.CipherSuites()
	if len(ids) == 0 {
		t.Fatal("none")
	}
	for _, id := range ids {
		if name := tls.CipherSuiteName(id); strings.Contains(name, "CBC") {
			t.Errorf("%s is offered", name)
		}
	}
}

package app

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/federation/stream"
)

// TestGlobalInstances: what global tells is kept, and adds to what is configured.
func TestGlobalInstances(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	configured := []string{"a:6443", "b:6443"}
	g := openGlobalInstances(configured, dir, log)
	want := func(what string, g *globalInstances, apis, ports []string) {
		t.Helper()
		if got := g.apis(); !slices.Equal(got, apis) {
			t.Errorf("%s: APIs %v, want %v", what, got, apis)
		}
		if got := g.ports("a:6444"); !slices.Equal(got, ports) {
			t.Errorf("%s: ports %v, want %v", what, got, ports)
		}
	}
	want("before global tells anything", g, []string{"b:6443"}, []string{"a:6444", "b:6444"})
	g.learn([]stream.Instance{{API: "a:6443", GRPC: "a:6444"}, {API: "c:7443", GRPC: "c:7444"}})
	apis, ports := []string{"b:6443", "c:7443"}, []string{"a:6444", "c:7444", "b:6444"}
	want("after it", g, apis, ports)
	want("after a restart", openGlobalInstances(configured, dir, log), apis, ports)
	if err := os.WriteFile(filepath.Join(dir, instancesFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("with a damaged file", openGlobalInstances(configured, dir, log), []string{"b:6443"}, []string{"a:6444", "b:6444"})
}

// TestDialFirst: the first address that answers is used; with none, every failure is told.
func TestDialFirst(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const refusing = "127.0.0.1:1"
	good := listener.Addr().String()
	for _, addresses := range [][]string{{good}, {refusing, good}, {good, refusing}} {
		began := time.Now()
		conn, err := dialFirst(t.Context(), addresses)
		if err != nil || conn.address != good {
			t.Fatalf("%v: %+v, %v", addresses, conn, err)
		}
		conn.Close()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%v: %s", addresses, took)
		}
	}
	if _, err := dialFirst(t.Context(), []string{refusing, "127.0.0.1:2"}); err == nil {
		t.Error("no error, though nothing listens")
	}
	// The address that was used before comes last.
	l := &planeLink{at: "a"}
	for range 2 {
		if got := l.order([]string{"a", "b", "c"}); !slices.Equal(got, []string{"b", "c", "a"}) {
			t.Errorf("after a: %v", got)
		}
	}
	if got := (&planeLink{}).order([]string{"a", "b"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("at first: %v", got)
	}
}

package front

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEnvoy answers CONNECT as Envoy does: by the cluster's name.
func fakeEnvoy(t *testing.T) (d *Dialer, reset chan struct{}) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	reset = make(chan struct{}, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(frame.ClusterHeader) {
		case "echo":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			buffer := make([]byte, 1024)
			for {
				n, err := r.Body.Read(buffer)
				if n > 0 {
					_, _ = w.Write(buffer[:n])
					_ = http.NewResponseController(w).Flush()
				}
				if errors.Is(err, io.EOF) {
					_, _ = w.Write([]byte(" end"))
					return
				}
				if err != nil {
					reset <- struct{}{}
					return
				}
			}
		case "full":
			w.Header().Set("x-envoy-overloaded", "true")
			http.Error(w, "overflow", http.StatusServiceUnavailable)
		case "slow":
			<-r.Context().Done()
		default:
			http.NotFound(w, r)
		}
	})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { (&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: handler}) }) //nolint:staticcheck // as the client
		}
	})
	d = New(path, record.NewPool(0))
	t.Cleanup(func() { d.Close(); l.Close(); serving.Wait() })
	return d, reset
}

func text(t *testing.T, d *Dialer, s string) stream.Chunk {
	t.Helper()
	b := d.pool.Get(record.Tiny)
	n := copy(b.Bytes[stream.Headroom:], s)
	return stream.Chunk{Buffer: b, Begin: stream.Headroom, End: stream.Headroom + n}
}

// TestConnect: bytes pass both ways, the end of one direction leaves the other, and a reset is one there.
func TestConnect(t *testing.T) {
	d, reset := fakeEnvoy(t)
	c, err := d.Connect(t.Context(), "echo")
	if err != nil {
		t.Fatal(err)
	}
	out := text(t, d, "hello")
	if err := c.Send(out); err != nil {
		t.Fatal(err)
	}
	d.pool.Put(out.Buffer)
	want := func(s string) {
		t.Helper()
		got, err := c.Receive()
		if err != nil || string(got.Data()) != s {
			t.Fatalf("%q, %v; want %q", got.Data(), err, s)
		}
		d.pool.Put(got.Buffer)
	}
	want("hello")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	want(" end")
	if _, err := c.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	c.Finish(true)
	if c, err = d.Connect(t.Context(), "echo"); err != nil {
		t.Fatal(err)
	}
	c.Reset(0, "")
	select {
	case <-reset:
	case <-time.After(10 * time.Second):
		t.Error("a reset does not arrive")
	}
	if _, err := c.Receive(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after a reset: %v", err)
	}
	if n := d.pool.InUse(); n != 0 {
		t.Errorf("%d bytes of buffers are not given back", n)
	}
}

// TestNotConnected: what is not there is told from what refuses, and a caller that goes does not wait.
func TestNotConnected(t *testing.T) {
	d, _ := fakeEnvoy(t)
	if _, err := d.Connect(t.Context(), "unknown"); !errors.Is(err, ErrAbsent) {
		t.Errorf("a cluster that is not there: %v", err)
	}
	var refused *RefusedError
	if _, err := d.Connect(t.Context(), "full"); !errors.As(err, &refused) || !refused.Overloaded || refused.Text != "503 overflow" {
		t.Errorf("a cluster that is full: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := d.Connect(ctx, "slow"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller that has gone: %v", err)
	}
	none := New(filepath.Join(t.TempDir(), "none"), d.pool)
	defer none.Close()
	if _, err := none.Connect(t.Context(), "echo"); !errors.Is(err, ErrAbsent) {
		t.Errorf("no Envoy: %v", err)
	}
}

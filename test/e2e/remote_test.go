package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/kubeclient/remote"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/cached"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func remoteKinds() []*resource.Descriptor {
	return []*resource.Descriptor{kind.ConfigMap, kind.Node}
}

func openRemote(t *testing.T, cfg *rest.Config) *remote.Store {
	t.Helper()
	s, err := remote.Open(t.Context(), cfg, remoteKinds())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// remember reads a client's kinds from memory until the test ends.
func remember(t *testing.T, inner resource.Client) *cached.Client {
	c := cached.New(cached.Config{Client: inner, Kinds: remoteKinds()})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) }) // it returns nil when ctx ends
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"value": value}}
}

// TestRemote uses another process's API as a store of resources.
func TestRemote(t *testing.T) {
	p := startPlane(t)
	options := resourcetest.ContractOptions{Plain: kind.ConfigMap, WithStatus: kind.Node, Namespace: "default"}
	t.Run("contract", func(t *testing.T) {
		resourcetest.Contract(t, func(t *testing.T) resource.Client { return openRemote(t, p.config()) }, options)
	})
	t.Run("contract, from memory", func(t *testing.T) {
		resourcetest.Contract(t, func(t *testing.T) resource.Client { return remember(t, openRemote(t, p.config())) }, options)
	})
	t.Run("revisions", func(t *testing.T) { remoteRevisions(t, openRemote(t, p.config())) })
	t.Run("cuts", func(t *testing.T) { remoteCuts(t, p) })
	t.Run("no Proxima", func(t *testing.T) {
		cfg := p.config()
		cfg.Host += "/nowhere"
		var other *remote.NotProximaError
		if _, err := remote.Open(t.Context(), cfg, remoteKinds()); !errors.As(err, &other) {
			t.Errorf("another API: %v", err)
		}
		cfg = p.config()
		cfg.TLSClientConfig.CertData, cfg.TLSClientConfig.KeyData, cfg.BearerToken = nil, nil, "wrong"
		cfg.CertFile, cfg.KeyFile = "", ""
		if _, err := remote.Open(t.Context(), cfg, remoteKinds()); !apierrors.IsUnauthorized(err) {
			t.Errorf("a wrong token: %v", err)
		}
	})
}

// remoteRevisions: all kinds share one revision, and the past can be read.
func remoteRevisions(t *testing.T, s *remote.Store) {
	ctx := t.Context()
	before, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Each node names the count that was stored before it.
	if _, err := s.Create(ctx, kind.ConfigMap, configMap("count", "0")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "count", Annotations: map[string]string{"count": "0"}}}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_, err := s.Update(context.Background(), kind.ConfigMap, configMap("count", fmt.Sprint(i)))
			if err == nil {
				_, err = s.Update(
					context.Background(),
					kind.Node,
					&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "count", Annotations: map[string]string{"count": fmt.Sprint(i)}}},
				)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	var last store.Revision
	began := time.Now()
	for range 20 {
		// Nodes are read after ConfigMaps, and yet never show a later count.
		objects, at, err := s.Snapshot(ctx, kind.ConfigMap, kind.Node)
		if err != nil {
			t.Fatal(err)
		}
		if at < last || at <= before {
			t.Errorf("snapshot at %d after one at %d", at, last)
		}
		last = at
		counted, noted := value(t, objects[0]), annotation(t, objects[1])
		if noted > counted || counted > noted+1 {
			t.Errorf("at %d: the ConfigMap says %d, the Node %d", at, counted, noted)
		}
	}
	t.Logf("a snapshot of two kinds takes %s while both change", time.Since(began)/20)
	close(stop)
	writing.Wait()
	list, at, err := s.ListAt(ctx, kind.ConfigMap, resource.ListOptions{Namespace: "default"}, last)
	if err != nil || at != last || len(list) == 0 {
		t.Errorf("list at %d: %d objects at %d, %v", last, len(list), at, err)
	}
	if err := s.Check(ctx); err != nil || s.Epoch() == "" {
		t.Errorf("epoch %q, %v", s.Epoch(), err)
	}
}

func value(t *testing.T, objects []resource.Object) (n int) {
	t.Helper()
	for _, o := range objects {
		if o.GetName() == "count" {
			if _, err := fmt.Sscan(o.(*corev1.ConfigMap).Data["value"], &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

func annotation(t *testing.T, objects []resource.Object) (n int) {
	t.Helper()
	for _, o := range objects {
		if o.GetName() == "count" {
			if _, err := fmt.Sscan(o.GetAnnotations()["count"], &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// remoteCuts breaks all connections again and again, and restarts the other
// control plane. A write that was acknowledged is seen; memory is never ahead of
// the state nor, in the end, behind it.
func remoteCuts(t *testing.T, p *plane) {
	wire := newCutter(t, p.apiAddress())
	cfg := p.config()
	cfg.TLSClientConfig.ServerName = "127.0.0.1"
	cfg.Host = "https://" + wire.address()
	cfg.Timeout = 0
	s := openRemote(t, cfg)
	c := remember(t, s)
	if _, err := c.Create(t.Context(), kind.ConfigMap, configMap("cut", "0")); err != nil {
		t.Fatal(err)
	}
	key := resource.Key{Namespace: "default", Name: "cut"}
	var acknowledged, retried int
	for round := range 20 {
		if round == 10 {
			p.process.Kill()
			p.start()
		}
		wire.cut()
		testkit.Eventually(t, "a write goes through", func() bool {
			got, err := c.Get(t.Context(), kind.ConfigMap, key)
			if err == nil {
				next := got.(*corev1.ConfigMap)
				var n int
				if _, err := fmt.Sscan(next.Data["value"], &n); err != nil {
					t.Fatal(err)
				}
				if n < acknowledged {
					t.Fatalf("read %d after %d was acknowledged", n, acknowledged)
				}
				next.Data["value"] = fmt.Sprint(n + 1)
				if _, err = c.Update(t.Context(), kind.ConfigMap, next); err == nil {
					acknowledged = n + 1
					return true
				}
			}
			retried++
			return false
		})
	}
	hits, misses := c.Reads(kind.ConfigMap)
	t.Logf("%d acknowledged, %d tries failed; %d reads from memory, %d from the server", acknowledged, retried, hits, misses)
	direct := openRemote(t, p.config())
	testkit.Eventually(t, "memory is where the state is", func() bool {
		before, _ := c.Reads(kind.ConfigMap)
		mine, err := c.Get(t.Context(), kind.ConfigMap, key)
		after, _ := c.Reads(kind.ConfigMap)
		theirs, err2 := direct.Get(t.Context(), kind.ConfigMap, key)
		return err == nil && err2 == nil && after > before && mine.GetResourceVersion() == theirs.GetResourceVersion()
	})
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("the same state: %v", err)
	}
}

// cutter passes connections on until it cuts them.
type cutter struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	open     []net.Conn
}

func newCutter(t *testing.T, to string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.pass(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); c.cut(); running.Wait() })
	return c
}

func (c *cutter) address() string { return c.listener.Addr().String() }

func (c *cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", c.to, time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	c.mu.Lock()
	c.open = append(c.open, client, server)
	c.mu.Unlock()
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(server, client); done <- struct{}{} }()
	go func() { _, _ = io.Copy(client, server); done <- struct{}{} }()
	<-done
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.Close()
	}
	c.open = nil
}

// TestStoreRemoteIsNone: a control plane does not keep its state in another one,
// and says what to do instead.
func TestStoreRemoteIsNone(t *testing.T) {
	p := &plane{t: t, dir: t.TempDir()}
	out, err := p.try(
		"",
		testkit.Binary(t),
		"control-plane",
		"--store",
		"remote:https://127.0.0.1:1",
		"--data-dir",
		p.dir,
		"--api-address",
		"127.0.0.1:0",
		"--grpc-port",
		"0",
	)
	if err == nil || !strings.Contains(out, "--store remote") || !strings.Contains(out, "sqlite:FILE") {
		t.Errorf("%v\n%s", err, out)
	}
}

package eureka

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// pipes is a listener whose connections are in memory, so that time in tests is not real.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	l.accepted <- local{there}
	return here, nil
}

// local is a connection of this machine.
type local struct{ net.Conn }

func (local) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestHold: a delta waits for a change if its client has seen all others, shorter than the client's interval
// and timeout. A client that gave up is not made to wait again.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
		p := registrytest.New(t)
		p.ServeUntil(l, New(p.Core).Serve)
		newClient := func() *client {
			transport := &http.Transport{DialContext: l.dial}
			t.Cleanup(transport.CloseIdleConnections)
			return &client{t: t, p: p, base: "http://eureka/eureka/", http: &http.Client{Transport: transport}}
		}
		registrar := newClient()
		register := func(id string) {
			registrar.want(http.StatusNoContent, http.MethodPost, "apps/orders", instanceJSON(id, "UP"))
		}
		want := func(c *client, when, path string, took time.Duration, hash string) {
			t.Helper()
			began := time.Now()
			got := c.apps(path).Applications.Hash
			if since := time.Since(began); since != took || got != hash {
				t.Errorf("%s: %q after %s, want %q after %s", when, got, since, hash, took)
			}
		}
		a := newClient()
		want(a, "the first of a connection", "apps", 0, "")
		time.Sleep(5 * time.Second)
		want(a, "nothing has changed", "apps/delta", 4*time.Second, "")
		time.Sleep(2 * time.Second)
		want(a, "a short interval", "apps/delta", 1600*time.Millisecond, "")
		time.Sleep(holdFrom - 1)
		want(a, "a client that polls", "apps/delta", 0, "")
		time.Sleep(time.Minute)
		want(a, "a long interval", "apps/delta", holdMax, "")
		time.Sleep(5 * time.Second)
		want(a, "the whole is never held", "apps", 0, "")
		register("one")
		synctest.Wait()
		time.Sleep(5 * time.Second)
		want(a, "a change before the request", "apps/delta", 0, "UP_1_")
		time.Sleep(5 * time.Second)
		time.AfterFunc(time.Second, func() { register("two") })
		time.AfterFunc(time.Second+holdSettle/2, func() { register("three") })
		want(a, "changes during the request", "apps/delta", time.Second+holdSettle, "UP_3_")
		want(newClient(), "another connection", "apps/delta", 0, "UP_3_")

		time.Sleep(5 * time.Second)
		a.http.Timeout = time.Second
		if resp, err := a.http.Get(a.base + "apps/delta"); err == nil {
			_ = resp.Body.Close()
			t.Error("a client that waits for a second is answered")
		}
		a.http.Timeout = 0
		want(a, "it has another connection", "apps/delta", 0, "UP_3_")
		time.Sleep(5 * time.Second)
		want(a, "it asks again", "apps/delta", 0, "UP_3_")
		time.Sleep(time.Minute)
		want(a, "and again", "apps/delta", 0, "UP_3_")
	})
}

// TestImpatient: addresses are bounded, and beyond it nobody has to wait.
func TestImpatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i impatient
		at := netip.MustParseAddr("10.0.0.0")
		for range maxImpatient + 1 {
			i.add(at)
			at = at.Next()
		}
		if len(i.until) != maxImpatient || !i.has(netip.MustParseAddr("192.0.2.1")) {
			t.Errorf("%d addresses are remembered", len(i.until))
		}
		time.Sleep(holdAgain + 1)
		i.add(at)
		if len(i.until) != 1 || i.has(netip.MustParseAddr("192.0.2.1")) || !i.has(at) {
			t.Errorf("%d addresses are remembered an hour later", len(i.until))
		}
	})
}

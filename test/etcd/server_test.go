package etcd_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// timeout bounds what should be instant; it matters to a failing test only.
const timeout = 2 * time.Minute

// member is one embedded server.
type member struct {
	config *embed.Config
	mu     sync.Mutex
	server *embed.Etcd
}

// freeURL reserves a port of the loopback interface for a moment.
func freeURL(t testing.TB) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// newMember prepares a server. Settings change its configuration.
func newMember(t testing.TB, name, dir string, settings ...func(*embed.Config)) *member {
	t.Helper()
	c := embed.NewConfig()
	c.Name, c.Dir = name, dir
	c.Logger = "zap"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{freeURL(t)}, []url.URL{freeURL(t)}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(name)
	c.UnsafeNoFsync = true // tests of durability kill processes, not the machine
	for _, set := range settings {
		set(c)
	}
	return &member{config: c}
}

// quick makes a server of one member elect itself at once.
func quick(c *embed.Config) { c.TickMs, c.ElectionMs = 10, 100 }

func (m *member) start(t testing.TB) {
	t.Helper()
	server, err := embed.StartEtcd(m.config)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.server = server
	m.mu.Unlock()
	t.Cleanup(m.stop)
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		t.Fatal(err)
	case <-time.After(timeout):
		t.Fatalf("etcd is not ready after %s", timeout)
	}
}

// stop is idempotent.
func (m *member) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server != nil {
		m.server.Close()
		m.server = nil
	}
}

func (m *member) endpoint() string { return m.config.ListenClientUrls[0].Host }

// startMember starts a server of its own for a test.
func startMember(t testing.TB, settings ...func(*embed.Config)) *member {
	t.Helper()
	m := newMember(t, "one", t.TempDir(), append([]func(*embed.Config){quick}, settings...)...)
	m.start(t)
	return m
}

var shared struct {
	once   sync.Once
	member *member
	states atomic.Int64
}

// shareMember returns a server that all tests share.
func shareMember(t testing.TB) *member {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "proxima-etcd-")
		if err != nil {
			t.Fatal(err)
		}
		shared.member = newMember(t, "shared", dir, func(c *embed.Config) { c.QuotaBackendBytes = 4 << 30 })
		server, err := embed.StartEtcd(shared.member.config)
		if err != nil {
			t.Fatal(err)
		}
		shared.member.server = server
		<-server.Server.ReadyNotify()
	})
	return shared.member
}

func stopShared() {
	if shared.member != nil {
		shared.member.stop()
		_ = os.RemoveAll(shared.member.config.Dir)
	}
}

// stateURL names a new state on servers.
func stateURL(members ...*member) string {
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, m.endpoint())
	}
	return fmt.Sprintf("etcd://%s?prefix=/state%d/", strings.Join(hosts, ","), shared.states.Add(1))
}

// prefixOf is the prefix of a state.
func prefixOf(t testing.TB, stateURL string) string {
	t.Helper()
	u, err := url.Parse(stateURL)
	if err != nil {
		// Several hosts are no URL of net/url.
		_, query, _ := strings.Cut(stateURL, "?")
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		return values.Get("prefix")
	}
	return u.Query().Get("prefix")
}

// connect returns a client of etcd, to look and to interfere.
func connect(t testing.TB, m *member) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.endpoint()}, DialTimeout: timeout, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func background(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

package registries

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

const nodesQuota = 1 << 20

func newNodeStore(t *testing.T) store.Store {
	t.Helper()
	s := memory.New(memory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// serveNodes serves a plane whose nodes are in a store.
func serveNodes(t *testing.T, p *registrytest.Plane, s store.Store, address string) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), p.ServeUntil(l, zookeeper.New(p.Core).WithNodes(s, nodesQuota).Serve)
}

// Nodes of every kind, with their versions, sequence numbers, watches and transactions.
func TestZooKeeperNodes(t *testing.T) {
	p := registrytest.New(t)
	address, _ := serveNodes(t, p, newNodeStore(t), "127.0.0.1:0")
	c, _ := connectZooKeeper(t, 10*time.Second, address)
	world := zk.WorldACL(zk.PermAll)
	if _, err := c.Create("/config/app", nil, 0, world); !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("create without a parent: %v", err)
	}
	if _, err := c.Create("/config", []byte("a"), 0, world); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create("/config", nil, 0, world); !errors.Is(err, zk.ErrNodeExists) {
		t.Errorf("create again: %v", err)
	}
	_, _, dataChanged, err := c.GetW("/config")
	if err != nil {
		t.Fatal(err)
	}
	_, _, childrenChanged, err := c.ChildrenW("/config")
	if err != nil {
		t.Fatal(err)
	}
	stat, err := c.Set("/config", []byte{0, 255, 1}, 0)
	if err != nil || stat.Version != 1 || stat.Mzxid <= stat.Czxid {
		t.Fatalf("set: %+v, %v", stat, err)
	}
	untilEvent(t, dataChanged, zk.EventNodeDataChanged, "/config")
	if _, err := c.Set("/config", nil, 0); !errors.Is(err, zk.ErrBadVersion) {
		t.Errorf("set of an old version: %v", err)
	}
	for i, want := range []string{"/config/a-0000000000", "/config/a-0000000001"} {
		flags := int32(zk.FlagSequence)
		if i == 1 {
			flags |= zk.FlagEphemeral
		}
		if got, err := c.Create("/config/a-", nil, flags, world); got != want || err != nil {
			t.Fatalf("sequential: %s, %v", got, err)
		}
	}
	untilEvent(t, childrenChanged, zk.EventNodeChildrenChanged, "/config")
	if _, err := c.Create("/config/a-0000000001/x", nil, 0, world); !errors.Is(err, zk.ErrNoChildrenForEphemerals) {
		t.Errorf("a child of an ephemeral node: %v", err)
	}
	if err := c.Delete("/config", -1); !errors.Is(err, zk.ErrNotEmpty) {
		t.Errorf("delete with children: %v", err)
	}
	if err := c.Delete("/config/a-0000000000", -1); err != nil {
		t.Error(err)
	}
	data, stat, err := c.Get("/config")
	if err != nil || string(data) != "\x00\xff\x01" || stat.Version != 1 || stat.Cversion != 3 || stat.NumChildren != 1 || stat.Pzxid <= stat.Mzxid {
		t.Errorf("%q, %+v, %v", data, stat, err)
	}

	// All or none.
	_, err = c.Multi(&zk.CreateRequest{Path: "/config/m", Acl: world}, &zk.CheckVersionRequest{Path: "/config", Version: 7})
	if !errors.Is(err, zk.ErrBadVersion) {
		t.Errorf("multi: %v", err)
	}
	if ok, _, err := c.Exists("/config/m"); ok || err != nil {
		t.Errorf("after it failed: %t, %v", ok, err)
	}
	results, err := c.Multi(&zk.CreateRequest{Path: "/config/m", Acl: world}, &zk.SetDataRequest{Path: "/config/m", Data: []byte("x"), Version: 0},
		&zk.CheckVersionRequest{Path: "/config", Version: 1}, &zk.CreateRequest{Path: "/services/a/10.0.0.1:80", Acl: world, Flags: zk.FlagEphemeral})
	if err != nil || len(results) != 4 || results[3].String != "/services/a/10.0.0.1:80" {
		t.Errorf("multi: %+v, %v", results, err)
	}
	if data, stat, err := c.Get("/config/m"); string(data) != "x" || err != nil || stat.Version != 1 {
		t.Errorf("after it: %q, %+v, %v", data, stat, err)
	}

	// Up to the quota.
	if _, err := c.Create("/big", []byte(strings.Repeat("x", 600<<10)), 0, world); err != nil {
		t.Error(err)
	}
	if _, err := c.Create("/bigger", []byte(strings.Repeat("x", 600<<10)), 0, world); err == nil {
		t.Error("the quota is not kept")
	}
	if err := c.Delete("/big", -1); err != nil {
		t.Error(err)
	}
	if _, err := c.Create("/nowhere/services", nil, 0, world); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("services of a namespace that is missing: %v", err)
	}
	if n := p.Status()[0].Nodes; n == nil || n.Count != 3 || n.Bytes < 3*256 || n.Quota != nodesQuota {
		t.Errorf("status %+v", n)
	}
}

// The lock of the client's library at two instances of a control plane: one holds it at a time.
func TestZooKeeperLock(t *testing.T) {
	p, s := registrytest.New(t), newNodeStore(t)
	first, _ := serveNodes(t, p, s, "127.0.0.1:0")
	second, _ := serveNodes(t, registrytest.NewNamed(t, "cp-2"), s, "127.0.0.1:0")
	world := zk.WorldACL(zk.PermAll)
	holders, counter := make(chan struct{}, 1), 0
	done := make(chan error)
	const clients, rounds = 4, 5
	for n := range clients {
		c, _ := connectZooKeeper(t, 10*time.Second, []string{first, second}[n%2])
		go func() {
			lock := zk.NewLock(c, "/locks/orders", world)
			for range rounds {
				if err := lock.Lock(); err != nil {
					done <- err
					return
				}
				select {
				case holders <- struct{}{}:
				default:
					done <- errors.New("two hold the lock")
					return
				}
				counter++ // the race detector would see two
				<-holders
				if err := lock.Unlock(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if counter != clients*rounds {
		t.Errorf("%d times", counter)
	}
}

// candidate makes an ephemeral sequential node, and returns it.
func candidate(t *testing.T, c *zk.Conn) string {
	t.Helper()
	path, err := c.CreateProtectedEphemeralSequential("/election/n-", nil, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}

// An election by sequential ephemerals over a restart, and by clients of two instances: a leader that is cut off is followed by the
// next one, and hears at another instance that its session has ended.
func TestZooKeeperElection(t *testing.T) {
	p, s := registrytest.New(t), newNodeStore(t)
	first, stop := serveNodes(t, p, s, "127.0.0.1:0")
	second, _ := serveNodes(t, registrytest.NewNamed(t, "cp-2"), s, "127.0.0.1:0")
	way := newWay(t, first)
	leader, leaderEvents, err := zk.Connect([]string{way.address}, 4*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Close()
	untilState(t, leaderEvents, zk.StateHasSession)
	next, _ := connectZooKeeper(t, 10*time.Second, second)
	if _, err := leader.Create("/election", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	leads, follows := candidate(t, leader), candidate(t, next)
	if leads[len(leads)-10:] >= follows[len(follows)-10:] {
		t.Fatalf("%s before %s", leads, follows)
	}
	id := leader.SessionID()
	_, _, gone, err := next.ExistsW("/election/" + leads)
	if err != nil {
		t.Fatal(err)
	}

	stop() // of the leader's instance, which starts again
	untilState(t, leaderEvents, zk.StateDisconnected)
	_, stop = serveNodes(t, p, s, first)
	untilState(t, leaderEvents, zk.StateHasSession)
	if leader.SessionID() != id {
		t.Fatal("the session did not outlive the restart")
	}
	if names, _, err := leader.Children("/election"); err != nil || !slices.Contains(names, leads) || !slices.Contains(names, follows) {
		t.Fatalf("after the restart: %v, %v", names, err)
	}
	way.cut(true)
	untilEvent(t, gone, zk.EventNodeDeleted, "/election/"+leads)
	stop()
	// It comes back to another instance, which has never had the session.
	serveNodes(t, registrytest.NewNamed(t, "cp-3"), s, first)
	way.cut(false)
	untilState(t, leaderEvents, zk.StateExpired)
	untilState(t, leaderEvents, zk.StateHasSession)
	if leader.SessionID() == id {
		t.Error("a session that has ended goes on")
	}
}

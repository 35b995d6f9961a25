package registries

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"

	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
	"github.com/proxima-mesh/proxima/internal/registry/zookeeper"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func connectZooKeeper(t *testing.T, timeout time.Duration, address string) (*zk.Conn, <-chan zk.Event) {
	t.Helper()
	c, events, err := zk.Connect([]string{address}, timeout, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	untilState(t, events, zk.StateHasSession)
	return c, events
}

func untilState(t *testing.T, events <-chan zk.Event, want zk.State) {
	t.Helper()
	for end := time.After(20 * time.Second); ; {
		select {
		case e := <-events:
			if e.Type == zk.EventSession && e.State == want {
				return
			}
		case <-end:
			t.Fatalf("the client was not in state %s within 20 s", want)
		}
	}
}

func untilEvent(t *testing.T, events <-chan zk.Event, kind zk.EventType, path string) {
	t.Helper()
	select {
	case e := <-events:
		if e.Type != kind || e.Path != path || e.Err != nil {
			t.Fatalf("event %+v, want %s of %s", e, kind, path)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s of %s within 20 s", kind, path)
	}
}

const curatorOrders = `{"name":"orders","id":"10.1.0.7:20001","address":"10.1.0.7","port":20001,"payload":{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance",` +
	`"id":"10.1.0.7:20001","name":"orders","metadata":{"dubbo.metadata.revision":"1"}},"registrationTimeUTC":1}`

// The client of Go, as it is: a provider and a consumer, a restart of the control plane between them, and the end of
// a session.
func TestZooKeeper(t *testing.T) {
	p := registrytest.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	stop := p.ServeUntil(l, zookeeper.New(p.Core).Serve)
	provider, providerEvents := connectZooKeeper(t, 20*time.Second, address)
	consumer, consumerEvents := connectZooKeeper(t, 20*time.Second, address)
	world := zk.WorldACL(zk.PermAll)
	for _, parent := range []string{"/services", "/services/orders"} {
		if _, err := provider.Create(parent, nil, 0, world); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatal(err)
		}
	}
	const path = "/services/orders/10.1.0.7:20001"
	names, _, changed, err := consumer.ChildrenW("/services/orders")
	if err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
	if got, err := provider.Create(path, []byte(curatorOrders), zk.FlagEphemeral, world); got != path || err != nil {
		t.Fatal(got, err)
	}
	untilEvent(t, changed, zk.EventNodeChildrenChanged, "/services/orders")
	names, _, changed, err = consumer.ChildrenW("/services/orders")
	if err != nil || !slices.Equal(names, []string{"10.1.0.7:20001"}) {
		t.Fatal(names, err)
	}
	data, stat, err := consumer.Get(path)
	if err != nil || string(data) != curatorOrders || stat.EphemeralOwner != provider.SessionID() || stat.Version != 0 {
		t.Fatalf("data %q, %+v, %v", data, stat, err)
	}
	if _, err := provider.Set(path, []byte(curatorOrders), 7); !errors.Is(err, zk.ErrBadVersion) {
		t.Errorf("set of another version: %v", err)
	}
	if err := provider.Delete("/services/orders", -1); !errors.Is(err, zk.ErrNotEmpty) {
		t.Errorf("delete a parent: %v", err)
	}
	if _, err := provider.Create("/locks", nil, 0, world); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("create a path that is not mapped: %v", err)
	}
	if acl, _, err := provider.GetACL(path); err != nil || len(acl) != 1 || acl[0].Scheme != "world" {
		t.Errorf("acl %v, %v", acl, err)
	}
	if _, err := consumer.Sync(path); err != nil {
		t.Error(err)
	}

	// The clients come back to the same sessions, with their watches and nodes.
	ids := []int64{provider.SessionID(), consumer.SessionID()}
	stop()
	untilState(t, providerEvents, zk.StateDisconnected)
	untilState(t, consumerEvents, zk.StateDisconnected)
	p.Restart()
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	p.ServeOn(l, zookeeper.New(p.Core).Serve)
	untilState(t, providerEvents, zk.StateHasSession)
	untilState(t, consumerEvents, zk.StateHasSession)
	if got := []int64{provider.SessionID(), consumer.SessionID()}; !slices.Equal(got, ids) {
		t.Errorf("sessions %v are %v after the restart", ids, got)
	}
	if names, _, err = consumer.Children("/services/orders"); err != nil || len(names) != 1 {
		t.Errorf("after the restart: %v, %v", names, err)
	}
	select {
	case e := <-changed: // that of a parent is called by the way back
		if e.Type != zk.EventNodeChildrenChanged {
			t.Errorf("event %+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch was lost")
	}
	_, _, gone, err := consumer.ExistsW(path)
	if err != nil {
		t.Fatal(err)
	}
	provider.Close()
	untilEvent(t, gone, zk.EventNodeDeleted, path)
}

// Operations that are applied together, or not.
func TestZooKeeperMulti(t *testing.T) {
	p := registrytest.New(t)
	c, _ := connectZooKeeper(t, 10*time.Second, p.Serve(zookeeper.New(p.Core).Serve))
	world := zk.WorldACL(zk.PermAll)
	create := func(path string) *zk.CreateRequest {
		return &zk.CreateRequest{Path: path, Acl: world, Flags: zk.FlagEphemeral}
	}
	if _, err := c.Multi(create("/services/a/10.0.0.1:80"), create("/elsewhere")); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("multi with a path that is not mapped: %v", err)
	}
	if names, _, err := c.Children("/services/a"); err != nil || len(names) != 0 {
		t.Errorf("after it failed: %v, %v", names, err)
	}
	results, err := c.Multi(create("/services/a/10.0.0.1:80"), create("/services/a/10.0.0.2:80"),
		&zk.CheckVersionRequest{Path: "/services/a/10.0.0.1:80", Version: 0}, &zk.DeleteRequest{Path: "/services/a/10.0.0.1:80", Version: -1})
	if err != nil || len(results) != 4 || results[1].String != "/services/a/10.0.0.2:80" {
		t.Errorf("multi: %+v, %v", results, err)
	}
	if names, _, err := c.Children("/services/a"); err != nil || !slices.Equal(names, []string{"10.0.0.2:80"}) {
		t.Errorf("after it: %v, %v", names, err)
	}
}

// A client whose network is cut: its session ends, it is told so, and begins another.
func TestZooKeeperExpiry(t *testing.T) {
	p := registrytest.New(t)
	address := p.Serve(zookeeper.New(p.Core).Serve)
	way := newWay(t, address)
	c, events := connectZooKeeper(t, 4*time.Second, way.address)
	before := c.SessionID()
	if _, err := c.Create("/services/a/10.0.0.1:80", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	way.cut(true)
	p.Eventually("the instance is gone", func() bool { return len(p.Dataplanes()) == 0 })
	way.cut(false)
	untilState(t, events, zk.StateExpired)
	untilState(t, events, zk.StateHasSession)
	if c.SessionID() == before {
		t.Error("the session that has ended goes on")
	}
}

// way is a proxy that can be cut.
type way struct {
	address string
	state   chan wayState
}

type wayState struct {
	cut   bool
	conns []net.Conn
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w := &way{address: l.Addr().String(), state: make(chan wayState, 1)}
	w.state <- wayState{}
	t.Cleanup(func() { w.cut(true) })
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			s := <-w.state
			if err != nil || s.cut {
				_ = a.Close()
				if b != nil {
					_ = b.Close()
				}
			} else {
				s.conns = append(s.conns, a, b)
				for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
					go func() {
						buffer := make([]byte, 4096)
						for {
							n, err := pair[0].Read(buffer)
							if err != nil {
								_ = pair[1].Close()
								return
							}
							if _, err := pair[1].Write(buffer[:n]); err != nil {
								return
							}
						}
					}()
				}
			}
			w.state <- s
		}
	}()
	return w
}

func (w *way) cut(cut bool) {
	s := <-w.state
	s.cut = cut
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	w.state <- s
}

// What is registered by one protocol is seen by the other.
func TestZooKeeperAndNacos(t *testing.T) {
	p := registrytest.New(t)
	n := naming(t, serveNacos(t, p))
	defer n.CloseClient()
	c, _ := connectZooKeeper(t, 10*time.Second, p.Serve(zookeeper.New(p.Core).Serve))
	const iface = "org.x.Orders"
	rpc := vo.RegisterInstanceParam{
		ServiceName: "providers:" + iface + ":1.0.0:", Ip: "10.1.0.8", Port: 20880, Weight: 1, Enable: true, Healthy: true, Ephemeral: true,
		Metadata: map[string]string{"protocol": "tri", "path": iface, "version": "1.0.0"},
	}
	if ok, err := n.RegisterInstance(rpc); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var names []string
	p.Eventually("the provider of Nacos is a node", func() bool {
		names, _, _ = c.Children("/dubbo/" + iface + "/providers")
		return len(names) == 1
	})
	if got, _ := url.QueryUnescape(names[0]); got != "tri://10.1.0.8:20880/org.x.Orders?version=1.0.0" {
		t.Errorf("the node is %s", got)
	}
	mine := url.QueryEscape("dubbo://10.1.0.7:20880/" + iface + "?version=1.0.0&application=orders")
	if _, err := c.Create("/dubbo/"+iface+"/providers/"+mine, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	p.Eventually("Nacos has both", func() bool {
		list, err := n.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: rpc.ServiceName})
		if err != nil || len(list) != 2 {
			return false
		}
		for _, in := range list {
			if in.Ip == "10.1.0.7" {
				return in.Metadata["protocol"] == "dubbo" && in.Metadata["application"] == "orders"
			}
		}
		return false
	})
	if _, err := c.Create("/services/orders/10.1.0.7:20001", []byte(curatorOrders), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	p.Eventually("Nacos has the application", func() bool {
		list, err := n.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: "orders"})
		return err == nil && ports(list) == "20001" && strings.Contains(list[0].Metadata["dubbo.metadata.revision"], "1")
	})
}

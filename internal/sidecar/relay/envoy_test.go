package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

const nodeID = "default/shop/web-1"

// bench is a relay with the credentials for it and for control planes.
type bench struct {
	t              testing.TB
	dir            string
	server, client *tls.Config
}

func newBench(t testing.TB) *bench {
	t.Helper()
	ca := catest.New(t, "ca", nil, nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	leaf := func(name string) tls.Certificate {
		c := catest.New(t, name, ca, func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage, c.IPAddresses = false, x509.KeyUsageDigitalSignature, []net.IP{net.IPv4(127, 0, 0, 1)}
		})
		return tls.Certificate{Certificate: [][]byte{c.Cert.Raw}, PrivateKey: c.Key}
	}
	return &bench{
		t: t, dir: envoytest.Dir(t),
		server: &tls.Config{Certificates: []tls.Certificate{leaf("server")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert},
		client: &tls.Config{Certificates: []tls.Certificate{leaf("client")}, RootCAs: pool},
	}
}

// relay runs one of these servers until stop.
func (b *bench) relay(servers ...string) (r *Relay, stop func()) {
	b.t.Helper()
	r = New(Config{
		Node: nodeID, Servers: servers, File: filepath.Join(b.dir, "state"),
		TLS: func(host string) (*tls.Config, error) {
			c := b.client.Clone()
			c.ServerName = host
			return c, nil
		},
		Logger: slog.New(slog.NewTextHandler(testWriter{b.t}, nil)),
	})
	socket := filepath.Join(b.dir, "xds.sock")
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := r.Run(ctx, l); err != nil {
			b.t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	b.t.Cleanup(stop)
	return r, stop
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// envoy below the relay.
func (b *bench) envoy() *envoytest.Proxy {
	b.t.Helper()
	text, err := bootstrap.Envoy(bootstrap.Config{
		Node:   bootstrap.Node{ID: nodeID, Cluster: "shop/web", Site: "local"},
		Socket: filepath.Join(b.dir, "xds.sock"), AdminSocket: envoytest.AdminSocket(b.dir),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return envoytest.Start(b.t, b.dir, string(text))
}

func freeAddress(t *testing.T) string { return fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)) }

// eventually asks until an address answers what is wanted.
func eventually(t *testing.T, address, want string) {
	t.Helper()
	testkit.Eventually(t, address+" answers "+want, func() bool { return adstest.Ask(address, 3*time.Second) == want })
}

// TestEverythingDead: control plane, relay and Envoy are killed; the last two, started again, serve
// what they served, also what was asked for on demand.
func TestEverythingDead(t *testing.T) {
	b := newBench(t)
	eager, vip := freeAddress(t), freeAddress(t)
	cp := adstest.New(t)
	cp.Resolve = func(typeURL, name string) proto.Message {
		if typeURL == wire.Cluster && name == "vip|"+vip {
			return adstest.Cluster(name, "shop/web:80")
		}
		return nil
	}
	cp.Set(wire.Endpoint, "shop/web:80", "1", adstest.Endpoints(t, "shop/web:80", adstest.Echo(t, "web-1")))
	cp.Set(wire.Cluster, "shop/web:80", "1", adstest.Cluster("shop/web:80", "shop/web:80"))
	cp.Set(wire.Listener, "out|eager", "1", adstest.Listener(t, "out|eager", eager, "shop/web:80"))
	cp.Set(wire.Listener, "out-virtual", "1", adstest.OnDemand(t, "out-virtual", vip))
	address, stopServer := cp.Start("127.0.0.1:0", b.server)

	_, stop := b.relay(address)
	envoy := b.envoy()
	envoy.WaitReady()
	eventually(t, eager, "web-1")
	// The second cluster of a service whose endpoints are here: at once, or Envoy would reset the
	// connection after 2 s.
	begin := time.Now()
	if got := adstest.Ask(vip, 5*time.Second); got != "web-1" {
		t.Errorf("on demand: %q after %s", got, time.Since(begin))
	}
	stopServer()
	envoy.Kill()
	stop()

	begin = time.Now()
	b.relay(address)
	envoy = b.envoy()
	envoy.WaitReady()
	t.Logf("serving after %s", time.Since(begin))
	for _, address := range []string{eager, vip} {
		if got := adstest.Ask(address, 5*time.Second); got != "web-1" {
			t.Errorf("%s without a control plane: %q", address, got)
		}
	}
}

// TestAnotherInstance: the second address of the control plane takes over. Only what changed
// comes, traffic goes on, and load reports arrive there with a small Node, once.
func TestAnotherInstance(t *testing.T) {
	b := newBench(t)
	address := freeAddress(t)
	first := adstest.New(t)
	for i := range 10 {
		name := fmt.Sprint("shop/s", i, ":80")
		first.Set(wire.Endpoint, name, "1", adstest.Endpoints(t, name, adstest.Echo(t, "one")))
		first.Set(wire.Cluster, name, "1", adstest.Cluster(name, name))
	}
	first.Set(wire.Listener, "out", "1", adstest.Listener(t, "out", address, "shop/s0:80"))
	a, stopFirst := first.Start("127.0.0.1:0", b.server)
	second := first.Clone()
	second.Set(wire.Endpoint, "shop/s0:80", "2", adstest.Endpoints(t, "shop/s0:80", adstest.Echo(t, "two")))
	other := freeAddress(t)
	r, _ := b.relay(a, other)
	envoy := b.envoy()
	envoy.WaitReady()
	eventually(t, address, "one")
	first.Await(t.Context(), "two load reports", func(s *adstest.Server) bool { return len(s.Loads) >= 2 })
	first.Read(func(s *adstest.Server) {
		if n := s.Loads[0].Node; n.GetId() != nodeID || len(n.Extensions) > 0 || s.Loads[1].Node != nil {
			t.Errorf("Nodes of load reports: %d bytes, %d bytes", proto.Size(n), proto.Size(s.Loads[1].Node))
		}
		if n := s.Requests[0].Node; n.GetId() != nodeID || len(n.Extensions) > 0 || n.UserAgentName != "envoy" {
			t.Errorf("Node of discovery: %v", n)
		}
	})
	before := envoy.Stats("cluster_manager.cds.update_success|listener_manager.listener_modified")

	second.Start(other, b.server)
	stopFirst()
	eventually(t, address, "two")
	second.Await(t.Context(), "load reports", func(s *adstest.Server) bool { return len(s.Loads) >= 2 })
	second.Read(func(s *adstest.Server) {
		if s.SentResources != 1 {
			t.Errorf("%d resources were sent, want the one that changed", s.SentResources)
		}
	})
	after := envoy.Stats("cluster_manager.cds.update_success|listener_manager.listener_modified")
	for name, value := range before {
		if after[name] != value {
			t.Errorf("%s was %v and is %v: empty answers were passed on", name, value, after[name])
		}
	}
	if s := r.Status(); !s.Upstream.Connected || s.Upstream.Server != other || s.Envoys != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRefusedFromDisk (sixth trap): one of the clusters on disk is malformed, so that Envoy refuses
// all of them at once. The others are in use without a control plane; the control plane's version
// of it comes when there is one.
func TestRefusedFromDisk(t *testing.T) {
	b := newBench(t)
	address, good := freeAddress(t), adstest.New(t)
	bad := adstest.Cluster("c3", "c3")
	bad.ConnectTimeout = durationpb.New(-time.Second) // a violation of its constraints
	core := NewCore()
	id := core.Open()
	core.Request(id, wire.Request{TypeURL: wire.Cluster})
	core.Request(id, wire.Request{TypeURL: wire.Listener})
	accept := func(typeURL string, all ...wire.Resource) {
		t.Helper()
		if err := core.Received(wire.Response{TypeURL: typeURL, Nonce: "n", Resources: all}); err != nil {
			t.Fatal(err)
		}
		for _, r := range core.Downstream(id) {
			core.Request(id, wire.Request{TypeURL: typeURL, Nonce: r.Nonce})
		}
	}
	var clusters []wire.Resource
	for i := range 8 {
		name := fmt.Sprint("c", i)
		var c *clusterv3.Cluster
		if c = adstest.Cluster(name, name); i == 3 {
			good.Set(wire.Cluster, name, "2", c)
			c = bad
		} else {
			good.Set(wire.Cluster, name, "1", c)
		}
		good.Set(wire.Endpoint, name, "1", adstest.Endpoints(t, name, adstest.Echo(t, name)))
		clusters = append(clusters, wire.NewResource(wire.Cluster, name, "1", encode(t, c)))
		core.Request(id, wire.Request{TypeURL: wire.Endpoint, Subscribe: []string{name}})
		accept(wire.Endpoint, wire.NewResource(wire.Endpoint, name, "1", encode(t, adstest.Endpoints(t, name, adstest.Echo(t, name)))))
	}
	accept(wire.Cluster, clusters...)
	l := adstest.Listener(t, "out", address, "c7")
	good.Set(wire.Listener, "out", "1", l)
	accept(wire.Listener, wire.NewResource(wire.Listener, "out", "1", encode(t, l)))
	if err := save(filepath.Join(b.dir, "state"), core.Encode(nodeID)); err != nil {
		t.Fatal(err)
	}

	server := freeAddress(t)
	r, _ := b.relay(server)
	envoy := b.envoy()
	envoy.WaitReady()
	eventually(t, address, "c7")
	active := func() []string {
		var names []string
		_, text, _ := envoy.Admin("GET", "/clusters") // an error shows as no clusters
		for line := range strings.Lines(text) {
			if name, rest, _ := strings.Cut(line, "::"); strings.HasPrefix(rest, "default_priority::max_connections") && name != "xds" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	envoy.Await("all but c3 are active", func() bool {
		return slices.Equal(active(), []string{"c0", "c1", "c2", "c4", "c5", "c6", "c7"})
	})
	good.Start(server, b.server)
	envoy.Await("c3 is active", func() bool { return slices.Contains(active(), "c3") })
	if s := r.Status(); s.Forgotten != 1 || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
	good.Read(func(s *adstest.Server) {
		if s.SentResources != 1 {
			t.Errorf("the control plane sent %d resources, want the one that was refused", s.SentResources)
		}
	})
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	out, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestOtherNode: the socket is for the proxy of this workload alone.
func TestOtherNode(t *testing.T) {
	r := New(Config{Node: nodeID})
	node := []byte{0x0a, 3, 'x', '/', 'y'}
	if err := r.announce(node); err == nil || !strings.Contains(err.Error(), nodeID) {
		t.Errorf("%v", err)
	}
}

package xds_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/proxyproto"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	proxystart "github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// gatewayRig is the Envoy of an ingress, an endpoint that ends TLS, and what Envoy hands over to.
type gatewayRig struct {
	t        *testing.T
	plane    *plane
	envoy    *envoytest.Proxy
	at       string
	endpoint int32
	handed   chan string // clients of what is handed over
}

func newGatewayRig(t *testing.T) *gatewayRig {
	t.Helper()
	dir := envoytest.Dir(t)
	r := &gatewayRig{t: t, at: fmt.Sprint("127.0.0.1:", freePort(t)), handed: make(chan string, 16)}
	r.plane = newPlane(t, &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i1"}, Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: "192.0.2.1", Port: 1},
	})
	socket, engine := filepath.Join(dir, "xds.sock"), filepath.Join(dir, "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(deltastream.ServerOptions()...)
	r.plane.server.Register(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	r.serve("unix", engine, func(c net.Conn) {
		h, err := proxyproto.Read(c)
		r.handed <- fmt.Sprint(h.Source, err)
	})
	cert, key := r.plane.identity(dir, "shop", "web")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{frame.ProtocolProxy}, MinVersion: tls.VersionTLS13}
	r.endpoint = int32(r.serve("tcp", "127.0.0.1:0", func(c net.Conn) { s := tls.Server(c, config); _, _ = io.Copy(s, s) }).(*net.TCPAddr).Port)
	text, err := proxystart.Envoy(proxystart.Config{
		Node: proxystart.Node{ID: proxystart.GatewayID("ingress", "i1"), Cluster: "gateway/ingress"}, Socket: socket,
		AdminSocket: envoytest.AdminSocket(dir), Gateway: &proxystart.Gateway{Address: r.at, Socket: engine},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.envoy = envoytest.Start(t, dir, string(text))
	r.envoy.WaitReady()
	seen := r.plane.seen
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if want := insight.Gateway(insight.OfIngress, "i1"); !slices.Contains(seen.connected, want) {
		t.Errorf("the insight of %s is not told of its stream: %v", want, seen.connected)
	}
	return r
}

func (r *gatewayRig) serve(network, address string, handle func(net.Conn)) net.Addr {
	r.t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return l.Addr()
}

// export a Service at the endpoint.
func (r *gatewayRig) export(name, ip string) {
	r.plane.seed(exported(name, ip, r.endpoint)...)
}

func exported(name, ip string, endpoint int32) []resource.Object {
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	e.Status.Available = &mcs.AvailableService{
		Mesh: "default", Type: mcs.ClusterSetIP, Instances: 1, ExportTime: metav1.NewTime(time.Unix(100, 0)), Ports: []mcs.ServicePort{{Port: 80}},
		Proxied: true, ServiceAccounts: []string{"web"},
	}
	return []resource.Object{service(name, ip, port("web", 80, "")), slice(name, "web", endpoint, "a", name+"-1=127.0.0.1"), e}
}

func serverName(t *testing.T, name string) string {
	t.Helper()
	sni, err := mesh.SNI(mesh.Service{Mesh: "default", Namespace: "shop", Name: name, Port: "80"})
	if err != nil {
		t.Fatal(err)
	}
	return sni
}

// dial the gateway; a connection has passed if TLS is begun with the endpoint.
func (r *gatewayRig) dial(sni string, protocols ...string) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	return tls.DialWithDialer(d, "tcp", r.at, &tls.Config{InsecureSkipVerify: true, ServerName: sni, NextProtos: protocols})
}

func echoes(c *tls.Conn) error {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("got %q", line)
	}
	return err
}

// TestGatewayEnvoy: what the Envoy of an ingress does by server name and protocol, and what one more
// exported Service costs among 1,000.
func TestGatewayEnvoy(t *testing.T) {
	r := newGatewayRig(t)
	web := serverName(t, "web")
	if _, err := r.dial(web, frame.ProtocolProxy); err == nil {
		t.Fatal("a Service that is not exported is served")
	}
	r.export("web", "10.96.0.30")
	var held *tls.Conn
	r.envoy.Await("TLS passes to the endpoint", func() bool {
		var err error
		held, err = r.dial(web, frame.ProtocolProxy)
		return err == nil
	})
	defer held.Close()
	if err := echoes(held); err != nil {
		t.Fatal(err)
	}
	for name, protocols := range map[string][]string{"no protocol": nil, "another protocol": {"h2"}} {
		if c, err := r.dial(web, protocols...); err == nil {
			t.Errorf("%s passes", name)
			_ = c.Close()
		}
	}
	for _, protocol := range []string{frame.ProtocolFrames, frame.ProtocolTunnel} {
		raw, err := net.Dial("tcp", r.at)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = tls.Client(raw, &tls.Config{InsecureSkipVerify: true, ServerName: "any", NextProtos: []string{protocol}}).Handshake() // nobody answers
			_ = raw.Close()
		}()
		if got, want := <-r.handed, raw.LocalAddr().(*net.TCPAddr).AddrPort().String()+" <nil>"; got != want {
			t.Errorf("%s is handed over as of %s, want %s", protocol, got, want)
		}
	}

	var many []resource.Object
	for i := range 1000 {
		many = append(many, exported(fmt.Sprint("s", i), netip.AddrFrom4([4]byte{10, 96, byte(1 + i/250), byte(1 + i%250)}).String(), r.endpoint)...)
	}
	r.plane.seed(many...)
	r.envoy.Await("1,000 clusters", func() bool {
		return r.envoy.Stats("cluster_manager.active_clusters")["cluster_manager.active_clusters"] > 1000
	})
	begin := time.Now()
	r.export("new", "10.96.100.1")
	r.envoy.Await("one more Service is served", func() bool {
		c, err := r.dial(serverName(t, "new"), frame.ProtocolProxy)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	t.Logf("1,000 Services: one more is served after %s; Envoy has %s", time.Since(begin).Round(100*time.Microsecond), resident(t, r.envoy.PID()))

	if err := r.plane.client.Delete(t.Context(), kind.ServiceExport, resource.Key{Namespace: "shop", Name: "web"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	r.envoy.Await("what is exported no more is closed at once", func() bool {
		begin := time.Now()
		_, err := r.dial(web, frame.ProtocolProxy)
		return err != nil && time.Since(begin) < time.Second
	})
	if err := echoes(held); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	r.plane.seen.none(t)
}

// resident memory of a process.
func resident(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// TestClientID: the ID of a gateway is no Dataplane's, and what is not the ID of either is refused.
func TestClientID(t *testing.T) {
	for _, id := range []string{"default/shop/web-1", "*/ingress/i1", "*/egress/e1", "default/ingress/i1"} {
		c, err := xds.ParseClientID(id)
		if err != nil || c.String() != id {
			t.Errorf("%s: %+v, %v", id, c, err)
		}
		if gateway := strings.HasPrefix(id, "*"); gateway != (c.Gateway != build.NoRole) || gateway != (c.Dataplane.Namespace == xds.GatewayNamespace) {
			t.Errorf("%s: %+v", id, c)
		}
	}
	for _, id := range []string{"", "*/web/i1", "*/ingress/", "ingress/i1", "*/*/i1", "a/b/c/d"} {
		if c, err := xds.ParseClientID(id); err == nil {
			t.Errorf("%s: %+v", id, c)
		}
	}
}

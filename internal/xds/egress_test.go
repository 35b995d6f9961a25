package xds_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/gateway/front"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	proxystart "github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// egressRig is the Envoy of an egress, and what the egress's engine asks it by.
type egressRig struct {
	t     *testing.T
	plane *plane
	envoy *envoytest.Proxy
	front *front.Dialer
	pool  *record.Pool
}

func newEgressRig(t *testing.T, roots []byte, objects ...resource.Object) *egressRig {
	t.Helper()
	dir := envoytest.Dir(t)
	r := &egressRig{t: t, pool: record.NewPool(0)}
	r.plane = newPlane(t, append(objects, &meshv1alpha1.ZoneEgress{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"}, Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: "192.0.2.1", Port: 1},
	})...)
	r.plane.roots = roots
	socket, outside := filepath.Join(dir, "xds.sock"), filepath.Join(dir, "out.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(deltastream.ServerOptions()...)
	r.plane.server.Register(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	text, err := proxystart.Envoy(proxystart.Config{
		Node: proxystart.Node{ID: proxystart.GatewayID("egress", "e1"), Cluster: "gateway/egress"}, Socket: socket,
		AdminSocket: envoytest.AdminSocket(dir), Gateway: &proxystart.Gateway{
			Address: fmt.Sprint("127.0.0.1:", freePort(t)), Socket: filepath.Join(dir, "engine.sock"), Outside: outside,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.envoy = envoytest.Start(t, dir, string(text))
	r.envoy.WaitReady()
	r.front = front.New(outside, r.pool)
	t.Cleanup(r.front.Close)
	return r
}

func (r *egressRig) connect() (*front.Conn, error) {
	return r.front.Connect(r.t.Context(), "ext|shop/pay:80")
}

// request by HTTP over a connection of its own, whose first direction ends with the request.
func (r *egressRig) request() (string, error) {
	c, err := r.connect()
	if err != nil {
		return "", err
	}
	defer c.Finish(true)
	b := r.pool.Get(record.Medium)
	n := copy(b.Bytes[stream.Headroom:], "GET /x HTTP/1.0\r\n\r\n")
	err = c.Send(stream.Chunk{Buffer: b, Begin: stream.Headroom, End: stream.Headroom + n})
	r.pool.Put(b)
	if err == nil {
		err = c.CloseWrite()
	}
	var text strings.Builder
	for err == nil {
		var got stream.Chunk
		if got, err = c.Receive(); err == nil {
			text.Write(got.Data())
			r.pool.Put(got.Buffer)
		}
	}
	if !errors.Is(err, io.EOF) {
		return text.String(), err
	}
	return text.String(), nil
}

// TestEgressEnvoy: the engine of an egress has a real Envoy connect to a service outside every mesh, with the TLS
// that the object asks for and what BackendPolicies say; of what Envoy does not have, and of connections that are
// not made, it hears before it has passed anything on.
func TestEgressEnvoy(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.ServerName, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	s := service("pay", "10.96.0.30", port("web", 80, ""))
	s.Labels = map[string]string{meshv1alpha1.LabelExternalService: "pay", meshv1alpha1.LabelMesh: "default"}
	external := func(name string, port int, own []byte) *meshv1alpha1.ExternalService {
		e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"}, Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"pay.example"}, Addresses: []meshv1alpha1.ExternalServiceAddress{{Address: "127.0.0.1"}},
			Ports: []meshv1alpha1.ExternalServicePort{{Name: "web", Port: 80, TargetPort: new(int32(port))}},
			TLS:   &meshv1alpha1.ExternalServiceTLS{ServerName: name},
		}}
		if own != nil {
			e.Spec.TLS.CACertificates = &meshv1alpha1.DataSource{Inline: own}
		}
		return e
	}
	at := server.Listener.Addr().(*net.TCPAddr).Port
	m := strict("Strict")
	m.Spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)}
	r := newEgressRig(t, roots, m, s)
	if want := insight.Gateway(insight.OfEgress, "e1"); !slices.Contains(r.plane.seen.connected, want) {
		t.Errorf("the insight of %s is not told of its stream: %v", want, r.plane.seen.connected)
	}
	if _, err := r.connect(); !errors.Is(err, front.ErrAbsent) {
		t.Fatalf("before there is a cluster: %v", err)
	}
	answers := func(what string) {
		t.Helper()
		var got string
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if got, err = r.request(); err == nil && strings.HasSuffix(got, "example.com/x") {
				return
			}
		}
		_, stats, _ := r.envoy.Admin(http.MethodGet, "/stats?usedonly&filter=pay|outside|sds")
		t.Fatalf("%s: %q, %v\n%s", what, got, err, stats)
	}
	var refused *front.RefusedError
	r.plane.seed(external("example.com", at, roots))
	answers("by the authorities of the object")
	r.plane.seed(external("example.com", at, nil))
	answers("by the authorities of the system")
	r.plane.seed(external("other.example", at, roots))
	r.envoy.Await("a certificate of another name is refused, before any byte", func() bool { _, err := r.connect(); return errors.As(err, &refused) })
	r.plane.seed(external("example.com", int(freePort(t)), roots))
	r.envoy.Await("nobody listens", func() bool {
		_, err := r.connect()
		return errors.As(err, &refused) && !refused.Overloaded
	})

	// A limit of connections is one of the cluster.
	r.plane.seed(external("example.com", at, roots), &meshv1alpha1.BackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one"},
		Spec: meshv1alpha1.BackendPolicySpec{
			PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Group: "mesh.proxima.dev", Kind: "ExternalService", Name: "pay"}}},
			Timeout:      &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("700ms"))},
			Limits:       &meshv1alpha1.PolicyLimits{Connections: new(int32(1)), Pending: new(int32(1))},
		},
	})
	r.envoy.Await("the policy is at the cluster", func() bool {
		_, dump, _ := r.envoy.Admin(http.MethodGet, "/config_dump?resource=dynamic_active_clusters")
		return strings.Contains(dump, `"connect_timeout": "0.700s"`)
	})
	held, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	r.envoy.Await("one connection is held, one more may wait, and a third is too much", func() bool {
		soon, done := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer done()
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() {
				_, err := r.front.Connect(soon, "ext|shop/pay:80")
				errs <- err
			}()
		}
		one, two := <-errs, <-errs
		overloaded := func(err error) bool { return errors.As(err, &refused) && refused.Overloaded }
		return overloaded(one) && errors.Is(two, context.DeadlineExceeded)
	})
	held.Reset(0, "")
	if err := r.plane.client.Delete(t.Context(), kind.ExternalService, resource.Key{Namespace: "shop", Name: "pay"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	r.envoy.Await("the cluster is gone", func() bool { _, err := r.connect(); return errors.Is(err, front.ErrAbsent) })
	if want := build.OutsideName(build.ServicePort{Service: resource.Key{Namespace: "shop", Name: "pay"}, Port: 80}); want != "ext|shop/pay:80" {
		t.Errorf("the cluster is %s", want)
	}
	if n := r.pool.InUse(); n != 0 {
		t.Errorf("%d bytes of buffers are not given back", n)
	}
	r.plane.seen.none(t)
}

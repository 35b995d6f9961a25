package xds_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/certpem"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// plane is a control plane: objects, tables, resources and the server.
type plane struct {
	t       testing.TB
	client  *resourcetest.Client
	builder *build.Builder
	server  *xds.Server
	seen    *observer
	address string
	ca      *catest.CA
	// roots of the system.
	roots []byte
}

// observer keeps what was refused, and who has connected.
type observer struct {
	mu        sync.Mutex
	refused   []string
	connected []insight.Subject
	// rejecting are those who refused something.
	rejecting []insight.Subject
}

func (o *observer) Connected(s insight.Subject, _ insight.Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.connected = append(o.connected, s)
}
func (o *observer) Disconnected(insight.Subject, string)             {}
func (o *observer) Sent(_ insight.Subject, _, _ string)              {}
func (o *observer) Acked(_ insight.Subject, _, _ string, _ []string) {}
func (o *observer) Released(_ insight.Subject, _, _, _ string)       {}
func (o *observer) Nacked(s insight.Subject, _, typ string, names []string, why insight.Rejection) {
	o.refuse(s, fmt.Sprint(typ, " ", names, ": ", why.Error))
}
func (o *observer) Withheld(s insight.Subject, _, typ, name string, why insight.Rejection) {
	o.refuse(s, typ+" "+name+": "+why.Error)
}
func (o *observer) refuse(by insight.Subject, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused, o.rejecting = append(o.refused, text), append(o.rejecting, by)
}

func (o *observer) none(t testing.TB) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.refused) > 0 {
		t.Errorf("refused: %v", o.refused)
	}
}

func newPlane(t testing.TB, objects ...resource.Object) *plane {
	t.Helper()
	ca := catest.New(t, "root", nil, nil)
	domain, err := mesh.DomainOf("default", "")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, client: resourcetest.New(kind.All()...), ca: ca, seen: &observer{}}
	p.client.Seed(objects...)
	tables := catalog.New(catalog.Config{Client: p.client, Descriptors: kind.All()})
	p.builder = build.NewBuilder(build.Config{
		Site: "local", Plans: &trafficplan.Table{}, SystemRoots: func() []byte { return p.roots },
		Ranges: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} },
		Trust: func() (*mesh.Trust, error) {
			return mesh.NewTrust(mesh.Bundle{Mesh: "default", Domain: domain, Roots: []*x509.Certificate{ca.Cert}})
		},
	})
	if err := p.builder.SetTrust(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	sub := tables.Subscribe(build.Tables()...)
	done.Go(func() { _ = tables.Run(ctx) })
	done.Go(func() { _ = build.Follow(ctx, sub, p.builder) })
	p.server = xds.New(xds.Config{Builder: p.builder, Observer: p.seen, Admit: func(context.Context, xds.ClientID) error { return nil }})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()
	server := grpc.NewServer(deltastream.ServerOptions()...)
	p.server.Register(server)
	done.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		cancel()
		done.Wait()
		sub.Close()
	})
	if err := tables.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

// files of a workload's certificate and key.
func (p *plane) identity(dir, namespace, account string) (cert, key string) {
	p.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	domain, _ := mesh.DomainOf("default", "")
	id, err := mesh.Workload(domain, namespace, account)
	if err != nil {
		p.t.Fatal(err)
	}
	leaf, err := p.ca.Sign(&x509.Certificate{
		URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, private.Public())
	if err != nil {
		p.t.Fatal(err)
	}
	keyPEM, err := certpem.EncodeKey(private)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, key = filepath.Join(dir, account+".crt"), filepath.Join(dir, account+".key")
	for path, data := range map[string][]byte{cert: certpem.EncodeCertificates(leaf), key: keyPEM} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	return cert, key
}

// seed objects anew.
func (p *plane) seed(objects ...resource.Object) { p.client.Seed(objects...) }

func service(name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Selector: map[string]string{"app": name}}}
	for _, p := range ports {
		p.Protocol = corev1.ProtocolTCP
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

func port(name string, number int32, appProtocol string) corev1.ServicePort {
	p := corev1.ServicePort{Name: name, Port: number}
	if appProtocol != "" {
		p.AppProtocol = new(appProtocol)
	}
	return p
}

// slice of a Service, of Dataplanes at addresses: "NAME=ADDRESS".
func slice(service, portName string, number int32, zone string, dataplanes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + "-" + portName + zone, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &number, Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, d := range dataplanes {
		name, address, _ := strings.Cut(d, "=")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, Zone: &zone, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Namespace: "shop", Name: name},
		})
	}
	return s
}

// freePort of an address, by asking the kernel.
func freePort(t testing.TB) int32 { t.Helper(); return int32(testkit.FreePort(t)) }

// application answers with a name and the path that it was asked for.
func application(t testing.TB, name string) int32 {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("endpoint-load-metrics", "TEXT cpu_utilization=0.5")
		fmt.Fprint(w, name, r.URL.Path)
	}))
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

// get asks a proxy once, on a connection of its own.
func get(port int32, path string) (string, http.Header, error) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return "", nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if r.StatusCode != http.StatusOK {
		return fmt.Sprint(r.StatusCode), r.Header, err
	}
	return string(body), r.Header, err
}

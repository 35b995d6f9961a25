package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// proxyPlane is a control plane that serves proxies.
type proxyPlane struct {
	t       *testing.T
	cp      *standalone
	rest    *rest.Config
	client  resource.Client
	address string
}

func startProxyPlane(t *testing.T) *proxyPlane {
	t.Helper()
	dir, port := t.TempDir(), testkit.FreePort(t)
	ctx, cancel := context.WithCancel(context.Background())
	cp, err := newStandalone(ctx, ControlPlaneConfig{
		Store: "memory", DataDir: dir, APIAddress: "127.0.0.1:0", GRPCPort: testkit.FreePort(t), XDSPort: port, XDSPortChosen: true, MachineID: t.Name(),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(Serving) { close(ready) }, cp.serving())))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cp.close()
	})
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		t.Fatal("the control plane does not become ready")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	return &proxyPlane{t: t, cp: cp, rest: cfg, client: client, address: "127.0.0.1:" + strconv.Itoa(port)}
}

func (p *proxyPlane) tls(certificates ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.rest.CAData)
	return &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}
}

// TestProxies: a client gets what is its Dataplane's, with the certificate of the workload's
// service account or of an administrator, and with no other.
func TestProxies(t *testing.T) {
	p := startProxyPlane(t)
	ctx, cfg, cp := t.Context(), p.rest, p.cp
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"},
		Spec:       meshv1alpha1.DataplaneSpec{ServiceAccount: "web", Addresses: []string{"10.0.0.1"}},
	}
	if _, err := p.client.Create(ctx, kind.Dataplane, d); err != nil {
		t.Fatal(err)
	}
	admin, err := tls.X509KeyPair(cfg.CertData, cfg.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	of := p.tls
	workload := func(name string) *tls.Config {
		t.Helper()
		token, _, err := cp.storage.tokens.Create(ctx, identity.Workload, name, time.Hour, "test")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if _, err := identity.Enroll(ctx, "https://"+cp.api.address.String(), token.Reveal(), dir); err != nil {
			t.Fatal(err)
		}
		r := identity.NewRenewer(identity.RenewerConfig{Dir: dir, Server: cp.api.address.String(), Logger: slog.New(slog.DiscardHandler)})
		return r.TLSConfig("127.0.0.1")
	}
	for name, c := range map[string]struct {
		config *tls.Config
		id     string
		code   codes.Code
		want   string
	}{
		"an administrator":        {of(admin), "default/default/web-1", codes.OK, ""},
		"the workload":            {workload("default/web"), "default/default/web-1", codes.OK, ""},
		"another service account": {workload("default/other"), "default/default/web-1", codes.PermissionDenied, "may not be the proxy"},
		"another namespace":       {workload("shop/web"), "default/default/web-1", codes.PermissionDenied, "may not be the proxy"},
		"another mesh":            {of(admin), "other/default/web-1", codes.PermissionDenied, "is of mesh default"},
		"no such workload":        {of(admin), "default/default/web-9", codes.NotFound, "register the workload"},
		"a wrong ID":              {of(admin), "web-1", codes.InvalidArgument, "MESH/NAMESPACE/DATAPLANE"},
		"no certificate":          {of(), "default/default/web-1", codes.Unauthenticated, "a client certificate is needed"},
	} {
		code, text := askProxy(t, p.address, c.config, c.id)
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s %q, want %s %q", name, code, text, c.code, c.want)
		}
	}
}

// TestCertificateThatIsAskedForLater: a client whose certificate was not asked for, as the control plane did not know its authority yet,
// is let in without a restart. Its connection would last for ever.
func TestCertificateThatIsAskedForLater(t *testing.T) {
	p := startProxyPlane(t)
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"},
		Spec:       meshv1alpha1.DataplaneSpec{ServiceAccount: "web", Addresses: []string{"10.0.0.1"}},
	}
	if _, err := p.client.Create(t.Context(), kind.Dataplane, d); err != nil {
		t.Fatal(err)
	}
	admin, err := tls.X509KeyPair(p.rest.CertData, p.rest.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	config := p.tls()
	var handshakes atomic.Int32
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if handshakes.Add(1) == 1 {
			return &tls.Certificate{}, nil
		}
		return &admin, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	testkit.Eventually(t, "the client is let in by the connection that it makes next", func() bool {
		code, _ := askOn(t, conn, "default/default/web-1")
		return code == codes.OK
	})
	if n := handshakes.Load(); n != 2 {
		t.Errorf("%d handshakes", n)
	}
}

// askProxy asks for listeners as a client, and return how that ends: OK once they are there.
func askProxy(t *testing.T, address string, config *tls.Config, id string) (codes.Code, string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return askOn(t, conn, id)
}

func askOn(t *testing.T, conn *grpc.ClientConn, id string) (codes.Code, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return status.Code(err), err.Error()
	}
	_ = stream.Send(&discovery.DeltaDiscoveryRequest{
		Node: &core.Node{Id: id, Extensions: []*core.Extension{{Name: "x"}}}, TypeUrl: build.ListenerType, ResourceNamesSubscribe: []string{"*"},
	})
	r, err := stream.Recv()
	if err != nil {
		return status.Code(err), err.Error()
	}
	if len(r.GetResources()) == 0 {
		t.Errorf("%s: no listeners", id)
	}
	return codes.OK, ""
}

// TestPortForProxies: it is refused where nobody serves proxies, and left alone where somebody
// else has the port that nobody chose.
func TestPortForProxies(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  ControlPlaneConfig
		want string
	}{
		"global":                {ControlPlaneConfig{Role: RoleGlobal, XDSPort: 1, XDSPortChosen: true}, "global has no endpoints"},
		"global by default":     {ControlPlaneConfig{Role: RoleGlobal, XDSPort: 1}, ""},
		"in a cluster":          {ControlPlaneConfig{Store: StoreKubernetes, XDSPort: 1, XDSPortChosen: true}, "the proxies are sidecars of Pods"},
		"a zone in a cluster":   {ControlPlaneConfig{Store: StoreKubernetes, Role: RoleZone, XDSPort: 1, XDSPortChosen: true}, ""},
		"zone":                  {ControlPlaneConfig{Role: RoleZone, XDSPort: 1, XDSPortChosen: true}, ""},
		"global, and it is off": {ControlPlaneConfig{Role: RoleGlobal, XDSPortChosen: true}, ""},
	} {
		err := checkXDS(&c.cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

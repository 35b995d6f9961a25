package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/sidecar/relay"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// mtls makes a listener one that wants a certificate of a client of the own domain.
func mtls(t *testing.T, l *listenerv3.Listener) *listenerv3.Listener {
	t.Helper()
	sds := func(name string) *tlsv3.SdsSecretConfig {
		return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: adstest.ADS()}
	}
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: adstest.Pack(t, &tlsv3.DownstreamTlsContext{
			RequireClientCertificate: wrapperspb.Bool(true),
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds("identity")},
				ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
					CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
						DefaultValidationContext: &tlsv3.CertificateValidationContext{
							MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
								SanType: tlsv3.SubjectAltNameMatcher_URI,
								Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + domain + "/"}},
							}},
						},
						ValidationContextSdsSecretConfig: sds("roots|" + domain),
					},
				},
			},
		})},
	}
	return l
}

// TestRotationUnderTraffic: a real Envoy gets its certificate and roots from the keeper. Renewals, and
// a change of root, lose no connection; peers of other domains, and with a SAN of another domain
// than their root's, are refused.
func TestRotationUnderTraffic(t *testing.T) {
	dir := envoytest.Dir(t)
	oldCA, newCA, other := catest.New(t, "old", nil, nil), catest.New(t, "new", nil, nil), catest.New(t, "other", nil, nil)
	cp := adstest.New(t)
	address := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	cp.Set(wire.Endpoint, "web", "1", adstest.Endpoints(t, "web", adstest.Echo(t, "web")))
	cp.Set(wire.Cluster, "web", "1", adstest.Cluster("web", "web"))
	cp.Set(wire.Listener, "in|80", "1", mtls(t, adstest.Listener(t, "in|80", address, "web")))
	_, _, serverPair := issue(t, oldCA, "spiffe://default.mesh/ns/x/sa/y", time.Hour)
	server, _ := cp.Start("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{serverPair}, ClientAuth: tls.RequireAnyClientCert})

	const web = "spiffe://default.mesh/ns/shop/sa/web"
	source := &manual{}
	var r *relay.Relay
	k, err := NewKeeper(Config{Dir: filepath.Join(dir, "id"), Source: source, OnChange: func(i *Identity) { r.SetSecrets(i.Resources()) }})
	if err != nil {
		t.Fatal(err)
	}
	r = relay.New(relay.Config{Node: "default/shop/web-1", Servers: []string{server}, TLS: func(string) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{k.Current().TLS()}, InsecureSkipVerify: true}, nil
	}})
	k.Run(t.Context())
	socket := filepath.Join(dir, "x")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { _ = r.Run(ctx, l) })
	rotate := func(ca *catest.CA, roots ...*catest.CA) string {
		t.Helper()
		i := identity(t, ca, web)
		i.Roots = map[string][][]byte{"other.mesh": {other.Cert.Raw}}
		for _, root := range roots {
			i.Roots[domain] = append(i.Roots[domain], root.Cert.Raw)
		}
		if err := source.update(i); err != nil {
			t.Fatal(err)
		}
		return i.Serial()
	}
	rotate(oldCA, oldCA)
	text, err := bootstrap.Envoy(bootstrap.Config{
		Node: bootstrap.Node{ID: "default/shop/web-1", Cluster: "shop/web"}, Socket: socket, AdminSocket: envoytest.AdminSocket(dir),
	})
	if err != nil {
		t.Fatal(err)
	}
	envoytest.Start(t, dir, string(text)).WaitReady()

	_, _, oldClient := issue(t, oldCA, "spiffe://default.mesh/ns/shop/sa/client", time.Hour)
	_, _, newClient := issue(t, newCA, "spiffe://default.mesh/ns/shop/sa/client", time.Hour)
	testkit.Eventually(t, "it serves", func() bool { _, err := call(address, oldClient); return err == nil })
	_, _, stranger := issue(t, other, "spiffe://other.mesh/ns/shop/sa/client", time.Hour)
	_, _, forged := issue(t, other, "spiffe://default.mesh/ns/shop/sa/client", time.Hour)
	for name, pair := range map[string]tls.Certificate{"other domain": stranger, "own domain by another's root": forged} {
		if _, err := call(address, pair); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}

	var client atomic.Pointer[tls.Certificate]
	client.Store(&oldClient)
	var calls, failed atomic.Int64
	clients, stop := context.WithCancel(ctx)
	var traffic sync.WaitGroup
	for range 2 {
		traffic.Go(func() {
			for clients.Err() == nil {
				calls.Add(1)
				if _, err := call(address, *client.Load()); err != nil {
					failed.Add(1)
					t.Log(err)
				}
			}
		})
	}
	seen := func(serial string) {
		t.Helper()
		testkit.Eventually(t, "the certificate is shown", func() bool {
			cert, err := call(address, *client.Load())
			return err == nil && cert.SerialNumber.Text(16) == serial
		})
	}
	for range 10 {
		seen(rotate(oldCA, oldCA))
	}
	seen(rotate(oldCA, oldCA, newCA)) // trust new
	client.Store(&newClient)
	seen(rotate(newCA, oldCA, newCA)) // issue new
	seen(rotate(newCA, newCA))        // distrust old
	stop()
	traffic.Wait()
	t.Logf("%d connections, %d failed", calls.Load(), failed.Load())
	if failed.Load() > 0 {
		t.Errorf("%d of %d connections failed", failed.Load(), calls.Load())
	}
	if _, err := call(address, oldClient); err == nil {
		t.Error("a client of the root that is not trusted any more is accepted")
	}
	secretOfControlPlane(t, cp, newCA)
}

// secretOfControlPlane: a certificate that the control plane has reaches Envoy beside those of the supervisor, and so does the one
// that takes its place, with the same listener.
func secretOfControlPlane(t *testing.T, cp *adstest.Server, ca *catest.CA) {
	t.Helper()
	const name = "certificate|shop/web"
	address := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	l := adstest.Listener(t, "in|81", address, "web")
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: adstest.Pack(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: name, SdsConfig: adstest.ADS()}},
		}})},
	}
	cp.Set(wire.Listener, l.Name, "1", l)
	for _, version := range []string{"1", "2"} {
		i := identity(t, ca, "spiffe://default.mesh/ns/shop/sa/"+version)
		if err := i.parse(); err != nil {
			t.Fatal(err)
		}
		inline := func(b []byte) *corev3.DataSource {
			return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
		}
		cp.Set(wire.Secret, name, version, &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(i.certificatePEM()), PrivateKey: inline(i.keyPEM())},
		}})
		testkit.Eventually(t, "the control plane's certificate "+version+" is shown", func() bool {
			cert, err := call(address, tls.Certificate{})
			return err == nil && cert.SerialNumber.Text(16) == i.Serial()
		})
	}
}

// call with a client certificate, and return the server's.
func call(address string, pair tls.Certificate) (*x509.Certificate, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", address, &tls.Config{
		Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true,
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	buffer := make([]byte, 16)
	n, err := conn.Read(buffer) // TLS 1.3: a refusal shows here
	if n == 0 {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

package xds_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	programs "github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// grpcServer is an unmodified gRPC-Go server with credentials of xDS, workload server-1 behind
// Service api, and clients of it.
type grpcServer struct {
	*plane
	dir   string
	port  int32
	roots string
	// outbound port of the Envoy of client-2.
	outbound int32
	// said is the text of the last error.
	said string
}

// anonymous is who calls without a certificate.
const anonymous = "anonymous"

func newGRPCServer(t *testing.T) *grpcServer {
	t.Helper()
	s := &grpcServer{dir: envoytest.Dir(t), port: freePort(t), outbound: freePort(t)}
	account := func(name string, ports ...meshv1alpha1.DataplanePort) *meshv1alpha1.Dataplane {
		d := dataplane(name+"-1", "127.0.0.1", ports...)
		d.Spec.ServiceAccount, d.Labels = name, map[string]string{"app": map[string]string{"server": "api"}[name]}
		return d
	}
	envoy := account("envoy")
	envoy.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: s.outbound, Service: "api", ServicePort: 80}}
	s.plane = newPlane(t, strict("Strict"), account("server", meshv1alpha1.DataplanePort{Name: "grpc", Port: s.port}), account("client"), envoy,
		service("api", "10.96.0.20", port("grpc", 80, "grpc")), slice("api", "grpc", s.port, "a", "server-1=127.0.0.1"))
	s.roots = filepath.Join(s.dir, "roots.pem")
	if err := os.WriteFile(s.roots, certpem.EncodeCertificates(s.ca.Cert), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// bootstrap of a gRPC program, as "proxima proxy bootstrap --grpc" prints it, without TLS to the
// control plane.
func (s *grpcServer) bootstrap(account string) []byte {
	s.t.Helper()
	cert, key := s.identity(s.dir, "shop", account)
	text, err := programs.GRPC(programs.Config{
		Node: programs.Node{ID: "default/shop/" + account + "-1"}, Socket: s.address, ServerTemplate: "in|%s",
		Files: programs.Files{Certificate: cert, Key: key, Authorities: "none", Roots: s.roots},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return bytes.ReplaceAll(text, []byte("unix://"), []byte("dns:///"))
}

// start the server. It answers with the SPIFFE ID of who calls, in the header "caller".
func (s *grpcServer) start() {
	s.t.Helper()
	fallback := xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()}
	creds, err := xdscreds.NewServerCredentials(fallback)
	if err != nil {
		s.t.Fatal(err)
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds), xds.BootstrapContentsForTesting(s.bootstrap("server")), grpc.UnaryInterceptor(answerCaller))
	if err != nil {
		s.t.Fatal(err)
	}
	healthpb.RegisterHealthServer(server, health.NewServer())
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", s.port))
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	s.t.Cleanup(func() { server.Stop(); <-done })
}

func answerCaller(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	who := anonymous
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && info.SPIFFEID != nil {
			who = info.SPIFFEID.String()
		}
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("caller", who)); err != nil {
		return nil, err
	}
	return h(ctx, r)
}

// ask on a connection: who the server says has called, or the code.
func (s *grpcServer) ask(conn *grpc.ClientConn) string {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	header := metadata.MD{}
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		s.said = err.Error()
		return status.Code(err).String()
	}
	return header.Get("caller")[0]
}

func (s *grpcServer) dial(target string, options ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// program is an unmodified gRPC-Go client with credentials of xDS.
func (s *grpcServer) program() *grpc.ClientConn {
	s.t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(s.bootstrap("client"))
	if err != nil {
		s.t.Fatal(err)
	}
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.dial("xds:///api.shop:80", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(creds))
}

// past connects to the server without xDS: plain, or by TLS with a certificate of an authority.
func (s *grpcServer) past(ca *catest.CA) *grpc.ClientConn {
	s.t.Helper()
	creds := insecure.NewCredentials()
	if ca != nil {
		own := s.ca
		s.ca = ca
		cert, key := s.identity(s.t.TempDir(), "shop", "client")
		s.ca = own
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			s.t.Fatal(err)
		}
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}) // the server decides
	}
	return s.dial(fmt.Sprint("passthrough:///127.0.0.1:", s.port), grpc.WithTransportCredentials(creds))
}

// TestGRPCServer: an unmodified gRPC-Go server takes mutual TLS alone in mode Strict, from gRPC
// programs and from Envoys, and does what permissions say; in mode Permissive it is plain.
func TestGRPCServer(t *testing.T) {
	s := newGRPCServer(t)
	s.start()
	cert, key := s.identity(s.dir, "shop", "envoy")
	envoy := envoytest.Start(t, s.dir, bootstrap(s.plane, s.dir, "default/shop/envoy-1", cert, key, nil))
	envoy.WaitReady()
	program, plain := s.program(), s.past(nil)
	ours, foreign := s.past(s.ca), s.past(catest.New(t, "other root", nil, nil))
	through := s.dial(fmt.Sprint("passthrough:///127.0.0.1:", s.outbound), grpc.WithTransportCredentials(insecure.NewCredentials()))
	const client, proxied, unavailable = "spiffe://default.mesh/ns/shop/sa/client", "spiffe://default.mesh/ns/shop/sa/envoy", "Unavailable"
	check := func(when, wantProgram, wantEnvoy, wantPlain string) {
		t.Helper()
		var got [3]string
		defer func() {
			if t.Failed() {
				t.Logf("%s: %q, %s", when, got, s.said)
			}
		}()
		testkit.Eventually(t, when, func() bool {
			got = [3]string{s.ask(plain), s.ask(through), s.ask(program)}
			got[0], got[2] = got[2], got[0]
			return got == [3]string{wantProgram, wantEnvoy, wantPlain}
		})
	}
	check("strict", client, proxied, unavailable)
	if got := s.ask(ours); got != client {
		t.Errorf("a client with a certificate of the mesh: %s", got)
	}
	if got := s.ask(foreign); got != unavailable {
		t.Errorf("a client with the same name by another authority: %s", got)
	}
	permission := func(spec meshv1alpha1.TrafficPermissionSpec) {
		s.seed(&meshv1alpha1.TrafficPermission{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "callers"}, Spec: spec})
	}
	from := func(account string) []meshv1alpha1.PolicySource {
		return []meshv1alpha1.PolicySource{{ServiceAccounts: []string{"shop/" + account}}}
	}
	denied := codes.PermissionDenied.String()
	permission(meshv1alpha1.TrafficPermissionSpec{Deny: []meshv1alpha1.PermissionRule{{From: from("client")}}})
	check("deny", denied, proxied, unavailable)
	permission(meshv1alpha1.TrafficPermissionSpec{Allow: []meshv1alpha1.PermissionRule{{From: from("client"), To: []meshv1alpha1.PermissionRequest{{
		Paths: []meshv1alpha1.ValueMatch{{Type: meshv1alpha1.MatchExact, Value: "/grpc.health.v1.Health/Check"}},
	}}}}})
	check("allow a method", client, denied, unavailable)
	permission(meshv1alpha1.TrafficPermissionSpec{Allow: []meshv1alpha1.PermissionRule{{From: from("client"), To: []meshv1alpha1.PermissionRequest{{
		Paths: []meshv1alpha1.ValueMatch{{Type: meshv1alpha1.MatchExact, Value: "/another/Method"}},
	}}}}})
	check("allow another method", denied, denied, unavailable)
	if err := s.client.Delete(t.Context(), kind.TrafficPermission, resource.Key{Namespace: "shop", Name: "callers"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	s.seed(strict("Permissive"))
	check("permissive", anonymous, anonymous, anonymous)
	s.seed(strict("Strict"))
	check("strict again", client, proxied, unavailable)
	s.seen.none(t)
}

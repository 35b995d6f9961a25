package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// authority signs the certificates of the mesh's workloads. The control plane has it as files
// (Provided), so that this process can sign in place of a machine's agent.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}}
	a.cert, err = a.sign(a.cert, key.Public())
	return a, err
}

// sign a certificate for a day.
func (a *authority) sign(template *x509.Certificate, public crypto.PublicKey) (*x509.Certificate, error) {
	var err error
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// leaf of the workloads' service account.
func (a *authority) leaf() (cert *x509.Certificate, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	id, err := url.Parse(workloadID)
	if err != nil {
		return nil, nil, err
	}
	cert, err = a.sign(&x509.Certificate{
		URIs: []*url.URL{id}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, key.Public())
	return cert, key, err
}

const workloadID = "spiffe://" + meshv1alpha1.DefaultMesh + ".mesh/ns/" + namespace + "/sa/" + account

// client is what a workload connects to others with.
func (a *authority) client() (*tls.Config, error) {
	cert, key, err := a.leaf()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, NextProtos: []string{"proxima"},
		InsecureSkipVerify: true, // who the server is, is not of interest here
	}, nil
}

// files of the authority.
func (a *authority) files(dir string) (cert, key string, err error) {
	text, err := certpem.EncodeKey(a.key)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "mesh.crt"), filepath.Join(dir, "mesh.key")
	if err := os.WriteFile(key, text, 0o600); err != nil {
		return "", "", err
	}
	return cert, key, os.WriteFile(cert, certpem.EncodeCertificates(a.cert), 0o600)
}

// enable mutual TLS in the control plane's default mesh.
func (a *authority) enable(ctx context.Context, c *control) error {
	cert, key, err := a.files(filepath.Dir(c.dir))
	if err != nil {
		return err
	}
	return c.change(ctx, kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh}, func(o resource.Object) {
		o.(*meshv1alpha1.Mesh).Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "bench", Backends: []meshv1alpha1.MeshCertificateBackend{{
			Name: "bench", Type: "Provided", Mode: "Permissive",
			Provided: &meshv1alpha1.MeshProvidedAuthority{Files: &meshv1alpha1.MeshAuthorityFiles{Certificate: cert, Key: key}},
		}}}
	})
}

// agent is the Workload API of a machine: it gives everybody the same certificate.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	authority *authority
	socket    string
	server    *grpc.Server

	mu      sync.Mutex
	answer  *workload.X509SVIDResponse
	serial  string
	changed chan struct{}
}

func newAgent(a *authority, dir string) (*agent, error) {
	g := &agent{authority: a, socket: filepath.Join(dir, "agent.sock"), server: grpc.NewServer(), changed: make(chan struct{})}
	if err := g.renew(); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", g.socket)
	if err != nil {
		return nil, err
	}
	workload.RegisterSpiffeWorkloadAPIServer(g.server, g)
	go func() { _ = g.server.Serve(l) }() // its end is Stop
	return g, nil
}

// renew the certificate, and tell everybody. others are roots besides the authority's.
func (g *agent) renew(others ...*x509.Certificate) error {
	cert, key, err := g.authority.leaf()
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	bundle := g.authority.cert.Raw
	for _, c := range others {
		bundle = slices.Concat(bundle, c.Raw)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serial = cert.SerialNumber.Text(16)
	g.answer = &workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
		SpiffeId: workloadID, X509Svid: cert.Raw, X509SvidKey: der, Bundle: bundle,
	}}}
	close(g.changed)
	g.changed = make(chan struct{})
	return nil
}

// FetchX509SVID implements the Workload API.
func (g *agent) FetchX509SVID(_ *workload.X509SVIDRequest, s grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	for {
		g.mu.Lock()
		answer, changed := g.answer, g.changed
		g.mu.Unlock()
		if err := s.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

// supervised is a supervisor with its Envoy.
type supervised struct {
	*process
	dir string
}

// supervise starts a supervisor with nothing on disk. It is ready when Envoy serves.
func supervise(ctx context.Context, p plan, c *control, g *agent, dir, id string) (*supervised, error) {
	s := &supervised{dir: filepath.Join(dir, "s")}
	var err error
	s.process, err = launch(ctx, p.sidecar, "--node-id", id, "--cluster", namespace+"/"+account, "--dir", s.dir, "--server", c.xds,
		"--server-ca-file", c.ca, "--spiffe-socket", g.socket, "--envoy", p.envoy, "--concurrency", "1", "--drain", "10ms",
		"--metrics-address", "", "--health-address", "")
	return s, err
}

// status of the supervisor.
func (s *supervised) status() (sidecar.Status, error) {
	var out sidecar.Status
	answer, err := envoytest.AdminClient(filepath.Join(s.dir, "control.sock")).Get("http://supervisor/status")
	if err != nil {
		return out, err
	}
	defer answer.Body.Close()
	return out, json.NewDecoder(answer.Body).Decode(&out)
}

// end supervisor and Envoy.
func (s *supervised) end() {
	status, err := s.status()
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-s.ended
	if err == nil && status.Envoy.PID > 1 {
		_ = syscall.Kill(status.Envoy.PID, syscall.SIGKILL)
	}
}

// envoy is the process ID of its Envoy.
func (s *supervised) envoy() (int, error) {
	status, err := s.status()
	if err == nil && status.Envoy.PID == 0 {
		err = fmt.Errorf("no Envoy runs: %s", status.Ready)
	}
	return status.Envoy.PID, err
}

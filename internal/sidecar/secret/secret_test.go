package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

const domain = "default.mesh"

// issue a certificate of a SPIFFE ID, for a time.
func issue(t testing.TB, ca *catest.CA, id string, life time.Duration) (cert *x509.Certificate, key []byte, pair tls.Certificate) {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	leaf := catest.New(t, "", ca, func(c *x509.Certificate) {
		c.IsCA, c.KeyUsage, c.URIs = false, x509.KeyUsageDigitalSignature, []*url.URL{uri}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		c.NotBefore = time.Now().Add(-time.Minute)
		c.NotAfter = c.NotBefore.Add(life)
	})
	key, err = x509.MarshalPKCS8PrivateKey(leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	return leaf.Cert, key, tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
}

func identity(t testing.TB, ca *catest.CA, id string) *Identity {
	t.Helper()
	cert, key, _ := issue(t, ca, id, time.Hour)
	return &Identity{Chain: [][]byte{cert.Raw}, Key: key, Roots: map[string][][]byte{domain: {ca.Cert.Raw}}}
}

// manual is a Source by hand.
type manual struct{ update func(*Identity) error }

func (m *manual) Run(_ context.Context, _ *Identity, update func(*Identity) error, _ func(error)) {
	m.update = update
}

// TestKeeper: an identity is used, kept for the owner alone, and there after a restart.
func TestKeeper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	ca := catest.New(t, "ca", nil, nil)
	source := &manual{}
	var seen []string
	config := Config{Dir: dir, Source: source, Files: true, OnChange: func(i *Identity) { seen = append(seen, i.Serial()) }}
	k, err := NewKeeper(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.TLS("cp"); err == nil || !strings.Contains(err.Error(), "no certificate of the workload yet") {
		t.Errorf("without a certificate: %v", err)
	}
	k.Run(t.Context())
	one := identity(t, ca, "spiffe://default.mesh/ns/shop/sa/web")
	if err := source.update(one); err != nil {
		t.Fatal(err)
	}
	if err := source.update(one); err != nil || len(seen) != 1 {
		t.Errorf("the same again: %v, %d changes", err, len(seen))
	}
	for _, name := range []string{"identity.json", "key.pem", "certificate.pem", "roots.pem"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	next, err := NewKeeper(config)
	if err != nil || next.Current() == nil || next.Current().Serial() != one.Serial() || next.Current().ID() != one.ID() {
		t.Errorf("after a restart: %v, %v", next.Current(), err)
	}
	select {
	case <-next.There():
	default:
		t.Error("it waits for a certificate that it has")
	}
	// What does not belong together is refused, and what is held stays.
	other := identity(t, ca, "spiffe://default.mesh/ns/shop/sa/web")
	for name, bad := range map[string]*Identity{
		"another key": {Chain: one.Chain, Key: other.Key, Roots: one.Roots},
		"no roots":    {Chain: other.Chain, Key: other.Key, Roots: map[string][][]byte{"other.mesh": {ca.Cert.Raw}}},
		"nothing":     {},
	} {
		if err := source.update(bad); err == nil || k.Current().Serial() != one.Serial() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResources: Envoy's generated code reads them; roots of another domain are its own alone.
func TestResources(t *testing.T) {
	ca, other := catest.New(t, "ca", nil, nil), catest.New(t, "other", nil, nil)
	i := identity(t, ca, "spiffe://default.mesh/ns/shop/sa/web")
	i.Roots["other.mesh"] = [][]byte{other.Cert.Raw}
	if err := i.parse(); err != nil {
		t.Fatal(err)
	}
	domains := map[string]string{}
	for _, r := range i.Resources() {
		body, err := r.Body()
		if err != nil {
			t.Fatal(err)
		}
		secret := &tlsv3.Secret{}
		if err := proto.Unmarshal(body, secret); err != nil || secret.Name != r.Name {
			t.Fatalf("%s: %v", r.Name, err)
		}
		if cert := secret.GetTlsCertificate(); cert != nil {
			pair, err := tls.X509KeyPair(cert.CertificateChain.GetInlineBytes(), cert.PrivateKey.GetInlineBytes())
			if err != nil || string(pair.Certificate[0]) != string(i.Chain[0]) {
				t.Errorf("%s: %v", r.Name, err)
			}
			continue
		}
		config := &tlsv3.SPIFFECertValidatorConfig{}
		if err := secret.GetValidationContext().CustomValidatorConfig.TypedConfig.UnmarshalTo(config); err != nil {
			t.Fatal(err)
		}
		for _, d := range config.TrustDomains {
			domains[r.Name] += " " + d.Name
		}
		if err := secret.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	if domains["roots|default.mesh"] != " default.mesh other.mesh" || domains["roots|other.mesh"] != " other.mesh" {
		t.Errorf("%q", domains)
	}
}

// agentAPI is a Workload API that sends what it is given.
type agentAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	responses chan *workload.X509SVIDResponse
}

func (a *agentAPI) FetchX509SVID(_ *workload.X509SVIDRequest, s grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	if h := md.Get("workload.spiffe.io"); len(h) != 1 || h[0] != "true" {
		return errors.New("the header is missing")
	}
	for {
		select {
		case r, ok := <-a.responses:
			if !ok {
				return nil
			}
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// TestAgent: what the agent's API sends is used, also after it was away.
func TestAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	api := &agentAPI{responses: make(chan *workload.X509SVIDResponse, 1)}
	serve := func() (stop func()) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		workload.RegisterSpiffeWorkloadAPIServer(server, api)
		var done sync.WaitGroup
		done.Go(func() { _ = server.Serve(l) }) // its end is stop
		return func() {
			server.Stop()
			done.Wait()
		}
	}
	ca, foreign := catest.New(t, "ca", nil, nil), catest.New(t, "foreign", nil, nil)
	const id = "spiffe://default.mesh/ns/shop/sa/web"
	send := func() string {
		cert, key, _ := issue(t, ca, id, time.Hour)
		api.responses <- &workload.X509SVIDResponse{
			Svids:            []*workload.X509SVID{{SpiffeId: id, X509Svid: cert.Raw, X509SvidKey: key, Bundle: ca.Cert.Raw}},
			FederatedBundles: map[string][]byte{"spiffe://other.mesh": foreign.Cert.Raw},
		}
		return cert.SerialNumber.Text(16)
	}
	stop := serve()
	k, err := NewKeeper(Config{Dir: filepath.Join(dir, "identity"), Source: Agent{Socket: "unix://" + socket}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { k.Run(ctx) })
	defer done.Wait()
	defer cancel()
	has := func(serial string) {
		t.Helper()
		testkit.Eventually(t, "the certificate is used", func() bool { i := k.Current(); return i != nil && i.Serial() == serial })
	}
	has(send())
	if i := k.Current(); i.ID() != id || len(i.Roots["other.mesh"]) != 1 || k.Problem() != nil {
		t.Errorf("%s, %d domains, %v", i.ID(), len(i.Roots), k.Problem())
	}
	has(send())
	stop()
	testkit.Eventually(t, "the problem is named", func() bool {
		err := k.Problem()
		return err != nil && strings.Contains(err.Error(), socket)
	})
	defer serve()()
	has(send())
}

func FuzzParseSVID(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x0a, 0x00})
	f.Fuzz(func(_ *testing.T, data []byte) {
		if i, err := parseSVID(data); err == nil {
			_ = i.parse()
		}
	})
}

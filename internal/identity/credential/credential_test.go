package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair of a client, as PEM.
func pair(t testing.TB, ca *catest.CA, end time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Sign(&x509.Certificate{
		DNSNames: []string{"client"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, k.Public())
	if err != nil {
		t.Fatal(err)
	}
	if key, err = certpem.EncodeKey(k); err != nil {
		t.Fatal(err)
	}
	return certpem.EncodeCertificates(leaf), key
}

func from(secret, value string) *meshv1alpha1.DataSource {
	return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: secret, Key: value}}
}

func fromGlobal(secret string) *meshv1alpha1.DataSource {
	return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Kind: meshv1alpha1.KindGlobalSecret, Name: secret}}
}

func service(namespace string, tls meshv1alpha1.ExternalServiceTLS) *meshv1alpha1.ExternalService {
	return &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pay", Generation: 3}, Spec: meshv1alpha1.ExternalServiceSpec{TLS: &tls},
	}
}

func secret(namespace, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
}

// run a source on objects until the test ends.
func run(t *testing.T, objects ...resource.Object) (*Source, resource.Client) {
	t.Helper()
	client := resourcetest.New(kind.Secret, kind.GlobalSecret, kind.Mesh)
	for _, obj := range objects {
		put(t, client, obj)
	}
	s := NewSource(SourceConfig{Client: client, System: "proxima-system"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s, client
}

func put(t *testing.T, client resource.Client, obj resource.Object) {
	t.Helper()
	of := kind.Secret
	switch obj.(type) {
	case *meshv1alpha1.GlobalSecret:
		of = kind.GlobalSecret
	case *meshv1alpha1.Mesh:
		of = kind.Mesh
	}
	if _, err := client.Create(t.Context(), of, obj); err != nil {
		t.Fatal(err)
	}
}

// TestSource: what Secrets must have, and which of them no node gets.
func TestSource(t *testing.T) {
	ca := catest.New(t, "root", nil, nil)
	cert, key := pair(t, ca, time.Now().Add(time.Hour))
	old, oldKey := pair(t, ca, time.Now().Add(-time.Hour))
	_, otherKey := pair(t, ca, time.Now().Add(time.Hour))
	roots := catest.PEM(ca)
	data := map[string][]byte{
		"ca": roots, "cert": cert, "key": key, "old": old, "oldkey": oldKey, "other": otherKey, "empty": {}, "junk": []byte("junk"),
		"long": make([]byte, maxValue+1),
	}
	mesh := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{MTLS: &meshv1alpha1.MeshMTLS{
		Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "own", Type: "Provided", Provided: &meshv1alpha1.MeshProvidedAuthority{
			Certificate: *fromGlobal("authority"), Key: *fromGlobal("authority"),
		}}},
	}}}
	s, _ := run(t, secret("shop", "s", data), secret("proxima-system", "s", data),
		&meshv1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Name: "roots"}, Data: map[string][]byte{"value": roots}},
		&meshv1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Name: "authority"}, Data: map[string][]byte{"value": key}}, mesh)
	client := func(cert, key string) meshv1alpha1.ExternalServiceTLS {
		return meshv1alpha1.ExternalServiceTLS{ClientCertificate: from("s", cert), ClientKey: from("s", key)}
	}
	for what, tc := range map[string]struct {
		namespace string
		tls       meshv1alpha1.ExternalServiceTLS
		fail      string
	}{
		"all":                   {"shop", meshv1alpha1.ExternalServiceTLS{CACertificates: from("s", "ca"), ClientCertificate: from("s", "cert"), ClientKey: from("s", "key")}, ""},
		"a global secret":       {"shop", meshv1alpha1.ExternalServiceTLS{CACertificates: fromGlobal("roots")}, ""},
		"an inline certificate": {"shop", meshv1alpha1.ExternalServiceTLS{ClientCertificate: &meshv1alpha1.DataSource{Inline: cert}, ClientKey: from("s", "key")}, ""},
		"no secret":             {"shop", meshv1alpha1.ExternalServiceTLS{CACertificates: from("none", "ca")}, "spec.tls.caCertificates.secretRef: there is no Secret none"},
		"no value":              {"shop", client("cert", "none"), `spec.tls.clientKey.secretRef: Secret s has no value "none"`},
		"an empty value":        {"shop", client("empty", "key"), "has no value"},
		"a long value":          {"shop", meshv1alpha1.ExternalServiceTLS{CACertificates: from("s", "long")}, "bytes"},
		"no PEM":                {"shop", meshv1alpha1.ExternalServiceTLS{CACertificates: from("s", "junk")}, "spec.tls.caCertificates"},
		"another key":           {"shop", client("cert", "other"), "does not match"},
		"ended":                 {"shop", client("old", "oldkey"), "it ended at"},
		"of control planes":     {"proxima-system", client("cert", "key"), "namespace of control planes"},
		"an authority's key":    {"shop", meshv1alpha1.ExternalServiceTLS{ClientCertificate: from("s", "cert"), ClientKey: fromGlobal("authority")}, "private key of an authority"},
	} {
		var m *Material
		var err error
		testkit.Eventually(t, "the source has read what there is", func() bool {
			e := service(tc.namespace, tc.tls)
			e.UID = types.UID(what) // all are of one name
			m, err = s.Of(t.Context(), e)
			return !errors.Is(err, ErrNotRead)
		})
		if (err == nil) != (tc.fail == "") || err != nil && !strings.Contains(err.Error(), tc.fail) {
			t.Errorf("%s: %v, want %q", what, err, tc.fail)
		}
		if err != nil && strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: a value is in the error", what)
		}
		if (m == nil) != (err != nil) {
			t.Errorf("%s: %v beside %v", what, m, err)
		}
	}
}

// plane is a control plane's end, and what each node needs.
type plane struct {
	identityv1.UnimplementedIdentityServer
	server *Server
}

func (p *plane) External(r *identityv1.ExternalRequest, s grpc.ServerStreamingServer[identityv1.ExternalResponse]) error {
	return p.server.External(r, s)
}

// connect a client to a plane, until the test ends.
func connect(t *testing.T, p identityv1.IdentityServer) identityv1.IdentityClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	identityv1.RegisterIdentityServer(server, p)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-served })
	return identityv1.NewIdentityClient(conn)
}

// keep runs a keeper until stop is called.
func keep(t *testing.T, dir string, client identityv1.IdentityClient) (k *Keeper, stop func()) {
	t.Helper()
	k = NewKeeper(KeeperConfig{Dir: dir, Client: client, Saved: func(_ string, err error) {
		if err != nil {
			t.Error(err)
		}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = k.Run(ctx) }()
	return k, func() { cancel(); <-done }
}

// TestKeeper: a node has what its services need, in each version, over restarts without a
// control plane, protected on disk, and nothing that it does not need.
func TestKeeper(t *testing.T) {
	ca := catest.New(t, "root", nil, nil)
	cert, key := pair(t, ca, time.Now().Add(time.Hour))
	s, client := run(t, secret("shop", "s", map[string][]byte{"ca": catest.PEM(ca), "cert": cert, "key": key}))
	pay := service("shop", meshv1alpha1.ExternalServiceTLS{CACertificates: from("s", "ca"), ClientCertificate: from("s", "cert"), ClientKey: from("s", "key")})
	p := &plane{server: NewServer(ServerConfig{
		Caller: func(context.Context) (string, error) { return "n1", nil }, Source: s,
		Needs: func(string) ([]*meshv1alpha1.ExternalService, <-chan struct{}, error) {
			return []*meshv1alpha1.ExternalService{pay}, nil, nil
		},
	})}
	dir, name, other := t.TempDir(), proxy.ServiceName{Namespace: "shop", Name: "pay"}, proxy.ServiceName{Namespace: "shop", Name: "other"}
	k, stop := keep(t, dir, connect(t, p))
	testkit.Eventually(t, "the node has what the service needs", func() bool {
		roots, pair, err := k.Get(name, 3)
		return err == nil && roots != nil && pair != nil
	})
	if _, _, err := k.Get(name, 4); err == nil {
		t.Error("credentials of an older version of the service are used for a newer one")
	}
	if _, _, err := k.Get(other, 1); err == nil || !strings.Contains(err.Error(), "only nodes") {
		t.Errorf("a service that the node does not connect to: %v", err)
	}
	testkit.Eventually(t, "it is on disk, for the agent's user alone", func() bool {
		info, err := os.Stat(path(dir))
		return err == nil && info.Mode().Perm() == 0o600
	})
	stop()

	nobody := connect(t, identityv1.UnimplementedIdentityServer{})
	k, stop = keep(t, dir, nobody)
	if _, pair, err := k.Get(name, 3); err != nil || pair == nil {
		t.Errorf("after a restart without a control plane: %v", err)
	}
	testkit.Eventually(t, "the reason names the version", func() bool {
		_, _, err := k.Get(other, 1)
		return err != nil && strings.Contains(err.Error(), "upgrade")
	})
	stop()

	k, stop = keep(t, dir, connect(t, p))
	defer stop()
	update(t, client, func(s *corev1.Secret) { delete(s.Data, "key") })
	testkit.Eventually(t, "what is gone from the Secret is refused", func() bool {
		_, _, err := k.Get(name, 3)
		return err != nil && strings.Contains(err.Error(), `no value "key"`)
	})
	renewed, renewedKey := pair(t, ca, time.Now().Add(2*time.Hour))
	update(t, client, func(s *corev1.Secret) { s.Data["cert"], s.Data["key"] = renewed, renewedKey })
	testkit.Eventually(t, "the new certificate is used", func() bool {
		_, pair, err := k.Get(name, 3)
		return err == nil && string(certpem.EncodeDER(pair.Certificate[0])) == string(renewed)
	})
}

func update(t *testing.T, client resource.Client, edit func(*corev1.Secret)) {
	t.Helper()
	obj, err := client.Get(t.Context(), kind.Secret, resource.Key{Namespace: "shop", Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	s := obj.DeepCopyObject().(*corev1.Secret)
	edit(s)
	if _, err := client.Update(t.Context(), kind.Secret, s); err != nil {
		t.Fatal(err)
	}
}

// TestDisk: files that are not ours, or that others may read, are given up; nothing needed
// leaves no file.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	for what, data := range map[string]string{"junk": "junk", "a newer version": `{"version":9,"services":[]}`} {
		if err := os.WriteFile(path(dir), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(dir); err == nil {
			t.Errorf("%s is read", what)
		}
	}
	if err := os.WriteFile(path(dir), []byte(`{"version":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path(dir), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := load(dir); err == nil {
		t.Error("a file that others may read is used")
	}
	if err := save(dir, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
}

// FuzzReceive: whatever a control plane, or the disk, says is usable as a whole or refused.
func FuzzReceive(f *testing.F) {
	ca := catest.New(f, "root", nil, nil)
	cert, key := pair(f, ca, time.Now().Add(time.Hour))
	f.Add("shop", "pay", "", catest.PEM(ca), cert, key)
	f.Add("shop", "pay", "problem", []byte(nil), []byte(nil), []byte(nil))
	f.Add("shop", "pay", "", []byte("x"), cert, []byte(nil))
	f.Fuzz(func(t *testing.T, namespace, name, problem string, roots, cert, key []byte) {
		of, h := receive(&identityv1.ExternalCredentials{
			Namespace: namespace, Name: name, Problem: problem, Roots: roots, Certificate: cert, Key: key,
		})
		if of.Namespace != namespace || of.Name != name {
			t.Errorf("of %v", of)
		}
		if usable := h.roots != nil || h.pair != nil; usable == (h.problem != "") {
			t.Errorf("usable: %v, problem: %q", usable, h.problem)
		}
		if h.problem != "" && (h.stored.Key != "" && problem == "") {
			t.Error("a key that cannot be used is kept")
		}
		if _, err := decode(roots); err == nil && len(roots) == 0 {
			t.Error("nothing is a file")
		}
	})
}

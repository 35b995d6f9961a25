package authorities_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authorities"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records are authorities.Records in memory.
type records struct {
	mu      sync.Mutex
	all     map[string]record
	version int64
	changed chan struct{}
}

type record struct {
	data    []byte
	version int64
}

func newRecords() *records { return &records{all: map[string]record{}, changed: make(chan struct{})} }

func (r *records) Names(_ context.Context, prefix string) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name := range r.all {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (r *records) Watch(ctx context.Context, changed func()) error {
	for {
		r.mu.Lock()
		next := r.changed
		r.mu.Unlock()
		changed()
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

func (r *records) put(name string, data []byte, only func(record) bool) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !only(r.all[name]) {
		return 0, rotation.ErrConflict
	}
	r.version++
	r.all[name] = record{data, r.version}
	if data == nil {
		delete(r.all, name)
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return r.version, nil
}

func (r *records) Record(name string) authorities.Record { return one{r, name} }
func (r *records) Simple(name string) authority.Keeper   { return simple{one{r, name}} }

type one struct {
	records *records
	name    string
}

func (o one) Load(context.Context) ([]byte, int64, error) {
	o.records.mu.Lock()
	defer o.records.mu.Unlock()
	found := o.records.all[o.name]
	return found.data, found.version, nil
}

func (o one) Save(_ context.Context, data []byte, version int64) (int64, error) {
	return o.records.put(o.name, data, func(r record) bool { return r.version == version })
}

func (o one) Delete(context.Context) error {
	_, err := o.records.put(o.name, nil, func(record) bool { return true })
	return err
}

type simple struct{ one one }

func (s simple) Load(ctx context.Context) ([]byte, error) {
	data, _, err := s.one.Load(ctx)
	return data, err
}

func (s simple) Save(_ context.Context, data []byte) error {
	_, err := s.one.records.put(s.one.name, data, func(record) bool { return true })
	return err
}

// plane runs the authorities of a standalone control plane and its leader.
type plane struct {
	t       *testing.T
	client  *resourcetest.Client
	records *records
	own     *authorities.Authorities
	config  authorities.Config

	mu        sync.Mutex
	published map[string]authorities.Published
}

func newPlane(t *testing.T, r *records, csrs authority.CSRs) *plane {
	t.Helper()
	p := &plane{t: t, client: resourcetest.New(kind.Mesh, kind.GlobalSecret), records: r, published: map[string]authorities.Published{}}
	p.config = authorities.Config{
		Zone: "local", Client: p.client, Records: r, Intermediates: authorities.Local(r, "local", time.Now), CSRs: csrs,
		Files: func(string, string, string) authorities.FileSource { panic("no files") },
		Publish: func(s authorities.Published) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.published[s.State.Mesh] = s
			return nil
		},
		Unpublish: func(name string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.published, name)
		},
	}
	p.own = authorities.New(p.config)
	return p
}

// run until the test ends. peers are those of every mesh.
func (p *plane) run(peers func() []rotation.Peer, acked <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.own.Run(ctx) })
	leader := authorities.NewLeader(authorities.LeaderConfig{
		Authorities: p.own, Client: p.client, Acked: acked, Members: func(string) []string { return []string{"shop/web"} },
		Peers: func(string) []rotation.Peer { return peers() },
	})
	running.Go(func() { _ = leader.Run(ctx) })
	p.t.Cleanup(func() { cancel(); running.Wait() })
}

func nobody() []rotation.Peer { return nil }

func (p *plane) write(m *v1alpha1.Mesh) {
	p.t.Helper()
	for {
		old, err := p.client.Get(p.t.Context(), kind.Mesh, resource.KeyOf(m))
		if err != nil {
			_, err = p.client.Create(p.t.Context(), kind.Mesh, m)
		} else {
			next := old.(*v1alpha1.Mesh)
			next.Spec = m.Spec
			_, err = p.client.Update(p.t.Context(), kind.Mesh, next)
		}
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "modified") && !strings.Contains(err.Error(), "onflict") {
			p.t.Fatal(err)
		}
	}
}

// eventually waits for a Mesh's status.
func (p *plane) eventually(name, what string, ok func(v1alpha1.MeshStatus) bool) v1alpha1.MeshStatus {
	p.t.Helper()
	var status v1alpha1.MeshStatus
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		obj, err := p.client.Get(p.t.Context(), kind.Mesh, resource.Key{Name: name})
		if err != nil {
			p.t.Fatal(err)
		}
		if status = obj.(*v1alpha1.Mesh).Status; ok(status) {
			return status
		}
	}
	p.t.Fatalf("never: %s: %+v", what, status)
	return status
}

func ready(reason string) func(v1alpha1.MeshStatus) bool {
	return func(s v1alpha1.MeshStatus) bool {
		c := apimeta.FindStatusCondition(s.Conditions, v1alpha1.MeshCertificatesReady)
		return c != nil && c.Reason == reason
	}
}

func newMesh(name string, mtls *v1alpha1.MeshMTLS) *v1alpha1.Mesh {
	return &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MeshSpec{MTLS: mtls}}
}

func enable(enabled string, backends ...v1alpha1.MeshCertificateBackend) *v1alpha1.MeshMTLS {
	return &v1alpha1.MeshMTLS{EnabledBackend: enabled, Backends: backends}
}

// sign a certificate of the mesh's issuer, and return it.
func (p *plane) sign(name string) (*x509.Certificate, error) {
	p.t.Helper()
	i, ok := p.own.Issuer(name)
	if !ok {
		return nil, errors.New("no issuer")
	}
	id, err := mesh.Workload(i.Domain, "shop", "web")
	if err != nil {
		return nil, err
	}
	key, err := authority.NewKey()
	if err != nil {
		return nil, err
	}
	der, err := authority.NewCSR(id, key)
	if err != nil {
		return nil, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	chain, err := i.Signer.Sign(p.t.Context(), authority.Request{ID: id, CSR: csr, Life: i.Life})
	if err != nil {
		return nil, err
	}
	return chain[0], nil
}

// TestBuiltin: a root is made once, kept over a restart, and certificates have the life
// that the backend says.
func TestBuiltin(t *testing.T) {
	r := newRecords()
	m := newMesh("shop", enable("ca", v1alpha1.MeshCertificateBackend{
		Name: "ca", WorkloadCertificate: &v1alpha1.MeshWorkloadCertificate{ValiditySeconds: new(int32(60))},
	}))
	var ids []string
	for range 2 { // with the same records
		p := newPlane(t, r, nil)
		p.write(m.DeepCopy()) // first: the leader deletes what is left of meshes that are gone
		p.run(nobody, nil)
		status := p.eventually("shop", "it issues", ready("Issuing"))
		ids = append(ids, status.MTLS.Authorities[0].ID)
		c, err := p.sign("shop")
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(c.NotAfter); left > time.Minute || left < 50*time.Second {
			t.Errorf("a life of %s", left)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("another root after a restart: %s", ids)
	}
}

// gated issues as many intermediates as are left.
type gated struct {
	authority.IntermediateIssuer
	left *atomic.Int64
}

func (g gated) IssueIntermediate(ctx context.Context, meshName string, csr []byte) (*authority.Intermediate, error) {
	if g.left.Add(-1) < 0 {
		return nil, errors.New("the key of the root is not there")
	}
	return g.IntermediateIssuer.IssueIntermediate(ctx, meshName, csr)
}

// TestIssuingIsTrue: no Mesh says that certificates are signed before they can be, and it
// says so soon after.
func TestIssuingIsTrue(t *testing.T) {
	r := newRecords()
	p := newPlane(t, r, nil)
	var left atomic.Int64
	left.Store(1) // of the check of a root before it is trusted
	local := authorities.Local(r, "local", time.Now)
	p.config.Intermediates = func(meshName string, a rotation.Authority) authority.IntermediateIssuer {
		return gated{local(meshName, a), &left}
	}
	p.own = authorities.New(p.config)
	p.run(nobody, nil)
	p.write(newMesh("shop", enable("ca", v1alpha1.MeshCertificateBackend{Name: "ca"})))
	status := p.eventually("shop", "it says why", ready("CannotSign"))
	if c := status.Conditions[0]; c.Status != metav1.ConditionFalse || c.Message != "the key of the root is not there" {
		t.Errorf("%s %q", c.Status, c.Message)
	}
	if _, err := p.sign("shop"); !errors.Is(err, authority.ErrCannotSign) {
		t.Errorf("without an intermediate: %v", err)
	}
	left.Store(10)
	p.eventually("shop", "it issues", ready("Issuing"))
	if _, err := p.sign("shop"); err != nil {
		t.Error(err)
	}
}

// TestTurnedOnLater: a mesh whose workloads sent plain text gets mTLS by overlap, which
// waits for peers.
func TestTurnedOnLater(t *testing.T) {
	p := newPlane(t, newRecords(), nil)
	acked := make(chan struct{}, 1)
	var mu sync.Mutex
	generation := uint64(0)
	p.run(func() []rotation.Peer {
		mu.Lock()
		defer mu.Unlock()
		return []rotation.Peer{{Name: "node/n1", Connected: true, Acked: generation}}
	}, acked)
	p.write(newMesh("shop", nil))
	p.write(newMesh("shop", enable("ca", v1alpha1.MeshCertificateBackend{Name: "ca"})))
	status := p.eventually("shop", "it waits", ready("Rotating"))
	p.eventually("shop", "it names who it waits for", func(s v1alpha1.MeshStatus) bool {
		return s.MTLS != nil && slices.Contains(s.MTLS.WaitingFor, "node/n1")
	})
	if _, err := p.sign("shop"); err == nil {
		t.Error("certificates are issued before the root is trusted")
	}
	_ = status
	for range 3 {
		mu.Lock()
		generation = 10
		mu.Unlock()
		select {
		case acked <- struct{}{}:
		default:
		}
	}
	p.eventually("shop", "it issues", ready("Issuing"))
}

// TestDomainTaken: of two meshes with one trust domain, the older one has it.
func TestDomainTaken(t *testing.T) {
	p := newPlane(t, newRecords(), nil)
	p.run(nobody, nil)
	p.write(newMesh("a", enable("ca", v1alpha1.MeshCertificateBackend{Name: "ca"})))
	p.eventually("a", "it issues", ready("Issuing"))
	second := newMesh("b", enable("ca", v1alpha1.MeshCertificateBackend{Name: "ca"}))
	second.Spec.MTLS.TrustDomain = "a.mesh"
	p.write(second)
	status := p.eventually("b", "it is refused", ready("CannotSign"))
	if c := status.Conditions[0]; !strings.Contains(c.Message, "mesh a has the trust domain a.mesh") {
		t.Errorf("message %q", c.Message)
	}
	if _, ok := p.own.Issuer("b"); ok {
		t.Error("the second mesh issues")
	}
}

// signer answers CertificateSigningRequests as someone else's controller does.
type signer struct {
	api  *fake.Clientset
	ca   *catest.CA
	mute bool
}

func (s *signer) run(t *testing.T) {
	t.Helper()
	api := s.api.CertificatesV1().CertificateSigningRequests()
	w, err := api.Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || s.mute || event.Type != "ADDED" {
				continue
			}
			csr = csr.DeepCopy()
			block, _ := pem.Decode(csr.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Error(err)
				continue
			}
			leaf, err := s.ca.Sign(&x509.Certificate{
				NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), URIs: request.URIs, BasicConstraintsValid: true,
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			}, request.PublicKey)
			if err != nil {
				t.Error(err)
				continue
			}
			csr.Status.Certificate = certpem.EncodeCertificates(leaf)
			csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Policy",
			})
			if _, err := api.UpdateStatus(context.Background(), csr, metav1.UpdateOptions{}); err != nil {
				t.Logf("the request is gone: %v", err)
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
}

// TestExternal: a signer of certificates.k8s.io signs; the change from it to a built-in
// authority overlaps.
func TestExternal(t *testing.T) {
	s := &signer{api: fake.NewClientset(), ca: catest.New(t, "signer", nil, nil)}
	s.run(t)
	p := newPlane(t, newRecords(), s.api.CertificatesV1().CertificateSigningRequests())
	p.run(nobody, nil)
	external := v1alpha1.MeshCertificateBackend{
		Name: "signer", Type: v1alpha1.BackendExternal,
		External: &v1alpha1.MeshExternalAuthority{SignerName: "example.com/mesh", Roots: v1alpha1.DataSource{Inline: catest.PEM(s.ca)}},
	}
	before := newMesh("shop", nil)
	with := newMesh("shop", enable("signer", external))
	p.write(before)
	if err := p.own.CheckUpdate(t.Context(), with, before); err != nil {
		t.Errorf("a signer that answers is refused: %v", err)
	}
	p.write(with)
	p.eventually("shop", "it issues", ready("Issuing"))
	c, err := p.sign("shop")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckSignatureFrom(s.ca.Cert); err != nil {
		t.Error(err)
	}
	other := external
	other.Name = "other"
	other.External = &v1alpha1.MeshExternalAuthority{
		SignerName: "example.com/other", Roots: v1alpha1.DataSource{Inline: catest.PEM(catest.New(t, "other", nil, nil))},
	}
	if err := p.own.CheckUpdate(t.Context(), newMesh("shop", enable("other", external, other)), with); err == nil ||
		!strings.Contains(err.Error(), "backend other cannot sign now") {
		t.Errorf("a signer whose roots do not verify what it signs: %v", err)
	}
	p.write(newMesh("shop", enable("ca", external, v1alpha1.MeshCertificateBackend{Name: "ca"})))
	p.eventually("shop", "the built-in authority issues alone", func(s v1alpha1.MeshStatus) bool {
		return s.MTLS != nil && s.MTLS.Phase == "Stable" && s.MTLS.Authorities[0].Backend == "ca"
	})
}

// TestWithoutSignerAPI: an external backend is refused by name where no API is configured.
func TestWithoutSignerAPI(t *testing.T) {
	p := newPlane(t, newRecords(), nil)
	p.run(nobody, nil)
	p.write(newMesh("shop", enable("signer", v1alpha1.MeshCertificateBackend{
		Name: "signer", Type: v1alpha1.BackendExternal,
		External: &v1alpha1.MeshExternalAuthority{
			SignerName: "example.com/mesh", Roots: v1alpha1.DataSource{Inline: catest.PEM(catest.New(t, "signer", nil, nil))},
		},
	})))
	status := p.eventually("shop", "it says why", ready("CannotSign"))
	if !strings.Contains(status.Conditions[0].Message, "--signer-kubeconfig") {
		t.Errorf("message %q", status.Conditions[0].Message)
	}
}

// TestMeshDeleted: nothing is left of a mesh that is gone.
func TestMeshDeleted(t *testing.T) {
	r := newRecords()
	p := newPlane(t, r, nil)
	p.run(nobody, nil)
	p.write(newMesh("shop", enable("ca", v1alpha1.MeshCertificateBackend{Name: "ca"})))
	p.eventually("shop", "it issues", ready("Issuing"))
	if err := p.client.Delete(t.Context(), kind.Mesh, resource.Key{Name: "shop"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		names, _ := r.Names(t.Context(), "")
		p.mu.Lock()
		published := len(p.published)
		p.mu.Unlock()
		if len(names) == 0 && published == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %q, %d published", names, published)
		}
	}
}

// TestProblemsElsewhere: the status of a Mesh has what zones report.
func TestProblemsElsewhere(t *testing.T) {
	p := newPlane(t, newRecords(), nil)
	var trouble atomic.Pointer[string]
	acked := make(chan struct{})
	p.run(func() []rotation.Peer {
		if s := trouble.Load(); s != nil {
			return []rotation.Peer{{Name: "zone b", Problem: *s}, {Name: "zone a"}}
		}
		return nil
	}, acked)
	p.write(newMesh("shop", enable("own", v1alpha1.MeshCertificateBackend{Name: "own"})))
	p.eventually("shop", "it issues", ready("Issuing"))
	trouble.Store(new("no key"))
	acked <- struct{}{}
	p.eventually("shop", "the problem of zone b", func(s v1alpha1.MeshStatus) bool {
		c := apimeta.FindStatusCondition(s.Conditions, v1alpha1.MeshCertificatesReady)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == "CannotSign" && c.Message == "zone b: no key"
	})
}

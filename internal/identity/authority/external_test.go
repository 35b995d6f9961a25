package authority_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	typed "k8s.io/client-go/kubernetes/typed/certificates/v1"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
)

// The typed client is what app will give.
var _ authority.CSRs = typed.CertificateSigningRequestInterface(nil)

const signerName = "example.com/mesh"

// signer answers CertificateSigningRequests as a controller of someone else's does.
type signer struct {
	api    typed.CertificateSigningRequestInterface
	ca     *catest.CA
	middle *catest.CA
	// approve requests, too. False: the test's own subject does.
	approve bool
	deny    bool
	silent  bool
	edit    func(*x509.Certificate)
	// data replaces the certificate.
	data []byte

	mu   sync.Mutex
	seen []*certificatesv1.CertificateSigningRequest
}

// run until the returned function is called.
func (s *signer) run(t *testing.T) (stop func()) {
	t.Helper()
	w, err := s.api.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || event.Type == "DELETED" || csr.Spec.SignerName != signerName || len(csr.Status.Certificate) > 0 {
				continue
			}
			if err := s.answer(csr.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	}()
	return func() { w.Stop(); <-done }
}

func (s *signer) answer(csr *certificatesv1.CertificateSigningRequest) error {
	s.mu.Lock()
	s.seen = append(s.seen, csr.DeepCopy())
	s.mu.Unlock()
	ctx := context.Background()
	if s.silent {
		return nil
	}
	set := func(c certificatesv1.RequestConditionType) (err error) {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: c, Status: corev1.ConditionTrue, Reason: "Policy", Message: "as the policy requires",
		})
		csr, err = s.api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
		return err
	}
	switch {
	case len(csr.Status.Conditions) > 0:
	case s.deny:
		return set(certificatesv1.CertificateDenied)
	case !s.approve:
		return nil
	default:
		if err := set(certificatesv1.CertificateApproved); err != nil {
			return err
		}
	}
	csr = csr.DeepCopy()
	csr.Status.Certificate = s.sign(csr)
	_, err := s.api.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return err
}

func (s *signer) sign(csr *certificatesv1.CertificateSigningRequest) []byte {
	if s.data != nil {
		return s.data
	}
	block, _ := pem.Decode(csr.Spec.Request)
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return []byte(err.Error())
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Duration(*csr.Spec.ExpirationSeconds) * time.Second), URIs: r.URIs, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	public := r.PublicKey
	if s.edit != nil {
		s.edit(c)
	}
	if c.PublicKey != nil {
		public = c.PublicKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, s.middle.Cert, public, s.middle.Key)
	if err != nil {
		return []byte(err.Error())
	}
	leaf, _ := x509.ParseCertificate(der)
	return certpem.EncodeCertificates(leaf, s.middle.Cert, s.ca.Cert)
}

func newSigner(t *testing.T) *signer {
	ca := catest.New(t, "company root", nil, nil)
	return &signer{api: fake.NewClientset().CertificatesV1().CertificateSigningRequests(), ca: ca,
		middle: catest.New(t, "company issuer", ca, nil), approve: true}
}

func (s *signer) external(t *testing.T, edit func(*authority.ExternalConfig)) *authority.External {
	t.Helper()
	c := authority.ExternalConfig{
		Domain: domain(t, "shop.mesh"), SignerName: signerName, API: s.api, Roots: []*x509.Certificate{s.ca.Cert}, Timeout: 10 * time.Second,
	}
	if edit != nil {
		edit(&c)
	}
	e, err := authority.NewExternal(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExternal(t *testing.T) {
	for _, approve := range []bool{false, true} {
		s := newSigner(t)
		s.approve = !approve
		stop := s.run(t)
		e := s.external(t, func(c *authority.ExternalConfig) { c.Approve = approve })
		r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
		chain, err := e.Sign(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if len(chain) != 2 {
			t.Errorf("a chain of %d: the root does not belong to it", len(chain))
		}
		if peer, err := verify(t, e, chain, time.Now()); err != nil || peer.ID != r.ID {
			t.Errorf("%+v %v", peer, err)
		}
		stop()
		spec := s.seen[0].Spec
		if spec.SignerName != signerName || *spec.ExpirationSeconds != 24*3600 || len(spec.Usages) != 3 {
			t.Errorf("%+v", spec)
		}
		left, err := s.api.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) != 0 {
			t.Errorf("%d objects are left: %v", len(left.Items), err)
		}
	}
}

func TestExternalRefusals(t *testing.T) {
	otherKey, _ := authority.NewKey()
	foreign := catest.New(t, "foreign", nil, nil)
	for what, prepare := range map[string]func(s *signer, c *authority.ExternalConfig){
		"another identity": func(s *signer, _ *authority.ExternalConfig) {
			s.edit = func(c *x509.Certificate) { c.URIs = []*url.URL{workload(t, "shop.mesh", "web", "admin").URL()} }
		},
		"another key": func(s *signer, _ *authority.ExternalConfig) {
			s.edit = func(c *x509.Certificate) { c.PublicKey = otherKey.Public() }
		},
		"a DNS name": func(s *signer, _ *authority.ExternalConfig) {
			s.edit = func(c *x509.Certificate) { c.DNSNames = []string{"web.shop"} }
		},
		"an authority": func(s *signer, _ *authority.ExternalConfig) { s.edit = func(c *x509.Certificate) { c.IsCA = true } },
		"clients only": func(s *signer, _ *authority.ExternalConfig) {
			s.edit = func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }
		},
		"run out": func(s *signer, _ *authority.ExternalConfig) {
			s.edit = func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }
		},
		"not of the roots": func(_ *signer, c *authority.ExternalConfig) { c.Roots = []*x509.Certificate{foreign.Cert} },
		"no certificate":   func(s *signer, _ *authority.ExternalConfig) { s.data = []byte("sorry") },
		"denied":           func(s *signer, _ *authority.ExternalConfig) { s.deny = true },
		"no answer":        func(s *signer, c *authority.ExternalConfig) { s.silent, c.Timeout = true, 50*time.Millisecond },
		"no approval":      func(s *signer, c *authority.ExternalConfig) { s.approve, c.Timeout = false, 50*time.Millisecond },
	} {
		s := newSigner(t)
		e := s.external(t, func(c *authority.ExternalConfig) { prepare(s, c) })
		stop := s.run(t)
		r, _ := request(t, workload(t, "shop.mesh", "web", "front"))
		_, err := e.Sign(t.Context(), r)
		if err == nil {
			t.Errorf("%s: signed", what)
		}
		var denied *authority.DeniedError
		if s.deny != errors.As(err, &denied) {
			t.Errorf("%s: %v", what, err)
		}
		if late := s.silent || !s.approve; late != errors.Is(err, authority.ErrCannotSign) {
			t.Errorf("%s: %v", what, err)
		}
		if err := authority.Probe(t.Context(), e, domain(t, "shop.mesh"), time.Now()); err == nil {
			t.Errorf("%s: the probe succeeds", what)
		}
		stop()
		if left, err := s.api.List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
			t.Errorf("%s: %d objects are left: %v", what, len(left.Items), err)
		}
	}
}

func TestNewExternal(t *testing.T) {
	s := newSigner(t)
	for what, edit := range map[string]func(*authority.ExternalConfig){
		"no signer name":   func(c *authority.ExternalConfig) { c.SignerName = "" },
		"no domain in it":  func(c *authority.ExternalConfig) { c.SignerName = "mesh" },
		"Kubernetes's own": func(c *authority.ExternalConfig) { c.SignerName = "kubernetes.io/kube-apiserver-client" },
		"no roots":         func(c *authority.ExternalConfig) { c.Roots = nil },
		"no API":           func(c *authority.ExternalConfig) { c.API = nil },
	} {
		c := authority.ExternalConfig{Domain: domain(t, "shop.mesh"), SignerName: signerName, API: s.api, Roots: []*x509.Certificate{s.ca.Cert}}
		edit(&c)
		if _, err := authority.NewExternal(c); err == nil {
			t.Errorf("%s: made", what)
		}
	}
}

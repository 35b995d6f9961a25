package authority

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// ExternalTimeout bounds the wait for an external signer.
const ExternalTimeout = 60 * time.Second

// CSRs is the API of CertificateSigningRequest objects; client-go's
// CertificateSigningRequestInterface is one.
type CSRs interface {
	Create(
		ctx context.Context, csr *certificatesv1.CertificateSigningRequest, opts metav1.CreateOptions,
	) (*certificatesv1.CertificateSigningRequest, error)
	UpdateApproval(ctx context.Context, name string, csr *certificatesv1.CertificateSigningRequest,
		opts metav1.UpdateOptions) (*certificatesv1.CertificateSigningRequest, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// ExternalConfig configures an External. All fields but Approve, Timeout and Now are
// required.
type ExternalConfig struct {
	Domain mesh.Domain
	// SignerName of the signer, as in example.com/mesh.
	SignerName string
	API        CSRs
	// Roots of the signer: a CertificateSigningRequest does not bring them.
	Roots []*x509.Certificate
	// Approve the requests, which needs the permission to approve for the signer. False:
	// the signer or an approver of its own does.
	Approve bool
	Timeout time.Duration    // 0, or more than ExternalTimeout: ExternalTimeout
	Now     func() time.Time // nil: time.Now
}

// External has certificates signed through certificates.k8s.io/v1. Safe for concurrent
// use; each Sign makes one object, and deletes it when it is done.
type External struct{ config ExternalConfig }

// NewExternal makes an External. It does no I/O.
func NewExternal(c ExternalConfig) (*External, error) {
	switch {
	case !strings.Contains(c.SignerName, "/"):
		return nil, fmt.Errorf("external authority: signer name %q: want DOMAIN/NAME, as in example.com/mesh", c.SignerName)
	case strings.HasPrefix(c.SignerName, "kubernetes.io/"):
		return nil, fmt.Errorf("external authority: signer %s signs for Kubernetes itself, and not for other purposes", c.SignerName)
	case len(c.Roots) == 0:
		return nil, fmt.Errorf("external authority %s: its root certificates are missing", c.SignerName)
	case c.API == nil || c.Domain.IsZero():
		return nil, errors.New("external authority: API or trust domain is missing")
	}
	if c.Timeout <= 0 || c.Timeout > ExternalTimeout {
		c.Timeout = ExternalTimeout
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &External{c}, nil
}

// Roots implements Signer.
func (e *External) Roots() []*x509.Certificate { return e.config.Roots }

// DeniedError reports a signer or approver that refused.
type DeniedError struct{ Signer, Reason, Message string }

func (e *DeniedError) Error() string {
	return fmt.Sprintf("signer %s: the request was refused (%s): %s", e.Signer, e.Reason, e.Message)
}

// Sign implements Signer: it creates an object, waits for the signer, and checks what
// that signed. Errors: *DeniedError; ErrCannotSign if there is no answer in time.
func (e *External) Sign(ctx context.Context, r Request) ([]*x509.Certificate, error) {
	chain, err := e.sign(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s by %s: %w", r.ID, e.config.SignerName, err)
	}
	return chain, nil
}

func (e *External) sign(ctx context.Context, r Request) ([]*x509.Certificate, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.ID.Domain() != e.config.Domain {
		return nil, fmt.Errorf("the authority is of trust domain %s", e.config.Domain)
	}
	within, cancel := context.WithTimeout(ctx, e.config.Timeout)
	defer cancel()
	obj, err := e.config.API.Create(within, e.object(r), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create CertificateSigningRequest: %w", err)
	}
	defer e.remove(ctx, obj.Name)
	if e.config.Approve {
		if err := e.approve(within, obj); err != nil {
			return nil, err
		}
	}
	data, err := e.await(within, obj)
	if err != nil {
		if within.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("%w: CertificateSigningRequest %s was not signed within %s: "+
				"check that the signer is running and that its requests are approved",
				ErrCannotSign, obj.Name, e.config.Timeout)
		}
		return nil, err
	}
	chain, err := certpem.ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("the signer returned something else than certificates: %w", err)
	}
	chain = withoutRoots(chain)
	return chain, checkLeaf(r, chain, e.config.Roots, e.config.Now())
}

// minExpiration is the least that the API allows (certificates.k8s.io/v1).
const minExpiration = 600

func (e *External) object(r Request) *certificatesv1.CertificateSigningRequest {
	expiration := max(int32(r.life()/time.Second), minExpiration)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "proxima-" + strings.ToLower(rand.Text()),
			Labels:      map[string]string{"app.kubernetes.io/managed-by": "proxima"},
			Annotations: map[string]string{"mesh.proxima.dev/spiffe-id": r.ID.String()},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:           pem.EncodeToMemory(&pem.Block{Type: certpem.TypeRequest, Bytes: r.CSR.Raw}),
			SignerName:        e.config.SignerName,
			ExpirationSeconds: &expiration,
			Usages: []certificatesv1.KeyUsage{
				certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth,
			},
		},
	}
}

func (e *External) approve(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	approved := obj.DeepCopy()
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ProximaIssued",
		Message: "The control plane has checked that the workload has this identity.", LastUpdateTime: metav1.NewTime(e.config.Now()),
	})
	if _, err := e.config.API.UpdateApproval(ctx, obj.Name, approved, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("approve CertificateSigningRequest %s: %w", obj.Name, err)
	}
	return nil
}

// await the certificate. A watch that ends is opened again, from the object as it is
// then.
func (e *External) await(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for {
		current, err := e.config.API.Get(ctx, obj.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read CertificateSigningRequest %s: %w", obj.Name, err)
		}
		if current.UID != obj.UID {
			return nil, fmt.Errorf("CertificateSigningRequest %s was replaced by another one", obj.Name)
		}
		if data, err := e.outcome(current); data != nil || err != nil {
			return data, err
		}
		data, err := e.watch(ctx, current)
		if data != nil || err != nil {
			return data, err
		}
	}
}

// watch one object until it is decided; nil, nil: the watch ended before.
func (e *External) watch(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	w, err := e.config.API.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", obj.Name).String(), ResourceVersion: obj.ResourceVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("watch CertificateSigningRequest %s: %w", obj.Name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok || event.Type == watch.Error {
				return nil, pauseAfterWatch(ctx)
			}
			next, isCSR := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !isCSR || next.Name != obj.Name {
				continue
			}
			if event.Type == watch.Deleted {
				return nil, fmt.Errorf("CertificateSigningRequest %s was deleted before it was signed", obj.Name)
			}
			if data, err := e.outcome(next); data != nil || err != nil {
				return data, err
			}
		}
	}
}

// pauseAfterWatch keeps a watch that ends at once from being a busy loop.
func pauseAfterWatch(ctx context.Context) error {
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// outcome of a request; nil, nil: it is not decided.
func (e *External) outcome(csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return nil, &DeniedError{Signer: e.config.SignerName, Reason: c.Reason, Message: c.Message}
		case certificatesv1.CertificateApproved:
			approved = true
		}
	}
	if !approved || len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

// removeTimeout bounds the deletion of an object that is done with. Kubernetes deletes
// what remains after an hour by itself.
const removeTimeout = 5 * time.Second

func (e *External) remove(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_ = e.config.API.Delete(ctx, name, metav1.DeleteOptions{})
}

func withoutRoots(chain []*x509.Certificate) []*x509.Certificate {
	out := chain[:0:0]
	for _, c := range chain {
		if !isRoot(c) {
			out = append(out, c)
		}
	}
	return out
}

package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TokenIDKey is the extra of a user that names the token that was shown, or that
// bought the certificate.
const TokenIDKey = "mesh.proxima.dev/token-id"

// Authenticator authenticates a request by its bearer token, else by its client
// certificate. A request with an invalid credential is refused, never treated as
// anonymous; a request without a credential is anonymous.
type Authenticator struct {
	tokens *identity.Tokens
	roots  *x509.CertPool
	policy Policy
	log    *slog.Logger
	// verified certificates of connections.
	verified verified
}

// Policy is what an Authenticator checks beyond the authenticity of a credential.
type Policy struct {
	// Revocations withdraw credentials.
	Revocations *identity.Revocations
	// RenewExpired is how long after its end the certificate of a node or zone is
	// still taken, at identity.CertificatesPath only; 0: not at all.
	RenewExpired time.Duration
}

var _ authenticator.Request = (*Authenticator)(nil)

// NewAuthenticator checks tokens in the store and certificates against roots.
// The server must ask for client certificates without verifying them
// (tls.RequestClientCert), or verify them against the same roots.
func NewAuthenticator(tokens *identity.Tokens, roots *x509.CertPool, policy Policy, log *slog.Logger) *Authenticator {
	return &Authenticator{tokens: tokens, roots: roots, policy: policy, log: log}
}

// errScheme: an Authorization header that is not a bearer token.
var errScheme = errors.New("only bearer tokens and client certificates are understood")

// AuthenticateRequest implements authenticator.Request. ok is true or err is
// set. It reads the store if there is a token, and removes a valid token from the
// request. For requests to identity.CertificatesPath, the handler there checks for
// withdrawn credentials, so that it can answer with the reason.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	headers, shown := req.Header["Authorization"]
	switch {
	case shown && len(headers) == 1:
		return a.byToken(req, headers[0])
	case shown:
		return nil, false, errScheme // two answers to one question
	case req.TLS != nil && len(req.TLS.PeerCertificates) > 0:
		return a.byCertificate(req)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
}

func (a *Authenticator) byToken(req *http.Request, header string) (*authenticator.Response, bool, error) {
	scheme, text, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, false, errScheme
	}
	info, err := a.tokens.Lookup(req.Context(), strings.TrimSpace(text))
	var refused *identity.TokenError
	if errors.As(err, &refused) {
		a.log.Info("token refused", "token", refused.ID, "reason", refused.Reason, "from", req.RemoteAddr)
	}
	if err != nil {
		return nil, false, err
	}
	subject, err := info.Subject()
	if err != nil {
		return nil, false, err
	}
	req.Header.Del("Authorization")
	if err := a.admit(req, subject, info.Expires); err != nil {
		return nil, false, err
	}
	return respond(subject), true, nil
}

func (a *Authenticator) byCertificate(req *http.Request) (*authenticator.Response, bool, error) {
	chain := req.TLS.PeerCertificates
	leaf := chain[0]
	opts := x509.VerifyOptions{Roots: a.roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	subject, notAfter := identity.SubjectOf(leaf), leaf.NotAfter
	if a.mayRenewExpired(req, subject, leaf) {
		opts.CurrentTime, notAfter = leaf.NotAfter, time.Time{}
	}
	if err := a.verified.check(leaf, opts); err != nil {
		return nil, false, fmt.Errorf("client certificate: %w", err)
	}
	if subject.User == "" {
		return nil, false, errors.New("client certificate: it has no user name")
	}
	if err := a.admit(req, subject, notAfter); err != nil {
		return nil, false, err
	}
	return respond(subject), true, nil
}

// isCertificateRequest reports whether a request is one of a node or zone for a certificate.
// The certificate handler checks these itself, so that it can answer with the reason.
// All others, and workloads, get no certificate there.
func isCertificateRequest(req *http.Request, subject identity.Subject) bool {
	_, isNode := identity.NodeName(subject.User, subject.Groups)
	_, isZone := identity.ZoneName(subject.User, subject.Groups)
	return (isNode || isZone) && req.Method == http.MethodPost && req.URL.Path == identity.CertificatesPath
}

// mayRenewExpired reports whether an expired certificate is accepted for its renewal.
// TLS has already proven that the client has its key.
func (a *Authenticator) mayRenewExpired(req *http.Request, subject identity.Subject, leaf *x509.Certificate) bool {
	late := time.Since(leaf.NotAfter)
	return isCertificateRequest(req, subject) && late > 0 && late <= a.policy.RenewExpired
}

// admit refuses credentials that were withdrawn, and makes the request end when
// this one is.
func (a *Authenticator) admit(req *http.Request, subject identity.Subject, notAfter time.Time) error {
	if isCertificateRequest(req, subject) {
		return nil
	}
	err := a.policy.Revocations.Check(req.Context(), subject)
	if err == nil {
		err = bind(req.Context(), subject, notAfter)
	}
	if err != nil {
		a.log.Info("credential refused", "user", subject.User, "token", subject.TokenID, "reason", err, "from", req.RemoteAddr)
	}
	return err
}

func respond(s identity.Subject) *authenticator.Response {
	info := &user.DefaultInfo{Name: s.User, Groups: append(slices.Clone(s.Groups), user.AllAuthenticated)}
	info.Extra = s.Bounds.Extra()
	if s.TokenID != "" {
		info.Extra[TokenIDKey] = []string{s.TokenID}
	}
	return &authenticator.Response{User: info}
}

// subjectOf converts a user back to the subject, for handlers behind the authenticator.
func subjectOf(u user.Info) identity.Subject {
	s := identity.Subject{User: u.GetName(), Bounds: identity.BoundsOf(u.GetExtra())}
	for _, g := range u.GetGroups() {
		if g != user.AllAuthenticated {
			s.Groups = append(s.Groups, g)
		}
	}
	if ids := u.GetExtra()[TokenIDKey]; len(ids) == 1 {
		s.TokenID = ids[0]
	}
	return s
}

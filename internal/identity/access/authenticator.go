package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/identity"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TokenIDKey is the extra of a user that names the token that was shown, or that
// bought the certificate.
const TokenIDKey = "mesh.proxima.dev/token-id"

// Authenticator recognises a request by its bearer token, else by its client
// certificate. Whoever shows something that is wrong is refused, never taken for
// anonymous; whoever shows nothing is anonymous.
type Authenticator struct {
	tokens *identity.Tokens
	roots  *x509.CertPool
	log    *slog.Logger
}

var _ authenticator.Request = (*Authenticator)(nil)

// NewAuthenticator checks tokens in the store and certificates against roots.
// The server must ask for client certificates without verifying them
// (tls.RequestClientCert), or verify them against the same roots.
func NewAuthenticator(tokens *identity.Tokens, roots *x509.CertPool, log *slog.Logger) *Authenticator {
	return &Authenticator{tokens: tokens, roots: roots, log: log}
}

// errScheme: an Authorization header that is not a bearer token.
var errScheme = errors.New("only bearer tokens and client certificates are understood")

// AuthenticateRequest implements authenticator.Request. ok is true or err is
// set. It reads the store if there is a token, and takes the token out of the
// request when it was good.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	headers, shown := req.Header["Authorization"]
	switch {
	case shown && len(headers) == 1:
		return a.byToken(req, headers[0])
	case shown:
		return nil, false, errScheme // two answers to one question
	case req.TLS != nil && len(req.TLS.PeerCertificates) > 0:
		return a.byCertificate(req.TLS.PeerCertificates)
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
}

func (a *Authenticator) byToken(req *http.Request, header string) (*authenticator.Response, bool, error) {
	scheme, text, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, false, errScheme
	}
	subject, err := a.tokens.Check(req.Context(), strings.TrimSpace(text))
	var refused *identity.TokenError
	if errors.As(err, &refused) {
		a.log.Info("token refused", "token", refused.ID, "reason", refused.Reason, "from", req.RemoteAddr)
	}
	if err != nil {
		return nil, false, err
	}
	req.Header.Del("Authorization")
	return respond(subject), true, nil
}

func (a *Authenticator) byCertificate(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
	opts := x509.VerifyOptions{Roots: a.roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(opts); err != nil {
		return nil, false, fmt.Errorf("client certificate: %w", err)
	}
	if chain[0].Subject.CommonName == "" {
		return nil, false, errors.New("client certificate: it names nobody")
	}
	return respond(identity.SubjectOf(chain[0])), true, nil
}

func respond(s identity.Subject) *authenticator.Response {
	info := &user.DefaultInfo{Name: s.User, Groups: append(slices.Clone(s.Groups), user.AllAuthenticated)}
	if s.TokenID != "" {
		info.Extra = map[string][]string{TokenIDKey: {s.TokenID}}
	}
	return &authenticator.Response{User: info}
}

// subjectOf is the way back, for handlers behind the authenticator.
func subjectOf(u user.Info) identity.Subject {
	s := identity.Subject{User: u.GetName()}
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

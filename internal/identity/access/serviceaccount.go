package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// AgentAudience is the audience of the tokens by which agents in Kubernetes join. A token for
// another audience, as that of the cluster's API, is refused: it is no proof towards us.
const AgentAudience = "proxima"

var (
	// ErrServiceAccount: a token of a service account is refused; the error says why, and quotes
	// no token.
	ErrServiceAccount = errors.New("token of a service account")
	// ErrNotReviewed: the API of the cluster could not be asked; the token may be good.
	ErrNotReviewed = errors.New("the token could not be reviewed by the cluster")
)

// TokenReviewer asks the API of a cluster whose a token is.
type TokenReviewer interface {
	// ReviewToken blocks for a request to the API. An error means that it could not be asked.
	ReviewToken(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error)
}

// ServiceAccounts authenticates agents in Kubernetes by the projected token of their service
// account, where they ask for a certificate and nowhere else. The node is that of the pod to
// which the token is bound (KEP-4193), so an agent gets the certificate of its own node only.
// Other requests, and other credentials, are Next's.
type ServiceAccounts struct {
	Reviewer TokenReviewer
	// Namespace and Name of the agents' service account, and Gateways that of gateways; empty:
	// there are none. A gateway gets a certificate with the name of its pod.
	Namespace, Name, Gateways string
	Next                      authenticator.Request
	Logger                    *slog.Logger
}

var _ authenticator.Request = (*ServiceAccounts)(nil)

// AuthenticateRequest implements authenticator.Request. It blocks for a review of the token.
func (s *ServiceAccounts) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	token, ok := projected(req)
	if !ok {
		return s.Next.AuthenticateRequest(req)
	}
	req.Header.Del("Authorization")
	status, err := s.Reviewer.ReviewToken(req.Context(), token, []string{AgentAudience})
	if err != nil {
		s.Logger.Warn("a token of a service account could not be reviewed", "from", req.RemoteAddr, "error", err)
		return nil, false, fmt.Errorf("%w: %w", ErrNotReviewed, err)
	}
	node, err := s.nodeOf(&status)
	if err != nil {
		s.Logger.Info("token of a service account refused", "reason", err, "from", req.RemoteAddr)
		return nil, false, fmt.Errorf("%w: %w", ErrServiceAccount, err)
	}
	subject, err := identity.SubjectFor(identity.Node, node)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrServiceAccount, err)
	}
	info := &user.DefaultInfo{Name: subject.User, Groups: append(subject.Groups, user.AllAuthenticated)}
	return &authenticator.Response{User: info}, true, nil
}

// projected is the token of a service account that a request for a certificate shows. Such
// tokens are JSON Web Tokens, of three parts; ours have none.
func projected(req *http.Request) (token string, ok bool) {
	headers := req.Header["Authorization"]
	if req.Method != http.MethodPost || req.URL.Path != identity.CertificatesPath || len(headers) != 1 {
		return "", false
	}
	scheme, text, _ := strings.Cut(strings.TrimSpace(headers[0]), " ")
	text = strings.TrimSpace(text)
	return text, strings.EqualFold(scheme, "Bearer") && strings.Count(text, ".") == 2
}

// nodeOf an agent's token that was reviewed. Errors say why it is refused.
func (s *ServiceAccounts) nodeOf(status *authenticationv1.TokenReviewStatus) (string, error) {
	want, key := serviceaccount.MakeUsername(s.Namespace, s.Name), serviceaccount.NodeNameKey
	if s.Gateways != "" && status.User.Username == serviceaccount.MakeUsername(s.Namespace, s.Gateways) {
		want, key = status.User.Username, serviceaccount.PodNameKey
	}
	switch {
	case !status.Authenticated && status.Error != "":
		return "", fmt.Errorf("the cluster refuses the token: %s", status.Error)
	case !status.Authenticated:
		return "", errors.New("the cluster refuses the token")
	case !slices.Contains(status.Audiences, AgentAudience):
		// An API server that knows no audiences says nothing of them, and vouches for none.
		return "", fmt.Errorf("the token is not for the audience %q", AgentAudience)
	case status.User.Username != want:
		return "", fmt.Errorf("the token is of %s, and agents are %s", status.User.Username, want)
	}
	names := status.User.Extra[key]
	if len(names) != 1 || names[0] == "" {
		return "", errors.New("the token is not bound to a pod on a node: " +
			"agents need a projected token (serviceAccountToken), of Kubernetes 1.30 or newer")
	}
	return names[0], nil
}

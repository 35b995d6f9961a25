package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// reviewer answers reviews, and notes them.
type reviewer struct {
	status authenticationv1.TokenReviewStatus
	err    error
	asked  []string
}

func (r *reviewer) ReviewToken(_ context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
	r.asked = append(r.asked, token+" for "+strings.Join(audiences, ","))
	return r.status, r.err
}

// elsewhere is the authenticator behind.
type elsewhere struct{ asked int }

func (e *elsewhere) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	e.asked++
	return nil, false, nil
}

// agentToken is what the cluster says of a good token.
func agentToken() authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{AgentAudience},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:proxima-system:proxima-agent",
			Groups:   []string{"system:serviceaccounts", "system:masters"},
			Extra: map[string]authenticationv1.ExtraValue{
				serviceaccount.NodeNameKey: {"node-1"}, serviceaccount.PodNameKey: {"proxima-agent-x"},
			},
		},
	}
}

const jwt = "head.claims.signature"

func joinRequest(path, header string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	r.Header.Set("Authorization", header)
	return r
}

func serviceAccounts(r *reviewer, next *elsewhere) *ServiceAccounts {
	return &ServiceAccounts{Reviewer: r, Namespace: "proxima-system", Name: "proxima-agent", Next: next, Logger: slog.New(slog.DiscardHandler)}
}

// TestAgentJoinsByServiceAccount: the node is that of the token's pod, whatever groups the
// cluster names; and the token is asked about for our audience.
func TestAgentJoinsByServiceAccount(t *testing.T) {
	r, next := &reviewer{status: agentToken()}, &elsewhere{}
	req := joinRequest(identity.CertificatesPath, "Bearer "+jwt)
	got, ok, err := serviceAccounts(r, next).AuthenticateRequest(req)
	if !ok || err != nil {
		t.Fatal(err)
	}
	if got.User.GetName() != "system:node:node-1" || !slices.Equal(got.User.GetGroups(), []string{identity.GroupNodes, user.AllAuthenticated}) {
		t.Errorf("%+v", got.User)
	}
	if !slices.Equal(r.asked, []string{jwt + " for proxima"}) || next.asked != 0 {
		t.Errorf("asked %v, %d elsewhere", r.asked, next.asked)
	}
	if req.Header.Get("Authorization") != "" {
		t.Error("the token is still in the request")
	}
}

// TestGatewayJoinsByServiceAccount: a gateway has the name of its pod, where there are gateways.
func TestGatewayJoinsByServiceAccount(t *testing.T) {
	status := agentToken()
	status.User.Username = "system:serviceaccount:proxima-system:proxima-gateway"
	s := serviceAccounts(&reviewer{status: status}, &elsewhere{})
	if _, ok, err := s.AuthenticateRequest(joinRequest(identity.CertificatesPath, "Bearer "+jwt)); ok || !errors.Is(err, ErrServiceAccount) {
		t.Errorf("without gateways: %v", err)
	}
	s.Gateways = "proxima-gateway"
	got, ok, err := s.AuthenticateRequest(joinRequest(identity.CertificatesPath, "Bearer "+jwt))
	if !ok || err != nil || got.User.GetName() != "system:node:proxima-agent-x" {
		t.Errorf("%+v, %v", got, err)
	}
	delete(status.User.Extra, serviceaccount.PodNameKey)
	if _, ok, err := s.AuthenticateRequest(joinRequest(identity.CertificatesPath, "Bearer "+jwt)); ok || !strings.Contains(err.Error(), "not bound to a pod") {
		t.Errorf("of no pod: %v", err)
	}
}

// TestOtherServiceAccounts are refused, and never become somebody else.
func TestOtherServiceAccounts(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*authenticationv1.TokenReviewStatus)
		want string
	}{
		"not authenticated": {func(s *authenticationv1.TokenReviewStatus) { s.Authenticated, s.Error = false, "token has expired" }, "token has expired"},
		"another audience":  {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"api"} }, "audience"},
		"no audience":       {func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, "audience"},
		"another account": {func(s *authenticationv1.TokenReviewStatus) {
			s.User.Username = "system:serviceaccount:default:proxima-agent"
		}, "agents are system:serviceaccount:proxima-system:proxima-agent"},
		"a user":  {func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "kubernetes-admin" }, "agents are"},
		"no node": {func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, serviceaccount.NodeNameKey) }, "not bound to a pod"},
		"two": {func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra[serviceaccount.NodeNameKey] = []string{"a", "b"}
		}, "not bound"},
		"bad name": {func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra[serviceaccount.NodeNameKey] = []string{"A/b"}
		}, "name"},
	} {
		status := agentToken()
		tc.edit(&status)
		got, ok, err := serviceAccounts(&reviewer{status: status}, &elsewhere{}).AuthenticateRequest(joinRequest(identity.CertificatesPath, "Bearer "+jwt))
		if ok || got != nil || !errors.Is(err, ErrServiceAccount) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, tc.want)
		}
	}
	_, ok, err := serviceAccounts(&reviewer{err: errors.New("no way")}, &elsewhere{}).AuthenticateRequest(joinRequest(identity.CertificatesPath, "Bearer "+jwt))
	if ok || !errors.Is(err, ErrNotReviewed) {
		t.Errorf("an API that does not answer: %v", err)
	}
}

// TestServiceAccountsElsewhere: only requests for certificates are judged by the cluster.
func TestServiceAccountsElsewhere(t *testing.T) {
	r, next := &reviewer{status: agentToken()}, &elsewhere{}
	s := serviceAccounts(r, next)
	get := joinRequest(identity.CertificatesPath, "Bearer "+jwt)
	get.Method = http.MethodGet
	twice := joinRequest(identity.CertificatesPath, "Bearer "+jwt)
	twice.Header.Add("Authorization", "Bearer "+jwt)
	for _, req := range []*http.Request{
		joinRequest("/proxima/v1/status", "Bearer "+jwt), joinRequest(identity.CertificatesPath, "Bearer proxima_1_abc"),
		joinRequest(identity.CertificatesPath, "Basic "+jwt), get, twice, httptest.NewRequest(http.MethodPost, identity.CertificatesPath, nil),
	} {
		if _, ok, _ := s.AuthenticateRequest(req); ok {
			t.Errorf("%s %s is authenticated", req.Method, req.URL)
		}
	}
	if len(r.asked) != 0 || next.asked != 6 {
		t.Errorf("%d reviews, %d elsewhere", len(r.asked), next.asked)
	}
}

package apiserver

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// isPublic reports whether a path is readable without authentication: health, the version, and the files of the console.
func isPublic(path string) bool {
	if path == "/version" || path == "/version/" {
		return true
	}
	for _, prefix := range []string{"/healthz", "/livez", "/readyz", "/console"} {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return true
		}
	}
	return false
}

// door is the authenticator of the server. Credentials that are offered must
// hold: a wrong token is refused even where none is needed. Without any, only
// public paths are open.
type door struct{ next authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (d door) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	offered := offersCredentials(req) // before next, which may take them out of the request
	resp, ok, err := d.next.AuthenticateRequest(req)
	if ok && offered && isAnonymous(resp.User) {
		return nil, false, nil
	}
	if ok || err != nil || offered || !isPublic(req.URL.Path) {
		return resp, ok, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   user.Anonymous,
		Groups: []string{user.AllUnauthenticated},
	}}, true, nil
}

func isAnonymous(u user.Info) bool { return u == nil || u.GetName() == user.Anonymous }

func offersCredentials(req *http.Request) bool {
	if len(req.Header.Values("Authorization")) > 0 {
		return true
	}
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		return true
	}
	// Browsers send a WebSocket's token as a sub-protocol.
	for _, value := range req.Header.Values("Sec-WebSocket-Protocol") {
		if strings.Contains(value, "base64url.bearer.authorization.k8s.io.") {
			return true
		}
	}
	return false
}

// gate is the authorizer of the server: everyone may read public paths, anonymous
// users get no further, and all else is decided by the next authorizer.
type gate struct {
	next authorizer.UnconditionalAuthorizer
}

var _ authorizer.Authorizer = gate{}

// Authorize implements authorizer.Authorizer.
func (g gate) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() && isPublic(a.GetPath()) && (a.GetVerb() == "get" || a.GetVerb() == "head") {
		return authorizer.DecisionAllow, "", nil
	}
	decision, reason, err := g.next.Authorize(ctx, a)
	if isAnonymous(a.GetUser()) {
		if decision == authorizer.DecisionAllow || reason == "" {
			reason = "anonymous may read health, the version and the files of the console only"
		}
		return authorizer.DecisionDeny, reason, err
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize is Authorize: decisions here have no conditions.
func (g gate) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(g.Authorize(ctx, a))
}

// EvaluateConditions refuses: there are none to evaluate.
func (g gate) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

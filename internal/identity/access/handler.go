package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Certificates serves identity.CertificatesPath: it issues a client certificate of
// identity.ClientLife to a node, zone or workload. It runs after the API server's
// authentication and takes the user from the request's context; the subject of
// the certificate is that user, whatever the certificate request contains.
type Certificates struct {
	authority *identity.Authority
	tokens    *identity.Tokens
	policy    Policy
	// grpcAddress is returned to a machine that joins.
	grpcAddress string
	log         *slog.Logger
}

// NewCertificates makes the handler. The policy is that of the Authenticator.
// grpcAddress (host:port) may be empty.
func NewCertificates(
	authority *identity.Authority,
	tokens *identity.Tokens,
	policy Policy,
	grpcAddress string,
	log *slog.Logger,
) *Certificates {
	return &Certificates{authority: authority, tokens: tokens, policy: policy, grpcAddress: grpcAddress, log: log}
}

func (h *Certificates) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "POST a PEM certificate request")
		return
	}
	subject, err := h.subject(r)
	if err != nil {
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
		return
	}
	if err := h.policy.Revocations.Check(r.Context(), subject); err != nil {
		h.refuse(w, r, subject, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, identity.MaxRequest))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
			fmt.Sprintf("a certificate request has at most %d bytes", identity.MaxRequest))
		return
	}
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the request was cut off")
		return
	}
	csr, err := identity.ParseRequest(body)
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if err := h.record(r, subject); err != nil {
		h.refuse(w, r, subject, err)
		return
	}
	cert, notAfter, err := h.authority.SignClient(subject, identity.ClientLife, csr)
	if err != nil {
		h.log.Error("certificate not issued", "user", subject.User, "error", err)
		fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError,
			"the certificate could not be signed; see the control plane's log")
		return
	}
	h.log.Info("certificate issued", "user", subject.User, "token", subject.TokenID, "from", r.RemoteAddr, "runsOut", notAfter)
	answer(w, http.StatusOK, identity.CertificateAnswer{
		Certificate: string(cert), CA: string(h.authority.PEM()), NotAfter: notAfter, GRPCAddress: h.grpcAddress,
	})
}

// subject is the user of the request, with only the group of nodes, zones or workloads.
func (h *Certificates) subject(r *http.Request) (identity.Subject, error) {
	u, ok := request.UserFrom(r.Context())
	if !ok {
		return identity.Subject{}, errors.New("the request has no user")
	}
	s := subjectOf(u)
	if _, ok := identity.NodeName(s.User, s.Groups); ok {
		s.Groups = []string{identity.GroupNodes}
		return s, nil
	}
	if _, ok := identity.ZoneName(s.User, s.Groups); ok {
		s.Groups = []string{identity.GroupZones}
		return s, nil
	}
	if _, _, ok := identity.WorkloadName(s.User, s.Groups); ok {
		s.Groups = []string{identity.GroupWorkloads}
		return s, nil
	}
	return identity.Subject{}, fmt.Errorf("%s is neither a node nor a zone nor a workload: "+
		"join with a token of that kind (proxima token create --kind node --name NAME)", s.User)
}

// record notes the certificate before it is signed, so that a revocation from now
// on covers it.
func (h *Certificates) record(r *http.Request, s identity.Subject) error {
	notAfter := time.Now().Add(identity.ClientLife)
	return h.tokens.RecordIssue(r.Context(), s, identity.Issue{
		NotAfter: notAfter, RenewableUntil: notAfter.Add(h.policy.RenewExpired), Recover: !ranOut(r),
	})
}

// refuse answers with the reason: 403 if the credential was withdrawn, 503 if the
// store is unavailable.
func (h *Certificates) refuse(w http.ResponseWriter, r *http.Request, s identity.Subject, err error) {
	var token *identity.TokenError
	switch {
	case errors.Is(err, identity.ErrRevoked), errors.Is(err, identity.ErrNodeDeleted):
	case errors.As(err, &token) && token.Reason == identity.Revoked:
		err = fmt.Errorf("%w: join again with a new token", identity.ErrRevoked)
	case errors.As(err, &token):
		err = errors.New("the control plane has no record of the token that this certificate descends from: join again with a new token")
	default:
		h.log.Error("certificate not issued", "user", s.User, "token", s.TokenID, "error", err)
		fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "cannot check the token now; try again")
		return
	}
	h.log.Info("certificate not issued", "user", s.User, "token", s.TokenID, "reason", err, "from", r.RemoteAddr)
	fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
}

// ranOut reports whether the client certificate of a request has expired.
func ranOut(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && time.Now().After(r.TLS.PeerCertificates[0].NotAfter)
}

// TokensPath is where admins manage tokens: GET lists them, POST a TokenRequest
// makes one, DELETE TokensPath/ID revokes one.
const TokensPath = "/proxima/v1/tokens"

// TokenRequest is a request for a token.
type TokenRequest struct {
	Kind identity.Kind `json:"kind"`
	Name string        `json:"name"`
	// TTLSeconds after which it expires; 0: never.
	TTLSeconds int64 `json:"ttlSeconds,omitempty"`
	// Bounds of what a node or a workload registers with it.
	identity.Bounds
}

// TokenAnswer is a new token; the secret is shown this once.
type TokenAnswer struct {
	identity.TokenInfo
	Token string `json:"token"`
}

// TokenList is the answer to GET.
type TokenList struct {
	Items []identity.TokenInfo `json:"items"`
}

// TokenHandler answers TokensPath and TokensPath/{id}. It stands behind
// authentication and authorization: the rule table lets admins alone get here. allow, if it
// is not nil, returns why this control plane makes no tokens of a kind.
func TokenHandler(tokens *identity.Tokens, allow func(identity.Kind) error, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+TokensPath, func(w http.ResponseWriter, r *http.Request) {
		items, err := tokens.List(r.Context())
		if err != nil {
			failInternal(w, log, err)
			return
		}
		answer(w, http.StatusOK, TokenList{Items: items})
	})
	mux.HandleFunc("POST "+TokensPath, func(w http.ResponseWriter, r *http.Request) { createToken(w, r, tokens, allow, log) })
	mux.HandleFunc("DELETE "+TokensPath+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		info, err := tokens.Revoke(r.Context(), r.PathValue("id"))
		switch {
		case errors.Is(err, identity.ErrNoToken):
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, err.Error()+"; proxima token list shows them")
		case err != nil:
			failInternal(w, log, err)
		default:
			auditToken(r, info)
			log.Info("token revoked", "token", info.ID, "kind", info.Kind, "name", info.Name)
			answer(w, http.StatusOK, info)
		}
	})
	return mux
}

func createToken(w http.ResponseWriter, r *http.Request, tokens *identity.Tokens, allow func(identity.Kind) error, log *slog.Logger) {
	const maxBody = 32 << 10 // as many bounds as there may be, with long names
	var req TokenRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "token request: "+err.Error())
		return
	}
	if _, err := identity.SubjectFor(req.Kind, req.Name); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if allow != nil {
		if err := allow(req.Kind); err != nil {
			fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, err.Error())
			return
		}
	}
	if err := identity.CheckBounds(req.Kind, req.Bounds); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if req.TTLSeconds < 0 || req.TTLSeconds > int64(identity.MaxTokenLife/time.Second) {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest,
			fmt.Sprintf("ttlSeconds is not between 0 (for ever) and %d", int64(identity.MaxTokenLife/time.Second)))
		return
	}
	by := ""
	if u, ok := request.UserFrom(r.Context()); ok {
		by = u.GetName()
	}
	token, info, err := tokens.CreateBounded(r.Context(), req.Kind, req.Name, req.Bounds, time.Duration(req.TTLSeconds)*time.Second, by)
	if err != nil {
		failInternal(w, log, err)
		return
	}
	auditToken(r, info)
	log.Info("token created", "token", info.ID, "kind", info.Kind, "name", info.Name, "by", by)
	answer(w, http.StatusCreated, TokenAnswer{TokenInfo: info, Token: token.Reveal()})
}

// auditToken puts what a token is into the audit record of a request.
func auditToken(r *http.Request, info identity.TokenInfo) {
	audit.AddAuditAnnotations(r.Context(),
		"mesh.proxima.dev/token-id", info.ID, "mesh.proxima.dev/token-kind", string(info.Kind), "mesh.proxima.dev/token-name", info.Name)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// An error here is a client that has gone.
	_ = json.NewEncoder(w).Encode(body)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func failInternal(w http.ResponseWriter, log *slog.Logger, err error) {
	log.Error("token request failed", "error", err)
	fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "the control plane could not do it; see its log")
}

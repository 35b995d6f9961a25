package admin

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/feed/redact"
)

// FeedRedactionsPath has the redactions of the change feed, for administrators: a list of redact.Status to GET, one more to POST, which
// is answered with its redact.Status when it was carried out at the instance that answers. Query: the fields of a redact.Request, as a request that
// may take long has no body.
const FeedRedactionsPath = "/proxima/v1/feed/redactions"

// FeedRedactions replace values in the change feed. A *redact.Redactions is one, and documents the methods.
type FeedRedactions interface {
	Redact(ctx context.Context, q redact.Request, by string) (*redact.Status, error)
	List(ctx context.Context) ([]redact.Status, error)
	Problems() []string
}

type redactionsHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h redactionsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.Redactions == nil {
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errNoFeed)
		return
	}
	var err error
	switch r.Method {
	case http.MethodGet:
		var list []redact.Status
		if list, err = h.Redactions.List(r.Context()); err == nil {
			answer(w, list)
		}
	case http.MethodPost:
		v := r.URL.Query()
		q := redact.Request{
			Group: v.Get("group"), Resource: v.Get("resource"), Namespace: v.Get("namespace"), Name: v.Get("name"), Field: v.Get("field"),
			KeepCurrent: v.Get("keepCurrent") == "true",
		}
		by := ""
		if who, ok := request.UserFrom(r.Context()); ok {
			by = who.GetName()
		}
		audit.AddAuditAnnotation(r.Context(), "mesh.proxima.dev/redaction", q.String())
		var done *redact.Status
		if done, err = h.Redactions.Redact(r.Context(), q, by); err == nil {
			answer(w, done)
		}
	default:
		w.Header().Set("Allow", "GET, POST")
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errors.New("only GET and POST are answered here"))
		return
	}
	var invalid *redact.InvalidError
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.As(err, &invalid):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
	case errors.Is(err, redact.ErrPresent):
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, err)
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
	}
}

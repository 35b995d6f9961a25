package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/feed/sink"
)

// FeedSinksPath has the sinks of the change feed, for administrators: a list of sink.Status to GET, one more to POST of a sink.Spec, which
// is answered with its secret. DELETE with the name in the query removes one.
const FeedSinksPath = "/proxima/v1/feed/sinks"

// FeedSinks are those that get the changes of the feed. A *sink.Sinks is one, and documents the methods.
type FeedSinks interface {
	Add(ctx context.Context, spec sink.Spec) (*sink.Spec, error)
	Remove(ctx context.Context, name string) error
	List(ctx context.Context) ([]sink.Status, error)
	Problems() map[string]string
}

// maxSinkRequest bounds a sink.Spec in bytes: it may have certificates of some authorities.
const maxSinkRequest = 256 << 10

type sinksHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h sinksHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.Sinks == nil {
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errNoFeed)
		return
	}
	var err error
	switch r.Method {
	case http.MethodGet:
		var list []sink.Status
		if list, err = h.Sinks.List(r.Context()); err == nil {
			answer(w, list)
		}
	case http.MethodPost:
		var spec, made *sink.Spec
		spec = &sink.Spec{}
		if !decodeWithin(w, r, maxSinkRequest, spec) {
			return
		}
		if who, ok := request.UserFrom(r.Context()); ok {
			spec.By = who.GetName()
		}
		if made, err = h.Sinks.Add(r.Context(), *spec); err == nil {
			answer(w, made)
		}
	case http.MethodDelete:
		if err = h.Sinks.Remove(r.Context(), strings.TrimSpace(r.URL.Query().Get("name"))); err == nil {
			answer(w, struct{}{})
		}
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errors.New("only GET, POST and DELETE are answered here"))
		return
	}
	var invalid *sink.InvalidError
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.As(err, &invalid):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
	case errors.Is(err, sink.ErrExists):
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, err)
	case errors.Is(err, sink.ErrNotFound):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err)
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
	}
}

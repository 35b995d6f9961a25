package admin

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed"
)

// Paths of the segments of the change feed, for POST. Only admins get here.
const (
	// FeedOffloadPath seals the open segment and offloads what the target lacks. The answer is a FeedOffloaded.
	FeedOffloadPath = "/proxima/v1/feed/offload"
	// FeedVerifyPath reads all segments. The answer is a feed.Verification.
	FeedVerifyPath = "/proxima/v1/feed/verify"
)

// FeedOffloaded is what a request to FeedOffloadPath has done.
type FeedOffloaded struct {
	// Segments that were offloaded by it.
	Segments int `json:"segments"`
}

// Segments of the change feed. A *feed.Feed is one.
type Segments interface {
	OffloadNow(ctx context.Context) (uploaded int, err error)
	Verify(ctx context.Context) (feed.Verification, error)
}

// segmentsHandler answers what do returns.
func (c Config) segmentsHandler(do func(ctx context.Context, s Segments) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
			return
		}
		if c.Segments == nil {
			refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, errNoFeed)
			return
		}
		value, err := do(r.Context(), c.Segments)
		switch {
		case errors.Is(err, feed.ErrNotOffloaded):
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
		case err != nil:
			refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
		default:
			answer(w, value)
		}
	})
}

func offloadSegments(ctx context.Context, s Segments) (any, error) {
	n, err := s.OffloadNow(ctx)
	return FeedOffloaded{Segments: n}, err
}

func verifySegments(ctx context.Context, s Segments) (any, error) { return s.Verify(ctx) }

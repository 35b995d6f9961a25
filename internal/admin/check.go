package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckPath answers what a zone would make of an object of global, to POST of a
// CheckRequest. The answer is a CheckAnswer. Instances of a global control plane ask each
// other.
const CheckPath = "/proxima/v1/zones/check"

// maxCheck bounds a CheckRequest: an object has 2 MiB at most, and base64 adds a third.
const maxCheck = 3 << 20

// CheckRequest is an object of global, and the zone to ask.
type CheckRequest struct {
	Zone string `json:"zone"`
	// Type of the object between control planes, and the object as it travels.
	Type   string `json:"type"`
	Object []byte `json:"object"`
	// Deletion: what the end of the object would mean is asked.
	Deletion bool `json:"deletion,omitempty"`
}

// CheckAnswer is what a zone says; empty: it would apply the object as it is, or nothing
// depends on the one that ends.
type CheckAnswer struct {
	Refusal  string   `json:"refusal,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// ZoneChecks asks zones about objects.
type ZoneChecks interface {
	// Check asks one zone. Its errors are gRPC statuses. ErrElsewhere: another instance may
	// have the stream.
	Check(ctx context.Context, r CheckRequest) (CheckAnswer, error)
}

type checkHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h checkHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	var in CheckRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCheck))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), proxyTimeout)
	defer cancel()
	out, err := h.Checks.Check(ctx, in)
	switch {
	case errors.Is(err, ErrElsewhere):
		h.elsewhere(w, r.WithContext(ctx), in, err)
	case err != nil:
		refuseStatus(w, err)
	default:
		answer(w, out)
	}
}

// CheckElsewhere has the other instances answer what this one cannot, with err, as it does
// not have the stream. instances may be nil. Errors are gRPC statuses, or err itself, if no
// instance has the stream.
func CheckElsewhere(ctx context.Context, instances Instances, log *slog.Logger, r CheckRequest, err error) (CheckAnswer, error) {
	body, encodeErr := json.Marshal(r)
	if encodeErr != nil {
		return CheckAnswer{}, status.Error(codes.Internal, encodeErr.Error())
	}
	passed, notHere := others{instances, log}.ask(ctx, http.MethodPost, CheckPath, body)
	switch {
	case passed == nil && ctx.Err() != nil:
		return CheckAnswer{}, status.FromContextError(ctx.Err()).Err()
	case passed == nil && len(notHere.silent) > 0:
		return CheckAnswer{}, status.Error(codes.Unavailable, notHere.explain(err).Error())
	case passed == nil:
		return CheckAnswer{}, err
	case passed.code != http.StatusOK:
		return CheckAnswer{}, passed.failure()
	}
	var out CheckAnswer
	if err := json.Unmarshal(passed.body, &out); err != nil {
		return CheckAnswer{}, status.Errorf(codes.Internal, "read the answer of another instance: %v", err)
	}
	return out, nil
}

package keyring

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Paths of Handler.
const (
	// StatusPath: GET answers a Status.
	StatusPath = "/proxima/v1/secrets"
	// RotatePath: POST takes a RotateRequest and answers a RotateAnswer.
	RotatePath = "/proxima/v1/secrets/rotate"
	// PrunePath: POST answers a PruneAnswer.
	PrunePath = "/proxima/v1/secrets/prune"
	// DiscardPath: POST takes a DiscardRequest and answers it.
	DiscardPath = "/proxima/v1/secrets/discard"
)

// DiscardRequest is a request to delete an object whose key is lost for good.
type DiscardRequest struct {
	// Resource: secrets or globalsecrets.
	Resource string `json:"resource"`
	// Object: NAMESPACE/NAME, or NAME where there is no namespace.
	Object string `json:"object"`
}

// RotateRequest is a request for one step of a rotation.
type RotateRequest struct {
	// Continue: no new key, only what is left to rewrite.
	Continue bool `json:"continue,omitempty"`
}

// RotateAnswer is the progress of a rotation.
type RotateAnswer struct {
	// More is left to do; ask again with Continue.
	More   bool   `json:"more,omitempty"`
	Status Status `json:"status"`
}

// PruneAnswer lists the keys that were dropped.
type PruneAnswer struct {
	Dropped []string `json:"dropped"`
	// WaitSeconds, if not 0: it is too early, ask again after this time.
	WaitSeconds int64 `json:"waitSeconds,omitempty"`
}

// stepTime is well below the timeouts of clients and servers.
const stepTime = 10 * time.Second

// Handler answers the paths above. It stands behind authentication and
// authorization, which must let admins alone get here.
func (r *Rotation) Handler(log *slog.Logger) http.Handler {
	h := handler{r, log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+StatusPath, h.status)
	mux.HandleFunc("POST "+RotatePath, h.rotate)
	mux.HandleFunc("POST "+PrunePath, h.prune)
	mux.HandleFunc("POST "+DiscardPath, h.discard)
	return mux
}

type handler struct {
	rotation *Rotation
	log      *slog.Logger
}

func (h handler) status(w http.ResponseWriter, r *http.Request) {
	status, err := h.rotation.Status(r.Context())
	if err != nil {
		h.fail(w, err)
		return
	}
	answer(w, http.StatusOK, status)
}

func (h handler) rotate(w http.ResponseWriter, r *http.Request) {
	var req RotateRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "rotate request: "+err.Error())
		return
	}
	more, err := h.rotation.Step(r.Context(), stepTime, !req.Continue)
	var status Status
	if err == nil {
		status, err = h.rotation.Status(r.Context())
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	h.log.Info("keys of secrets rotated", "more", more, "outdated", status.Outdated())
	answer(w, http.StatusOK, RotateAnswer{More: more, Status: status})
}

func (h handler) prune(w http.ResponseWriter, r *http.Request) {
	dropped, err := h.rotation.Prune(r.Context())
	var unfinished *UnfinishedError
	if errors.As(err, &unfinished) && unfinished.Wait > 0 {
		answer(w, http.StatusOK, PruneAnswer{Dropped: []string{}, WaitSeconds: max(int64(unfinished.Wait/time.Second), 1)})
		return
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	out := PruneAnswer{Dropped: []string{}}
	for _, k := range dropped {
		out.Dropped = append(out.Dropped, k.ID)
	}
	h.log.Info("old keys of secrets dropped", "keys", out.Dropped)
	answer(w, http.StatusOK, out)
}

func (h handler) discard(w http.ResponseWriter, r *http.Request) {
	var req DiscardRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<12))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "discard request: "+err.Error())
		return
	}
	var unknown *UnknownResourceError
	switch err := h.rotation.Discard(r.Context(), req.Resource, req.Object); {
	case errors.Is(err, ErrAbsent), errors.As(err, &unknown):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
	case errors.Is(err, ErrReadable), errors.Is(err, ErrChanged):
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, err.Error())
	case err != nil:
		h.fail(w, err)
	default:
		h.log.Warn("secret discarded whose key was lost", "resource", req.Resource, "object", req.Object)
		answer(w, http.StatusOK, req)
	}
}

func (h handler) fail(w http.ResponseWriter, err error) {
	var unfinished *UnfinishedError
	var missing *MissingKeyError
	switch {
	case errors.Is(err, context.Canceled):
		// The client has disconnected: no answer.
	case errors.Is(err, ErrBusy), errors.As(err, &unfinished), errors.As(err, &missing):
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, err.Error())
	default:
		h.log.Error("keys of secrets", "error", err)
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error is a client that has gone
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

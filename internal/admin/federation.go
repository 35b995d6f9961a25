package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// ConfirmPath applies deletions that are held, to POST of a ConfirmRequest. The answer is
// a ConfirmAnswer.
const ConfirmPath = "/proxima/v1/zones/confirm"

// Federation is the place of a control plane among several.
type Federation interface {
	// State of the connections.
	State(ctx context.Context) (*FederationStatus, error)
	// Confirm deletes what is held of a type of a zone's objects, or in a zone of
	// global's. token names what the user saw; empty: what is held now. ErrElsewhere: another
	// instance may have the stream.
	Confirm(ctx context.Context, zone, typ, token string) (int, error)
}

// FederationStatus is the connection of a zone to global or, at global, the zones.
type FederationStatus struct {
	// Zone that this is the control plane of, and Global its global control plane.
	Zone   string `json:"zone,omitempty"`
	Global string `json:"global,omitempty"`
	// Instance of global (HOST:PORT of its gRPC port) that the connection is to, or was last.
	Instance string `json:"instance,omitempty"`
	// Elsewhere: another instance has the connection.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Connected: objects go both ways right now.
	Connected bool `json:"connected,omitempty"`
	// LastCheck is when global answered last.
	LastCheck time.Time `json:"lastCheck,omitzero"`
	// Problem is why there is no connection.
	Problem string `json:"problem,omitempty"`
	// CertificateNotAfter is the end of the zone's certificate.
	CertificateNotAfter time.Time `json:"certificateNotAfter,omitzero"`
	// Behind counts changes that global has not confirmed.
	Behind uint64 `json:"behind,omitempty"`
	// Types describes the synchronisation of a zone.
	Types []meshv1alpha1.TypeSync `json:"types,omitempty"`
	// Zones that global knows.
	Zones []ZoneState `json:"zones,omitempty"`
}

// ZoneState is a zone, as global knows it.
type ZoneState struct {
	Name    string                          `json:"name"`
	Enabled bool                            `json:"enabled"`
	Insight *meshv1alpha1.ZoneInsightStatus `json:"insight,omitempty"`
	// Refused says why this instance refuses the zone's version; empty: it does not.
	Refused string `json:"refused,omitempty"`
}

// ConfirmRequest names deletions that are held.
type ConfirmRequest struct {
	Zone string `json:"zone"`
	// Type of objects: group and kind, or the kind alone.
	Type string `json:"type"`
	// Token of the set that the user saw; empty: whatever is held.
	Token string `json:"token,omitempty"`
}

// ConfirmAnswer says what was done.
type ConfirmAnswer struct {
	Deleted int `json:"deleted"`
}

type confirmHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h confirmHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	var in ConfirmRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
		return
	}
	if h.Federation == nil {
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, errAlone)
		return
	}
	n, err := h.Federation.Confirm(r.Context(), in.Zone, in.Type, in.Token)
	if errors.Is(err, ErrElsewhere) {
		h.elsewhere(w, r, in, err)
		return
	}
	if err != nil {
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, err)
		return
	}
	h.Logger.Info("held deletions confirmed", "zone", in.Zone, "type", in.Type, "deleted", n)
	answer(w, ConfirmAnswer{Deleted: n})
}

// federationStatus is nil for a control plane that stands alone, or whose store cannot be
// read, which the status of the store reports.
func (h statusHandler) federationStatus(ctx context.Context) *FederationStatus {
	if h.Federation == nil {
		return nil
	}
	s, err := h.Federation.State(ctx)
	if err != nil {
		h.Logger.Warn("state of the zones not read", "error", err)
		return nil
	}
	return s
}

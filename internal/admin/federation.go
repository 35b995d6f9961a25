package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
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
	// Link of a zone to global, as this instance measures it.
	Link *SyncLink `json:"link,omitempty"`
	// Zones that global knows.
	Zones []ZoneState `json:"zones,omitempty"`
	// Gateways that this control plane has an insight of: of a zone its own, at global those of all zones.
	Gateways []GatewayState `json:"gateways,omitempty"`
	// GatewaysUnknown is why this control plane does not know whether gateways are connected; empty: it knows.
	GatewaysUnknown string `json:"gatewaysUnknown,omitempty"`
	// Failures is the board: what can fail between sites, whether it is so now, and what works meanwhile.
	Failures []Failure `json:"failures,omitempty"`
}

// SyncLink is what is measured of the synchronisation with one peer, over all connections since the instance started.
type SyncLink struct {
	// Epoch of the peer's store, as its messages say; empty: none has come.
	Epoch string `json:"epoch,omitempty"`
	// Sent is how long it takes until the peer has confirmed a change of this side; Received the same for changes of the peer, as it
	// measures them. Absent: nothing is measured.
	Sent     *SyncLag `json:"sent,omitempty"`
	Received *SyncLag `json:"received,omitempty"`
	// LastRefused is the last NACK of each type, whether or not it still holds.
	LastRefused []LastRefused `json:"lastRefused,omitempty"`
}

// SyncLag sums up the changes of the last 10 to 20 minutes. What a connection begins with does not count. Seconds are at most 9 % too
// large.
type SyncLag struct {
	Samples    uint64  `json:"samples"`
	P50Seconds float64 `json:"p50Seconds"`
	P99Seconds float64 `json:"p99Seconds"`
	// WaitingSeconds is how long the oldest change waits that is not confirmed.
	WaitingSeconds float64 `json:"waitingSeconds,omitempty"`
}

// LastRefused is the last NACK of a type.
type LastRefused struct {
	Type string `json:"type"`
	// Direction as in a TypeSync: who received, and refused.
	Direction string `json:"direction"`
	// Resource is the first that was refused, NAMESPACE/NAME or NAME; empty: the receiver named none.
	Resource string    `json:"resource,omitempty"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
}

// GatewayState is a gateway, and whether its control plane has a connection of it.
type GatewayState struct {
	// Kind is ingress or egress.
	Kind string `json:"kind"`
	Name string `json:"name"`
	Zone string `json:"zone,omitempty"`
	// Connected to its control plane.
	Connected bool `json:"connected"`
	// Since when it is, or is not; zero: that is not known.
	Since time.Time `json:"since,omitzero"`
}

// ZoneState is a zone, as global knows it.
type ZoneState struct {
	Name    string                          `json:"name"`
	Enabled bool                            `json:"enabled"`
	Insight *meshv1alpha1.ZoneInsightStatus `json:"insight,omitempty"`
	// Refused says why this instance refuses the zone's version; empty: it does not.
	Refused string `json:"refused,omitempty"`
	// Link to the zone, as the instance measures it that has the connection; absent: none has, or it is silent.
	Link *SyncLink `json:"link,omitempty"`
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

// addFederation adds what another instance alone knows of the connections that it has.
func (s *Status) addFederation(there *FederationStatus) {
	f := s.Federation
	if f == nil || there == nil {
		return
	}
	if f.Elsewhere && !there.Elsewhere {
		f.Instance, f.Connected, f.LastCheck, f.Problem = there.Instance, there.Connected, there.LastCheck, there.Problem
		f.Behind, f.Types, f.Link = there.Behind, there.Types, there.Link
	}
	for i := range f.Zones {
		z := &f.Zones[i]
		at := slices.IndexFunc(there.Zones, func(o ZoneState) bool { return o.Name == z.Name })
		if z.Link == nil && at >= 0 {
			z.Link = there.Zones[at].Link
		}
	}
}

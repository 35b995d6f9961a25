package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/controller/drain"
)

const (
	// DrainPath drains a node, to POST of a DrainRequest, and reports on a drain, to GET with
	// the node's name in the query. The answer is a drain.Progress.
	DrainPath = "/proxima/v1/nodes/drain"
	// UndrainPath puts a node back into use, to POST of a DrainRequest. The answer is an
	// UndrainAnswer.
	UndrainPath = "/proxima/v1/nodes/undrain"
)

// DrainRequest names a node.
type DrainRequest struct {
	Name string `json:"name"`
	// Force: also if a Service loses its last endpoint by it.
	Force bool `json:"force,omitempty"`
	// DryRun: nothing is changed, and nothing refused; LastEndpoints of the answer names the
	// Services for which it would be.
	DryRun bool `json:"dryRun,omitempty"`
}

// UndrainAnswer says how the node is afterwards.
type UndrainAnswer struct {
	// Changed is false if the node was not drained by us.
	Changed bool `json:"changed"`
	drain.Progress
}

// NodeConnections are the open TCP connections at endpoints of a node's workloads.
type NodeConnections struct {
	Node string `json:"node"`
	// Open connections by endpoint; endpoints without any are left out.
	Open map[netip.AddrPort]int `json:"open"`
}

// Drains starts and ends the drains of nodes. A *drain.Operator is one, and documents the
// methods.
type Drains interface {
	Progress(ctx context.Context, node string) (drain.Progress, error)
	Start(ctx context.Context, node, by string, force, dryRun bool) (drain.Progress, error)
	End(ctx context.Context, node string) (p drain.Progress, changed bool, err error)
}

type drainHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h drainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in DrainRequest
	switch r.Method {
	case http.MethodGet:
		in.Name = r.URL.Query().Get("name")
	case http.MethodPost:
		if !decodeRequest(w, r, &in) {
			return
		}
	default:
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "only GET and POST are answered here", http.StatusMethodNotAllowed)
		return
	}
	if !h.admitDrain(w, in.Name) {
		return
	}
	var p drain.Progress
	var err error
	if r.Method == http.MethodGet {
		p, err = h.Drains.Progress(r.Context(), in.Name)
	} else {
		by := ""
		if u, ok := request.UserFrom(r.Context()); ok {
			by = u.GetName()
		}
		p, err = h.Drains.Start(r.Context(), in.Name, by, in.Force, in.DryRun)
		h.Logger.Info("drain of a node asked for", "node", in.Name, "user", by, "force", in.Force, "dry_run", in.DryRun, "error", err)
	}
	if err != nil {
		refuseError(w, err)
		return
	}
	answer(w, p)
}

type undrainHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h undrainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	var in DrainRequest
	if !decodeRequest(w, r, &in) || !h.admitDrain(w, in.Name) {
		return
	}
	p, changed, err := h.Drains.End(r.Context(), in.Name)
	h.Logger.Info("end of a node's drain asked for", "node", in.Name, "changed", changed, "error", err)
	if err != nil {
		refuseError(w, err)
		return
	}
	answer(w, UndrainAnswer{Changed: changed, Progress: p})
}

// admitDrain answers requests that cannot be served, and reports whether this one can.
func (h Config) admitDrain(w http.ResponseWriter, name string) bool {
	switch {
	case name == "":
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, errors.New("name: give that of a node"))
	case !h.Tables.Synced():
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, errNotSynced)
	default:
		return true
	}
	return false
}

// maxDrainRequest bounds a DrainRequest: a name has 253 bytes at most.
const maxDrainRequest = 4 << 10

func decodeRequest(w http.ResponseWriter, r *http.Request, into any) bool {
	return decodeWithin(w, r, maxDrainRequest, into)
}

// decodeWithin is decodeRequest with another bound, in bytes.
func decodeWithin(w http.ResponseWriter, r *http.Request, limit int64, into any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
		return false
	}
	return true
}

// refuseError answers with the status of an error of the API.
func refuseError(w http.ResponseWriter, err error) {
	var given apierrors.APIStatus
	if errors.As(err, &given) {
		s := given.Status()
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(s.Code))
		_ = json.NewEncoder(w).Encode(s) // the client may be gone
		return
	}
	refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err)
}

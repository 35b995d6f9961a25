package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// DemandPath is where a control plane tells where traffic starts, per service port;
// with ?service=NAMESPACE/NAME of one Service alone.
const DemandPath = "/proxima/v1/demand"

// Demand is the JSON at DemandPath.
type Demand struct {
	Coverage demand.Coverage     `json:"coverage"`
	Ports    []demand.PortDemand `json:"servicePorts"`
}

type demandHandler struct{ cp *controlPlane }

func (h demandHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET is answered here", http.StatusMethodNotAllowed)
		return
	}
	running := h.cp.running.Load()
	if running == nil {
		http.Error(w, "the control plane is still starting; try again", http.StatusServiceUnavailable)
		return
	}
	var of *proxy.ServiceName
	if text := r.URL.Query().Get("service"); text != "" {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok {
			http.Error(w, fmt.Sprintf("service %q: want NAMESPACE/NAME", text), http.StatusBadRequest)
			return
		}
		of = &proxy.ServiceName{Namespace: namespace, Name: name}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Demand{Coverage: running.demand.Coverage(), Ports: running.demand.Snapshot(of)}) // the client may be gone
}

package admin

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// DemandPath answers where traffic starts, per service port, as a DemandReport. Query:
// service=NAMESPACE/NAME, for one Service alone.
const DemandPath = "/proxima/v1/demand"

// DemandReport is the JSON at DemandPath.
type DemandReport struct {
	Coverage demand.Coverage     `json:"coverage"`
	Ports    []demand.PortDemand `json:"servicePorts"`
}

type demandHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h demandHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var of *proxy.ServiceName
	if text := r.URL.Query().Get("service"); text != "" {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok {
			http.Error(w, fmt.Sprintf("service %q: want NAMESPACE/NAME", text), http.StatusBadRequest)
			return
		}
		of = &proxy.ServiceName{Namespace: namespace, Name: name}
	}
	answer(w, DemandReport{Coverage: h.Demand.Coverage(), Ports: h.Demand.Snapshot(of)})
}

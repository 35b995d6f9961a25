package choose

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Endpoints chooses among endpoints, in whatever order and with whatever duplicates.
func Endpoints(svc *proxy.Service, port proxy.Port, from []Endpoint, node Node) *proxy.PortState {
	return choose(svc, port, slices.Clone(from), node)
}

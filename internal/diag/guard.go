package diag

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/policy"
)

// Guard is what the node of an endpoint without a sidecar does of permissions.
type Guard struct {
	Endpoint string `json:"endpoint"`
	Workload string `json:"workload"`
	Node     string `json:"node,omitempty"`
	// Policies that decide who may connect, as KIND NAMESPACE/NAME; empty: anybody may.
	Policies []string `json:"policies,omitempty"`
	// Ignored are permissions that the node does not enforce, each with the reason.
	Ignored []string `json:"ignored,omitempty"`
}

// GuardOf a port at the node of its workload. false: no permission says anything of it.
func GuardOf(g *policy.GuardedPort, endpoint string, workload policy.Ref, mesh string, node PeerNode) (Guard, bool) {
	out := Guard{Endpoint: endpoint, Workload: workload.Key.String(), Node: node.Name}
	var sources []policy.Source
	for _, r := range slices.Concat(g.Deny, g.Allow) {
		sources = append(sources, r.Source)
	}
	deciding := sourceTexts(sources)
	if g.Refuse && len(g.Allow) == 0 {
		deciding = append(deciding, "Mesh "+mesh+" (defaultAccess: Deny)")
	}
	if node.ByAddress {
		out.Policies = deciding
	} else {
		for _, text := range deciding {
			out.Ignored = append(out.Ignored, fmt.Sprintf("%s: %s does not enforce permissions by address", text, &node))
		}
	}
	for _, s := range slices.SortedFunc(maps.Keys(g.Left), func(a, b policy.Source) int { return strings.Compare(sourceText(a), sourceText(b)) }) {
		out.Ignored = append(out.Ignored, fmt.Sprintf("%s: nodes do not know %s of a client", sourceText(s), g.Left[s]))
	}
	return out, len(out.Policies)+len(out.Ignored) > 0
}

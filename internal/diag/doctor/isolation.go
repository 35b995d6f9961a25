package doctor

import (
	"fmt"

	"github.com/proxima-mesh/proxima/internal/node/isolation"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// isolated is about what keeps workloads of this node to their meshes.
func isolated(s *isolation.Status) Finding {
	f := Finding{ID: checkIsolation, Check: "isolation of meshes"}
	if s == nil {
		f.Note = "the zone has one mesh, or none that the agent knows"
		return f
	}
	f.Note = fmt.Sprintf("%d addresses of workloads", len(s.Sources))
	if len(s.Cgroups) > 0 {
		f.Note += fmt.Sprintf(" and %d cgroups of workloads", len(s.Cgroups))
	}
	if s.Node != "" {
		f.Note += "; this machine's own addresses are of mesh " + s.Node
	}
	if s.Problem != "" {
		f.fail(problem.IsolationFails, s.Problem, "the agent tries again; its log has each attempt. Until then workloads reach other meshes")
	}
	return f
}

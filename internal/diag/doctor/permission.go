package doctor

import (
	"fmt"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
)

// permitted is about the TrafficPermissions of workloads of this node without a sidecar.
func permitted(s *permit.Status) Finding {
	f := Finding{ID: checkNodePermission, Check: "permissions of workloads without a sidecar"}
	switch text, fix := PermissionProblem(s); {
	case text != "":
		f.fail(problem.PermissionsFail, text, fix)
	case s == nil:
		f.Note = "the agent reports none, as a gateway or an older one does"
	case s.Unable != "":
		f.Note = "no port of a workload here would be guarded; the node cannot: " + s.Unable
	case s.Ports == 0:
		f.Note = "no port of a workload here is guarded"
	default:
		f.Note = fmt.Sprintf("%d ports are guarded; since the agent started they have refused %d connections, and admitted %d", s.Ports, s.Refused, s.Admitted)
		if len(s.Refusing) > 0 {
			most := s.Refusing[0]
			f.Note += fmt.Sprintf("; most were refused at %s, %d", most.Address, most.Refused)
		}
	}
	return f
}

// PermissionProblem says which permissions a node does not enforce, and what to do; empty: it does.
func PermissionProblem(s *permit.Status) (text, fix string) {
	switch {
	case s == nil:
	case s.Problem != "":
		return fmt.Sprintf("the kernel has not taken the newest permissions of workloads of this node: %s", s.Problem),
			"see the agent's log: it tries again; until then the permissions from before hold, or none"
	case s.Unable != "" && s.Ports > 0:
		return fmt.Sprintf("TrafficPermissions are not enforced for %d ports of workloads of this node without a sidecar: %s", s.Ports, s.Unable),
			"start the agent in a kernel mode (--mode nftables), or give the workloads a sidecar (proxima run --sidecar)"
	}
	return "", ""
}

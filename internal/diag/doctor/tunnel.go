package doctor

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// recentFailure is how long a failed connection to another zone is a problem.
const recentFailure = 5 * time.Minute

// Recent reports whether a failed connection to another zone is still a problem.
func Recent(f admin.TunnelFailure) bool { return time.Since(f.At) < recentFailure }

// TunnelProblem says why a connection from this node to another zone failed lately; empty:
// none did. All that the client saw is a reset.
func TunnelProblem(t *admin.TunnelStatus) string {
	if t == nil || len(t.Failures) == 0 {
		return ""
	}
	last := t.Failures[0] // the newest
	if !Recent(last) {
		return ""
	}
	ago := time.Since(last.At)
	return fmt.Sprintf("a connection to another zone was reset %s ago, one of %d to this service: %s",
		duration.HumanDuration(ago), last.Count, last.Error)
}

// tunnel is about connections from this node to services of other zones.
func tunnel(t *admin.TunnelStatus) Finding {
	f := Finding{ID: checkTunnel, Check: "tunnel to other zones"}
	switch {
	case t == nil:
		f.Note = "off"
	case t.Port == 0:
		f.Note = "no other zone offers anything"
	default:
		f.Note = fmt.Sprintf("port %d", t.Port)
	}
	if text := TunnelProblem(t); text != "" {
		f.fail(problem.TunnelFails, text,
			"\"proxima doctor\" on the machine of the other zone's ingress; the client must be at the address of a workload of the mesh, which needs spec.mtls")
	}
	return f
}

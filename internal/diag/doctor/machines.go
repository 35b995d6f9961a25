package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// machines is about machines that are gone, or may be.
func (x examiner) machines(status *admin.Status, now time.Time) Finding {
	f := Finding{ID: checkMachines, Check: "machines"}
	problems := finding.Finder{ProbePort: x.ProbePort, Now: func() time.Time { return now }}.Machines(status)
	if len(problems) == 0 {
		f.Note = fmt.Sprintf("%d leases are renewed, no node is suspect", status.Leases.Watched-status.Leases.Late)
		for _, d := range status.Drains {
			f.Note += fmt.Sprintf("; node %s is %s (%s ends that)", d.Node, strings.ToLower(d.State), d.Undo)
		}
		for _, z := range status.Shifts {
			f.Note += fmt.Sprintf("; %s is taken out until %s (%s ends that)", z.Target(), z.Until.UTC().Format(time.RFC3339), z.Undo)
		}
		return f
	}
	fix := fmt.Sprintf("open UDP port %d between the nodes, or the one that the agent names in its log", x.ProbePort)
	if len(status.Suspects)+len(status.Leases.Expiries) > 0 {
		fix = "switch the machine on, or start its agent; if it is gone for good: kubectl delete node NAME"
	}
	if len(status.Refused) > 0 {
		fix = "upgrade in the order that the error names (\"proxima docs how-to/upgrade\")"
	}
	f.fail(problem.MachinesGone, textOf(problems), fix)
	return f
}

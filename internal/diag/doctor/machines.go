package doctor

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// maxExpiries are listed one by one; more are summed up.
const maxExpiries = 5

// MachineProblems are machines and workloads that are gone, or may be, a sentence for
// each. probePort is the default UDP port of agents' probes.
func MachineProblems(cp *admin.Status, probePort int, now time.Time) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, s := range cp.Suspects {
		add("node %s has been suspect for %s: its stream stalled and it does not answer %s; its endpoints are used last until it comes back "+
			"or its lease runs out: is the machine on, and its agent not stopped?",
			s.Node, duration.HumanDuration(max(now.Sub(s.Since), 0)), strings.Join(s.Witnesses, ", "))
	}
	for _, r := range cp.Refused {
		add("the control plane refuses an agent, which goes on with its last state: %s", r.Reason)
	}
	if cp.Leases.Held {
		add("leases: %s", cp.Leases.Reason)
	}
	for i, h := range cp.Leases.Expiries {
		if i == maxExpiries {
			add("leases: %d more expiries are held, see -o json", len(cp.Leases.Expiries)-i)
			break
		}
		until := "until it renews its lease"
		if !h.Until.IsZero() {
			until = "for " + duration.HumanDuration(max(h.Until.Sub(now), 0)) + " at most"
		}
		add("%s%s has not renewed its lease and is not marked not ready %s: %s", h.Object, inZone(h.Zone), until, h.Reason)
	}
	if len(cp.Unreachable) > 0 {
		add("probes of other agents do not reach node %s: should a machine of these die, that is noticed by its lease only; "+
			"let UDP port %d (--probe-port) pass between the nodes", strings.Join(cp.Unreachable, ", "), probePort)
	}
	return out
}

func inZone(zone locality.Zone) string {
	if zone == "" {
		return ""
	}
	return " in zone " + string(zone)
}

// machines is about machines that are gone, or may be.
func (x examiner) machines(status *admin.Status, now time.Time) Finding {
	f := Finding{ID: checkMachines, Check: "machines"}
	problems := MachineProblems(status, x.ProbePort, now)
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
		fix = "upgrade in the order that the error names (docs/how-to/upgrade.md)"
	}
	f.fail(problem.MachinesGone, strings.Join(problems, "; "), fix)
	return f
}

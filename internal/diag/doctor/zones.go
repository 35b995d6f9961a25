package doctor

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// ZoneProblems are those of the connections between control planes, a sentence for each.
func ZoneProblems(f *admin.FederationStatus) []string {
	if f == nil {
		return nil
	}
	var out []string
	if f.Zone != "" && !f.Elsewhere && !f.Connected {
		out = append(out, fmt.Sprintf("no connection to global (%s): %s; this zone goes on with what it has", f.Global, cmp.Or(f.Problem, "it is being made")))
	}
	out = append(out, syncProblems(f.Zone, f.Types)...)
	for _, z := range f.Zones {
		if z.Refused != "" {
			out = append(out, "a zone is refused, and goes on with what it has: "+z.Refused)
		}
		if z.Insight == nil {
			continue
		}
		if n := len(z.Insight.Subscriptions); n > 0 && z.Enabled && !z.Insight.Online {
			when := ""
			if end := z.Insight.Subscriptions[n-1].DisconnectTime; end != nil {
				when = " since " + duration.HumanDuration(time.Since(end.Time))
			}
			out = append(out, fmt.Sprintf("zone %s is offline%s: is its control plane running, and does it reach this one? see \"proxima status\" there", z.Name, when))
		}
		out = append(out, syncProblems(z.Name, z.Insight.Types)...)
	}
	return out
}

// syncProblems are what is held and refused between a zone and global.
func syncProblems(zone string, types []meshv1alpha1.TypeSync) []string {
	var out []string
	for _, t := range types {
		_, kind, _ := strings.Cut(t.Type, "/")
		if t.Held > 0 {
			out = append(out, fmt.Sprintf("%d deletions of %s are held, first %s: is it meant? then \"proxima zone confirm %s %s\"",
				t.Held, kind, strings.Join(t.HeldNames, ", "), zone, kind))
		}
		for _, r := range t.Refused {
			word := "refuses"
			if r.Waiting {
				word = "cannot apply yet"
			}
			who := "global"
			if t.Direction == meshv1alpha1.SyncToZone {
				who = "zone " + zone
			}
			out = append(out, fmt.Sprintf("%s %s %s %s: %s", who, word, kind, strings.TrimPrefix(r.Name, "/"), r.Reason))
		}
	}
	return out
}

// zones is about the connections between control planes.
func zones(f *admin.FederationStatus) Finding {
	found := Finding{ID: checkZones, Check: "zones"}
	problems := ZoneProblems(f)
	if len(problems) > 0 {
		found.fail(problem.ZonesApart, strings.Join(problems, "; "),
			"start what is not running, let zones reach global's API and gRPC ports; \"proxima zone confirm\" applies what is held")
		return found
	}
	found.Note = "connected to global"
	if f.Zone == "" {
		found.Note = fmt.Sprintf("%d, none is offline, nothing is held or refused", len(f.Zones))
	}
	return found
}

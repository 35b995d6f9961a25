package finding

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Zones are the problems of the connections between control planes.
func Zones(f *admin.FederationStatus, now time.Time) []admin.Problem {
	if f == nil {
		return nil
	}
	var out []admin.Problem
	if f.Zone != "" && !f.Elsewhere && !f.Connected {
		p := failing(problem.ZonesApart, object{kind: "Zone", name: f.Zone},
			fmt.Sprintf("no connection to global (%s): %s; this zone goes on with what it has", f.Global, cmp.Or(f.Problem, "it is being made")),
			"let zones reach global's API and gRPC ports")
		p.Since = f.LastCheck
		out = append(out, p)
	}
	out = append(out, syncProblems(f.Zone, f.Types)...)
	for _, z := range f.Zones {
		at := object{kind: "Zone", name: z.Name}
		if z.Refused != "" {
			out = append(out, failing(problem.ZoneRefused, at, "a zone is refused, and goes on with what it has: "+z.Refused, "upgrade in the order that the error names (proxima docs how-to/upgrade)"))
		}
		if z.Insight == nil {
			continue
		}
		if n := len(z.Insight.Subscriptions); n > 0 && z.Enabled && !z.Insight.Online {
			var since time.Time
			if end := z.Insight.Subscriptions[n-1].DisconnectTime; end != nil {
				since = end.Time
			}
			p := failing(problem.ZonesApart, at, fmt.Sprintf("zone %s is offline%s", z.Name, strings.Replace(lasting(since, now), " for ", " since ", 1)),
				"is its control plane running, and does it reach this one? see \"proxima status\" there")
			p.Since = since
			out = append(out, p)
		}
		out = append(out, syncProblems(z.Name, z.Insight.Types)...)
	}
	return out
}

// syncProblems are what is held and refused between a zone and global.
func syncProblems(zone string, types []meshv1alpha1.TypeSync) []admin.Problem {
	var out []admin.Problem
	for _, t := range types {
		_, kind, _ := strings.Cut(t.Type, "/")
		if t.Held > 0 {
			out = append(out, failing(problem.DeletionsHeld, object{kind: "Zone", name: zone},
				fmt.Sprintf("%d deletions of %s are held, first %s", t.Held, kind, strings.Join(t.HeldNames, ", ")),
				fmt.Sprintf("is it meant? then \"proxima zone confirm %s %s\"", zone, kind)))
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
			name := strings.TrimPrefix(r.Name, "/")
			out = append(out, failing(problem.ObjectRefused, inNamespace(kind, name),
				fmt.Sprintf("%s %s %s %s: %s", who, word, kind, name, r.Reason), "change the object as the reason says"))
		}
	}
	return out
}

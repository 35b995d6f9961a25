package doctor

import (
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// zones is about the connections between control planes.
func zones(f *admin.FederationStatus) Finding {
	found := Finding{ID: checkZones, Check: "zones"}
	problems := finding.Zones(f, time.Now())
	if len(problems) > 0 {
		found.fail(problem.ZonesApart, textOf(problems),
			"start what is not running, let zones reach global's API and gRPC ports; \"proxima zone confirm\" applies what is held")
		return found
	}
	found.Note = "connected to global"
	if f.Zone == "" {
		found.Note = fmt.Sprintf("%d, none is offline, nothing is held or refused", len(f.Zones))
	}
	return found
}

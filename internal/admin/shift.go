package admin

import (
	"errors"
	"net/url"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/zoneshift"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// ShiftPath says what a ZoneShift would do, to GET with its zone or its node in the query.
// The answer is a ShiftAnswer.
const ShiftPath = "/proxima/v1/zones/shift"

// ShiftAnswer is what a ZoneShift would do.
type ShiftAnswer struct {
	zoneshift.Effect
	// Plans of the planned Services that would be others.
	Plans *topology.Simulation `json:"plans"`
}

func shift(c Config, scope summary.Scope, q url.Values) (any, error) {
	spec := mesh.ZoneShiftSpec{Zone: q.Get("zone"), Node: q.Get("node")}
	if (spec.Zone == "") == (spec.Node == "") {
		return nil, &badQuery{errors.New("name a zone or a node, and not both")}
	}
	snapshot := c.Tables.Snapshot()
	if !zoneshift.Known(snapshot, &spec) {
		if spec.Node != "" {
			return nil, &topology.UnknownError{What: "node", Name: spec.Node}
		}
		return nil, &topology.UnknownError{What: "zone", Name: spec.Zone, Known: locality.Zones(zoneshift.Zones(snapshot)...)}
	}
	answer := ShiftAnswer{Effect: zoneshift.Evaluate(snapshot, &spec, backend.ShiftsOf(snapshot), within(scope))}
	var err error
	answer.Plans, err = c.Planner.Simulate(topology.Change{Shifts: []topology.Shift{{Zone: locality.Zone(spec.Zone), Node: spec.Node}}, Within: within(scope)})
	var unknown *topology.UnknownError
	if errors.As(err, &unknown) { // a zone without nodes and planned endpoints: no plan knows it
		answer.Plans, err = &topology.Simulation{}, nil
	}
	return answer, err
}

// Package demand carries the measurement of demand from the data paths of nodes to
// the estimates that plans are made with.
//
// It owns what both ends keep. Meter, on a node, turns the growing counters of a
// mode into reports that are counted once whatever is lost on the way. Aggregator,
// in a control plane, keeps per service port how much traffic starts in which zone,
// on internal/planner/estimate. Enter at NewMeter and NewAggregator. How reports
// travel is the business of package report; what a plan makes of the estimate is
// that of the planner. DESIGN.md in this folder says why it is exact where it must
// be, and what happens when an agent is silent.
package demand

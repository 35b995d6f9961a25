package planner

import "time"

const (
	// gapAtOnce, in points: a plan this much worse than the best is replaced now.
	gapAtOnce = 3
	// gapIgnored, in points: noise of a good estimate. More than that accumulates.
	gapIgnored = 0.3
	// gapMinutes, in point·minutes: as much as may accumulate.
	gapMinutes = 3
	// gapMinutesFirst is as much as may accumulate for so long after endpoints changed or
	// demand moved far: little was known of the demand then, so a plan that was made with
	// it is mended sooner.
	gapMinutesFirst = 0.5
	firstFor        = 10 * time.Minute
	// GapForHints, in points: hints are written to objects that every node
	// watches, and move whole endpoints.
	GapForHints = 5
	// overloadPerPoint: so many points of overload weigh as one of cost.
	overloadPerPoint = 2.5
)

// Gap says, in points (1 % each), how much worse metrics are than those of the best
// plan: in cost, as a share of the highest cost, or in load above what the best plan
// or its limit (a multiple of the mean, as Plan.Factor gives it) has, whichever is more.
func Gap(t *Topology, published, best Metrics, limit float64) float64 {
	gap := 0.0
	if t.maxCost > 0 {
		gap = (published.Cost - best.Cost) / t.maxCost
	}
	excess := published.Worst - max(limit, best.Worst)
	return 100 * max(0, gap, excess/overloadPerPoint)
}

// Republisher decides when a new plan replaces the published one, so that
// traffic follows its demand and not the noise of its estimate. The zero value has
// published nothing. Times are the caller's; they may not go back.
type Republisher struct {
	published   bool
	at          time.Time
	accumulated float64 // point·minutes
	// changed is when endpoints, or demand by far, changed last.
	changed time.Time
}

// Resume returns the Republisher of a plan that an earlier process published.
func Resume(now, published time.Time, reason Reason) Republisher {
	r := Republisher{published: true, at: now}
	if reason != LastingGap {
		r.changed = published
	}
	return r
}

// Reason why a plan is published.
type Reason uint8

const (
	// Keep the published plan.
	Keep Reason = iota
	// EndpointsChanged, or nothing was published before.
	EndpointsChanged
	// LargeGap: the published plan is far from the best.
	LargeGap
	// LastingGap: it has been a little worse for long.
	LastingGap
)

var reasonNames = [...]string{"Keep", "EndpointsChanged", "LargeGap", "LastingGap"}

func (r Reason) String() string { return reasonNames[r] }

// Step takes the gap as it is now, and returns whether to publish and why. What
// it says is taken as done. endpointsChanged is anything but demand that the plan
// depends on.
func (r *Republisher) Step(now time.Time, endpointsChanged bool, gap float64) Reason {
	elapsed := max(0, now.Sub(r.at)).Minutes()
	if !r.published {
		elapsed = 0
	}
	r.at = now
	r.accumulated = max(0, r.accumulated+(gap-gapIgnored)*elapsed)
	limit := float64(gapMinutes)
	if now.Sub(r.changed) < firstFor {
		limit = gapMinutesFirst
	}
	var reason Reason
	switch {
	case endpointsChanged || !r.published:
		reason = EndpointsChanged
	case gap > gapAtOnce:
		reason = LargeGap
	case r.accumulated > limit:
		reason = LastingGap
	default:
		return Keep
	}
	r.published, r.accumulated = true, 0
	if reason != LastingGap {
		r.changed = now
	}
	return reason
}

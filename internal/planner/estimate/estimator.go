// Package estimate estimates where the traffic of a service port starts, from counts
// of new connections reported by zone.
//
// It owns the estimate only: quick after a change, calm in noise, and sane before
// anything was reported. Enter at Estimator. It never reads a clock, keeps nothing
// beyond the Estimator, and does no I/O; who reports, and for which endpoints, is
// not its business.
package estimate

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
)

// HalfLife is the time constant of the estimate: a report weighs half as much when it is this old.
// Until then the estimate is a mean over all reports, and a step of the demand replaces it sooner.
const HalfLife = 90 * time.Second

const (
	// The other mean notices changes. Reports come every 10 s.
	fastHalfLife = 15 * time.Second

	// The slow mean is replaced by the fast one where they differ by more than this
	// share, and by so many standard deviations of the fast one.
	changeShare = 0.03
	changeSigma = 3
	// Residuals count up to so many deviations: what may be a change must not widen
	// the measure of noise by which it is noticed.
	clipSigma = 3
	// Reports before the deviation is trusted.
	warmUp = 4

	// So many of the newest reports are kept: after a change, those that agree with each
	// other are what the estimate starts from.
	keptReports = 4
	// So many reports after a change the newest ones can show by themselves that it is not
	// over: the means are young then, and follow it side by side.
	unsettled = 4

	// priorConnections is the weight of the prior.
	priorConnections = 3

	maxCount   = 1e15
	maxElapsed = 24 * time.Hour
)

// mean is a mean rate that forgets: both sums decay alike, so it is an exact mean as
// long as time is short against the half-life.
type mean struct{ count, seconds float64 }

func (m *mean) observe(count, seconds, kept float64) {
	m.count, m.seconds = m.count*kept+count, m.seconds*kept+seconds
}

func (m mean) rate() float64 {
	if m.seconds == 0 {
		return 0
	}
	return m.count / m.seconds
}

type zone struct {
	slow, fast mean
	// variance of a report's share around the fast mean: squares and their weight.
	squares, weight float64
}

// kept is a report that may be started from. Counts of missing zones are NaN.
type kept struct {
	seconds float64
	counts  []float64
}

// addTo takes the report into sums by zone.
func (k kept) addTo(sum []mean) {
	for i, c := range k.counts {
		if !math.IsNaN(c) {
			sum[i].count, sum[i].seconds = sum[i].count+c, sum[i].seconds+k.seconds
		}
	}
}

// Estimator holds the estimate of one service port. It is not for concurrent use.
type Estimator struct {
	names   []locality.Zone
	zones   []zone
	reports int
	// recent are the newest reports, the last one last; steady is how many there were
	// since the last change.
	recent []kept
	steady int
}

// New returns an estimator that knows nothing yet of these zones.
func New(names []locality.Zone) *Estimator {
	return &Estimator{names: slices.Clone(names), zones: make([]zone, len(names))}
}

// Rezone changes the zones. Those that stay keep what is known of them.
func (e *Estimator) Rezone(names []locality.Zone) {
	zones := make([]zone, len(names))
	for i, name := range names {
		if k := slices.Index(e.names, name); k >= 0 {
			zones[i] = e.zones[k]
		}
	}
	e.names, e.zones, e.recent = slices.Clone(names), zones, nil
}

// Report is what happened since the one before, in the order of the zones.
type Report struct {
	// Elapsed is the time that the counts cover, measured by a monotonic clock.
	Elapsed time.Duration
	// Counts of new connections, or bytes.
	Counts []float64
	// Missing zones have not reported: what is known of them stays. Nil if all have.
	Missing []bool
}

func (e *Estimator) check(r Report) error {
	if r.Elapsed <= 0 || r.Elapsed > maxElapsed {
		return &planner.FieldError{Field: "elapsed", Reason: fmt.Sprintf("%v, not above 0 to %v", r.Elapsed, maxElapsed)}
	}
	if len(r.Counts) != len(e.names) {
		return &planner.FieldError{Field: "counts", Reason: fmt.Sprintf("%d values for %d zones", len(r.Counts), len(e.names))}
	}
	if r.Missing != nil && len(r.Missing) != len(e.names) {
		return &planner.FieldError{Field: "missing", Reason: fmt.Sprintf("%d values for %d zones", len(r.Missing), len(e.names))}
	}
	for i, c := range r.Counts {
		if !r.missing(i) && !(c >= 0 && c <= maxCount) {
			return &planner.FieldError{Field: fmt.Sprintf("counts[%q]", e.names[i]), Reason: fmt.Sprintf("%g, not 0 to %g", c, float64(maxCount))}
		}
	}
	return nil
}

func (r Report) missing(zone int) bool { return r.Missing != nil && r.Missing[zone] }

// Observe takes a report, and says whether it showed a change that made the
// estimate start over. An error is a *planner.FieldError and changes nothing.
func (e *Estimator) Observe(r Report) (changed bool, err error) {
	if err := e.check(r); err != nil {
		return false, err
	}
	seconds := r.Elapsed.Seconds()
	slowKept := math.Exp2(-seconds / HalfLife.Seconds())
	fastKept := math.Exp2(-seconds / fastHalfLife.Seconds())
	residuals := e.residuals(r)
	for i := range e.zones {
		if !r.missing(i) {
			e.zones[i].slow.observe(r.Counts[i], seconds, slowKept)
			e.zones[i].fast.observe(r.Counts[i], seconds, fastKept)
		}
	}
	e.reports++
	e.steady++
	e.keep(r)
	if e.reports <= warmUp || !e.differ(fastKept) && !e.stillMoving(fastKept) {
		e.note(residuals, slowKept)
		return false, nil
	}
	// What showed a change is not noise, so it is not noted.
	e.restart(fastKept)
	e.steady = 0
	return true, nil
}

// keep a report, in the memory of the oldest one.
func (e *Estimator) keep(r Report) {
	one := kept{seconds: r.Elapsed.Seconds()}
	if len(e.recent) == keptReports {
		one.counts = e.recent[0].counts
		copy(e.recent, e.recent[1:])
		e.recent[keptReports-1] = one
	} else {
		one.counts = make([]float64, len(e.zones))
		e.recent = append(e.recent, one)
	}
	for i := range one.counts {
		one.counts[i] = r.Counts[i]
		if r.missing(i) {
			one.counts[i] = math.NaN()
		}
	}
	e.recent[len(e.recent)-1] = one
}

// restart has the slow mean start over: with the newest reports that agree with each
// other, if there are at least two, as the fast mean remembers what was before the change;
// else with the fast mean, as one report alone may be chance.
func (e *Estimator) restart(fastKept float64) {
	n, sum := e.agreeing(fastKept), make([]mean, len(e.zones))
	for _, one := range e.recent[len(e.recent)-n:] {
		one.addTo(sum)
	}
	for i := range e.zones {
		z := &e.zones[i]
		if n < 2 || sum[i].seconds == 0 {
			z.slow = z.fast
			continue
		}
		// The fast mean stays as quick as it is: it gets the rate, not the weight.
		z.slow, z.fast.count = sum[i], sum[i].rate()*z.fast.seconds
	}
}

// agreeing is how many of the newest reports show the same shares, as far as noise lets
// that be told.
func (e *Estimator) agreeing(fastKept float64) int {
	sum := make([]mean, len(e.zones))
	n := 0
	for k := len(e.recent) - 1; k >= 0; k-- {
		one := e.recent[k]
		rates, counts := 0.0, 0.0
		for i, c := range one.counts {
			if !math.IsNaN(c) {
				rates, counts = rates+sum[i].rate(), counts+c
			}
		}
		for i, c := range one.counts {
			if n == 0 || math.IsNaN(c) || rates == 0 || counts == 0 {
				continue
			}
			sigma := e.zones[i].ofReport(fastKept) * math.Sqrt(1+1/float64(n))
			if math.Abs(c/counts-sum[i].rate()/rates) > max(changeShare, changeSigma*sigma) {
				return n
			}
		}
		one.addTo(sum)
		n++
	}
	return n
}

// stillMoving says, soon after a change, whether the newest reports differ from the slow
// mean: the newest one alone, or the sum of those that agree with each other, back to the
// one that showed the change. A sum has less noise than one report.
func (e *Estimator) stillMoving(fastKept float64) bool {
	if e.steady > unsettled || e.steady == e.reports {
		return false
	}
	sum, most := make([]mean, len(e.zones)), min(e.agreeing(fastKept), e.steady+1)
	for n := 1; n <= most; n++ {
		e.recent[len(e.recent)-n].addTo(sum)
		if e.differFrom(sum, math.Sqrt(float64(n)), fastKept) {
			return true
		}
	}
	return false
}

// differFrom says whether the share of any zone in sums of reports differs from the slow
// mean. The deviation of the sums is that of one report divided by calm.
func (e *Estimator) differFrom(sum []mean, calm, fastKept float64) bool {
	slow, rates := 0.0, 0.0
	for i, m := range sum {
		if m.seconds > 0 {
			slow, rates = slow+e.zones[i].slow.rate(), rates+m.rate()
		}
	}
	if slow == 0 || rates == 0 {
		return false
	}
	for i, m := range sum {
		z := &e.zones[i]
		if m.seconds > 0 && math.Abs(m.rate()/rates-z.slow.rate()/slow) > max(changeShare, changeSigma*z.ofReport(fastKept)/calm) {
			return true
		}
	}
	return false
}

// residuals is how far the shares of a report are from the fast mean before it, so
// that a drift, which that follows, does not pass for noise. NaN is nothing to compare.
func (e *Estimator) residuals(r Report) []float64 {
	rates, counts := 0.0, 0.0
	for i := range e.zones {
		if !r.missing(i) {
			rates += e.zones[i].fast.rate()
			counts += r.Counts[i]
		}
	}
	residuals := make([]float64, len(e.zones))
	for i := range residuals {
		residuals[i] = math.NaN()
		if !r.missing(i) && rates > 0 && counts > 0 {
			residuals[i] = r.Counts[i]/counts - e.zones[i].fast.rate()/rates
		}
	}
	return residuals
}

// note adds residuals to the measure of noise.
func (e *Estimator) note(residuals []float64, kept float64) {
	for i, residual := range residuals {
		if math.IsNaN(residual) {
			continue
		}
		z := &e.zones[i]
		square := residual * residual
		if e.reports > warmUp {
			// A floor, so that the measure can grow from nothing.
			square = min(square, max(clipSigma*clipSigma*z.variance(), changeShare*changeShare))
		}
		z.squares, z.weight = z.squares*kept+square, z.weight*kept+1
	}
}

func (z *zone) variance() float64 {
	if z.weight == 0 {
		return 0
	}
	return z.squares / z.weight
}

// ofReport is the deviation of the share in one report: residuals are against the fast
// mean, which varies itself. See differ.
func (z *zone) ofReport(fastKept float64) float64 {
	return math.Sqrt(z.variance() * (1 + fastKept) / 2)
}

// differ says whether any zone's share has changed. If reports vary by v, and a report
// leaves k of those before it, the fast mean varies by v·(1−k)/(1+k), and residuals
// against it by v·2/(1+k): so the former is (1−k)/2 of the latter.
func (e *Estimator) differ(fastKept float64) bool {
	slow, fast := 0.0, 0.0
	for i := range e.zones {
		slow += e.zones[i].slow.rate()
		fast += e.zones[i].fast.rate()
	}
	if slow == 0 || fast == 0 {
		return false
	}
	for i := range e.zones {
		z := &e.zones[i]
		sigma := math.Sqrt(z.variance() * (1 - fastKept) / 2)
		if math.Abs(z.fast.rate()/fast-z.slow.rate()/slow) > max(changeShare, changeSigma*sigma) {
			return true
		}
	}
	return false
}

// Shares returns the estimate by new connections alone: see Load.
func (e *Estimator) Shares(prior []float64, noNodes []bool) []float64 {
	return e.Load(Question{Prior: prior, NoNodes: noNodes}).Shares
}

// Question is what an estimate depends on besides reports of new connections. Slices are in
// the order of the zones, or nil.
type Question struct {
	// Prior is what to believe before anything is reported, such as the share of CPU;
	// it weighs as much as 3 connections, and stands for zones that never reported. Only its
	// proportions matter; nil, or one without a sane value, is even.
	Prior []float64
	// NoNodes marks zones without live nodes, which have no demand at once (nil: none); what is
	// known of them is back when they are.
	NoNodes []bool
	// Open connections by zone, and their turnover: the part of them that ends per second, and
	// comes again somewhere.
	Open     []float64
	Turnover float64
	// Kept is the part of a zone's new connections that no plan moves.
	Kept []float64
}

// Load is the estimate of what there is to plan.
type Load struct {
	// Shares of demand by zone, summing to 1. If there is no zone with nodes, all are 0.
	Shares []float64
	// Rate is all demand, per second: of each zone the larger of its new connections and of its
	// open ones by their turnover.
	Rate float64
	// Fixed load by zone, per second, which no plan moves.
	Fixed []float64
}

// Load estimates demand. New connections weigh as many as were counted within the memory of
// the estimate; open ones at least as many as they are.
func (e *Estimator) Load(q Question) Load {
	l := Load{Shares: Unreported(len(e.zones), q.Prior, q.NoNodes), Fixed: make([]float64, len(e.zones))}
	window, unknown, total := 0.0, 0.0, 0.0
	for i := range e.zones {
		if z := &e.zones[i]; l.Shares[i] > 0 || q.NoNodes == nil || !q.NoNodes[i] {
			window = max(window, z.slow.seconds)
			if z.slow.seconds == 0 {
				unknown += l.Shares[i]
			}
		}
	}
	for i := range e.zones {
		rate, fixed := e.load(i, q)
		l.Rate, l.Fixed[i] = l.Rate+rate, fixed
	}
	if window == 0 {
		return l
	}
	if q.Turnover > 0 {
		window = max(window, 1/q.Turnover)
	}
	for i := range e.zones {
		z := &e.zones[i]
		switch {
		case q.NoNodes != nil && q.NoNodes[i], z.slow.seconds == 0:
		default:
			rate, _ := e.load(i, q)
			l.Shares[i] = priorConnections*l.Shares[i] + rate*window
			total += l.Shares[i]
		}
	}
	for i := range e.zones {
		if e.zones[i].slow.seconds > 0 && total > 0 {
			l.Shares[i] *= (1 - unknown) / total
		}
	}
	return l
}

// load of a zone, per second: what can be planned, and what is fixed.
func (e *Estimator) load(i int, q Question) (rate, fixed float64) {
	rate = e.zones[i].slow.rate()
	if q.Kept != nil {
		fixed = rate * q.Kept[i]
		rate -= fixed
	}
	if q.Open != nil {
		rate = max(rate, q.Open[i]*q.Turnover)
	}
	return rate, fixed
}

// Unreported is the estimate for so many zones before anything is reported: sane shares that sum to 1, or 0 if no zone has nodes.
// Prior and noNodes are as those of a Question.
func Unreported(zones int, prior []float64, noNodes []bool) []float64 {
	shares, sum := make([]float64, zones), 0.0
	for even := range 2 {
		for i := range shares {
			shares[i] = 0
			if noNodes != nil && noNodes[i] {
				continue
			}
			if even == 1 {
				shares[i] = 1
			} else if i < len(prior) && prior[i] > 0 && prior[i] <= maxCount {
				shares[i] = prior[i]
			}
			sum += shares[i]
		}
		if sum > 0 {
			break
		}
	}
	for i := range shares {
		if sum > 0 {
			shares[i] /= sum
		}
	}
	return shares
}

// Rate is the estimate of all demand, per second.
func (e *Estimator) Rate() float64 {
	rate := 0.0
	for i := range e.zones {
		rate += e.zones[i].slow.rate()
	}
	return rate
}

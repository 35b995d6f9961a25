package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// A plan follows from endpoints, nodes, parameters, costs and demand. All but the last
// outlive a control plane, so the condition names the demand that a plan was made for,
// and a restarted one plans with that until enough agents have reported.

// What conditions say of demand.
const (
	basisGuessed  = "guessed from the CPU of nodes"
	basisMeasured = "measured"
	basisHeld     = "held until all nodes have reported"
)

var recorded = regexp.MustCompile(`, demand (?:` + basisMeasured + `|` + basisHeld + `) \(([^()]*)\); `)

// recall reads from a Service's condition what demand its plans were made for: shares
// by zone, by the title of the unit. Lines that say nothing of the kind, or that somebody
// spoilt, are left out.
func recall(service *corev1.Service) map[string]map[string]float64 {
	cond := meta.FindStatusCondition(service.Status.Conditions, ConditionPlan)
	if cond == nil {
		return nil
	}
	out := map[string]map[string]float64{}
	for line := range strings.Lines(cond.Message) {
		title, _, _ := strings.Cut(line, ": ")
		if m := recorded.FindStringSubmatch(line); m != nil {
			if shares := parseShares(m[1]); shares != nil {
				out[title] = shares
			}
		}
	}
	return out
}

// parseShares is the inverse of shares; nil if that is no list of them.
func parseShares(list string) map[string]float64 {
	out := map[string]float64{}
	for item := range strings.SplitSeq(list, ", ") {
		zone, rest, _ := strings.Cut(item, " ")
		number, ok := strings.CutSuffix(rest, " %")
		percent, err := strconv.ParseFloat(number, 64)
		// Written so that NaN is refused, too.
		if !ok || err != nil || zone == "" || !(percent > 0 && percent <= 100) {
			return nil
		}
		out[zone] = percent
	}
	return out
}

// shareList is the demand by zone; hundredths of percents are well below what a plan is
// published for. Zones without any are left out.
func shareList(t *planner.Topology, demand []float64) string {
	total := 0.0
	for _, d := range demand {
		total += d
	}
	var out []string
	for i, d := range demand {
		if share := fmt.Sprintf("%.2f", 100*d/max(total, minRate)); share != "0.00" {
			out = append(out, t.Zone(i).Name+" "+share+" %")
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// cold: estimates are of too few agents to replace what an earlier process knew.
func (c *Controller) cold() bool { return c.config.Warm != nil && !c.config.Warm() }

// hold fills in the demand that an earlier process planned for. It does nothing, and
// says false, where that is not known or not wanted any more.
func (c *Controller) hold(u *unit, demand []float64) bool {
	u.held = false
	if u.recalled == nil {
		return false
	}
	if !c.cold() {
		u.recalled = nil
		return false
	}
	for i, zone := range c.atlas.cluster.names {
		if share := u.recalled[zone]; share > 0 && !c.atlas.cluster.noNodes[i] {
			demand[u.at[i]], u.held = share, true
		}
	}
	return u.held
}

// basis of a plan's demand, and the demand where it is worth to be known again.
func (u *unit) basis() string {
	what := basisGuessed
	switch {
	case u.held:
		what = basisHeld
	case u.measured:
		what = basisMeasured
	}
	if what == basisGuessed || !u.known {
		return what
	}
	if list := shareList(u.published.Topology(), u.planned.Demand); list != "" {
		what += " (" + list + ")"
	}
	return what
}

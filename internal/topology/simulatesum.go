package topology

import (
	"fmt"
	"strings"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// Summary is what would become of all Services together that a Change concerns. Each port group
// counts alike in means, as their demands are in units of their own.
type Summary struct {
	// Affected port groups, and of how many Services.
	Affected int `json:"affected"`
	Services int `json:"services"`
	// Before and After are the means, After of the groups with an endpoint; Worst in them is that
	// of the busiest group.
	Before planner.Metrics `json:"before"`
	After  planner.Metrics `json:"after"`
	// Busiest is the group that After.Worst is of.
	Busiest string `json:"busiest,omitempty"`
	// Unserved Services have no endpoint left; the first MaxUnserved of them, and their number.
	Unserved      []string `json:"unserved,omitempty"`
	UnservedCount int      `json:"unservedCount"`
	// MoneyBefore and MoneyAfter are sums, per month, of the Services of which both are known; by
	// currency.
	MoneyBefore map[string]float64 `json:"moneyBefore,omitempty"`
	MoneyAfter  map[string]float64 `json:"moneyAfter,omitempty"`

	served             int    // groups with an endpoint
	last, lastUnserved string // the Services before
}

// MaxUnserved bounds the names in a Summary.
const MaxUnserved = 20

// add what was simulated, to the summary if one is asked for.
func (s *Simulation) add(v Simulated) {
	s.Services = append(s.Services, v)
	if s.Summary != nil {
		s.Summary.add(&v)
	}
}

func (s *Summary) add(v *Simulated) {
	s.Affected++
	if v.Service != s.last {
		s.Services, s.last = s.Services+1, v.Service
	}
	s.Before.InZone, s.Before.Cost = s.Before.InZone+v.Before.InZone, s.Before.Cost+v.Before.Cost
	s.Before.Worst = max(s.Before.Worst, v.Before.Worst)
	if v.served {
		s.served++
		s.After.InZone, s.After.Cost = s.After.InZone+v.After.InZone, s.After.Cost+v.After.Cost
	}
	if v.After.Worst > s.After.Worst {
		s.After.Worst, s.Busiest = v.After.Worst, v.Service+" "+titleOf(v.Ports, v.Family)
	}
	if !v.served && v.Service != s.lastUnserved {
		s.UnservedCount, s.lastUnserved = s.UnservedCount+1, v.Service
		if len(s.Unserved) < MaxUnserved {
			s.Unserved = append(s.Unserved, v.Service)
		}
	}
	if v.MoneyBefore == nil || v.MoneyAfter == nil {
		return
	}
	if s.MoneyBefore == nil {
		s.MoneyBefore, s.MoneyAfter = map[string]float64{}, map[string]float64{}
	}
	s.MoneyBefore[v.MoneyBefore.Currency] += v.MoneyBefore.Planned
	s.MoneyAfter[v.MoneyAfter.Currency] += v.MoneyAfter.Planned
}

// finish turns sums into means. s may be nil.
func (s *Summary) finish() {
	if s == nil || s.Affected == 0 {
		return
	}
	before, after := float64(s.Affected), float64(max(s.served, 1))
	s.Before.InZone, s.Before.Cost = s.Before.InZone/before, s.Before.Cost/before
	s.After.InZone, s.After.Cost = s.After.InZone/after, s.After.Cost/after
}

func (s *Summary) text(b *strings.Builder) {
	if s.Affected == 0 {
		return
	}
	fmt.Fprintf(b, "%s affected; on average, and the busiest endpoint of all:\n  now:  %s\n", count(int64(s.Services), "service"), measures(s.Before))
	if s.Busiest != "" {
		fmt.Fprintf(b, "  then: %s (%s)\n", measures(s.After), s.Busiest)
	}
	for _, currency := range sortedKeys(s.MoneyBefore) {
		fmt.Fprintf(b, "  money: %s a month by the plans of now, %s then\n", amount(s.MoneyBefore[currency], currency), amount(s.MoneyAfter[currency], currency))
	}
	if s.UnservedCount > 0 {
		fmt.Fprintf(b, "  no endpoint left: %s", strings.Join(s.Unserved, ", "))
		if more := s.UnservedCount - len(s.Unserved); more > 0 {
			fmt.Fprintf(b, " and %d more", more)
		}
		b.WriteString("\n")
	}
}

package topology

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Text describes a survey in words: a table, what it rests on, and what is not known.
func (s *Survey) Text() string {
	var b strings.Builder
	if len(s.Services) > 0 {
		s.table(&b)
		b.WriteByte('\n')
	}
	t := s.Total
	shown := ""
	if n := s.shown(); n < t.Services {
		shown = fmt.Sprintf(", %d shown", n)
	}
	fmt.Fprintf(&b, "%s compared%s\n", count(int64(t.Services), "service"), shown)
	for _, n := range s.NotCompared {
		fmt.Fprintf(&b, "not compared: %s %s\n", count(int64(n.Services), "service"), n.Reason)
	}
	switch {
	case len(s.Services) == 0:
	case t.WithVolume == 0:
		b.WriteString("volumes are unknown, so nothing is said of money; --traffic FILE or --traffic-from URL states them\n")
	case t.WithMoney == 0:
		b.WriteString("no price of traffic is known; state it with --price-per-gb, --price, or in a ZoneCosts\n")
	case t.Currency != "":
		fmt.Fprintf(&b, "a month: %s now, %s by the plan, %s saved, of %s with a known volume\n", amount(t.Now, t.Currency),
			amount(t.Planned, t.Currency), amount(t.Saving, t.Currency), count(int64(t.WithMoney), "service"))
	}
	if s.guessed() {
		b.WriteString("where no zones of clients are known, traffic is taken to start where the allocatable CPU of nodes is\n")
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	b.WriteString("nothing was applied\n")
	return b.String()
}

// shown is how many Services the answer has; one may have several lines.
func (s *Survey) shown() int {
	names := map[string]bool{}
	for i := range s.Services {
		names[s.Services[i].Service] = true
	}
	return len(names)
}

// guessed: the demand of some Service is.
func (s *Survey) guessed() bool {
	for i := range s.Services {
		if !s.Services[i].Measured {
			return true
		}
	}
	return false
}

// table of Services. Columns about volumes and money are there if any is known.
func (s *Survey) table(b *strings.Builder) {
	volume, money := s.Total.WithVolume > 0, s.Total.WithMoney > 0
	var padded strings.Builder
	w := tabwriter.NewWriter(&padded, 0, 4, 2, ' ', 0)
	head := "SERVICE\tENDPOINTS\tZONES\tIN ZONE → PLAN\tGAIN\tBUSIEST → PLAN"
	if volume {
		head += "\tA MONTH\tCROSSING → PLAN"
	}
	if money {
		head += "\tCOST → PLAN\tSAVING"
	}
	fmt.Fprintln(w, head)
	several := map[string]int{}
	for i := range s.Services {
		several[s.Services[i].Service]++
	}
	for i := range s.Services {
		l := &s.Services[i]
		name := l.Service
		if several[name] > 1 {
			name += " " + portsText(l.Ports)
		}
		hints := ""
		if l.Hints {
			hints = "*"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f %%%s → %.1f %%\t%+.1f\t%.2f× → %.2f×", name, l.Endpoints, l.Zones, 100*l.KubeProxy.InZone, hints,
			100*l.Plan.InZone, 100*l.Gain, l.KubeProxy.Worst, l.Plan.Worst)
		if volume {
			l.volumeText(w)
		}
		if money {
			l.moneyText(w)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // into memory
	for line := range strings.Lines(padded.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n") // the last cells may be empty
	}
	for i := range s.Services {
		if s.Services[i].Hints {
			b.WriteString("* by the hints of Kubernetes' own controller\n")
			return
		}
	}
}

func (l *Surveyed) volumeText(w *tabwriter.Writer) {
	switch {
	case l.GB != nil:
		fmt.Fprintf(w, "\t%.4g GB\t%.4g → %.4g", l.GB.Amount, l.GB.Now, l.GB.Planned)
	case l.Connections != nil:
		fmt.Fprintf(w, "\t%.4g connections\t%.4g → %.4g", l.Connections.Amount, l.Connections.Now, l.Connections.Planned)
	default:
		fmt.Fprint(w, "\tunknown\t")
	}
}

func (l *Surveyed) moneyText(w *tabwriter.Writer) {
	if l.Money == nil {
		fmt.Fprint(w, "\t\t")
		return
	}
	fmt.Fprintf(w, "\t%.2f → %s\t%s", l.Money.Now, amount(l.Money.Planned, l.Money.Currency), amount(*l.Saving, l.Money.Currency))
}

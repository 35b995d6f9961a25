package topology

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRestartHoldsPlans: a control plane that starts again divides traffic as the one
// before did until agents have reported, also where endpoints change meanwhile, and says so.
func TestRestartHoldsPlans(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var warm atomic.Bool
		configure := func(c *Config) { c.Warm = warm.Load }
		warm.Store(true)
		r := newRig(t, configure, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		restart := func() {
			r.stop()
			warm.Store(false)
			r.demand.set(nil)
			r.start(configure)
		}
		// What was guessed is guessed again: there is nothing to hold.
		restart()
		r.wantPercents("guessed, then restarted", "a", "a 100.0")
		if got := r.condition(ConditionPlan); !strings.Contains(got, "demand guessed from the CPU of nodes;") {
			t.Error(got)
		}
		warm.Store(true)
		r.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		const planned = "a 52.0 b 24.0 c 24.0"
		r.wantPercents("measured", "a", planned)
		if got := r.condition(ConditionPlan); !strings.Contains(got, "demand measured (a 75.00 %, b 12.50 %, c 12.50 %);") {
			t.Error(got)
		}
		hints := r.hints()

		for _, what := range []string{"restarted", "restarted before it was warm"} {
			restart()
			r.wantPercents(what, "a", planned)
			if got := r.condition(ConditionPlan); !strings.Contains(got,
				"demand held until all nodes have reported (a 75.00 %, b 12.50 %, c 12.50 %);") {
				t.Errorf("%s: %s", what, got)
			}
			if report, ok := r.c.Explain(webKey); !ok || !report.Plans[0].Held || report.Plans[0].Measured {
				t.Errorf("%s: explained as %+v", what, report)
			}
			// The first agent to report is of another zone; that is no news of this one.
			r.report(map[string]float64{"c": 10})
			r.wantPercents(what+", one agent has reported", "a", planned)
			if r.hints() != hints {
				t.Errorf("%s: hints are %s, were %s", what, r.hints(), hints)
			}
		}
		r.seed(workloads("aaabbbccC")...)
		r.wantPercents("an endpoint is gone", "a", "a 58.5 b 27.1 c 14.4")
		r.seed(workloads("aaabbbccc")...)

		// All as it was: the plan stays, and is that of a measured demand again.
		r.demand.set(map[string]float64{"a": 60, "b": 10, "c": 10})
		warm.Store(true)
		time.Sleep(11 * time.Second)
		r.settle()
		r.wantPercents("warm", "a", planned)
		if got := r.condition(ConditionPlan); !strings.Contains(got, "demand measured (a 75.00 %") {
			t.Error(got)
		}
		// It is followed from here on.
		r.report(map[string]float64{"a": 10, "b": 60, "c": 10})
		r.wantPercents("another demand", "a", "a 100.0")
	})
}

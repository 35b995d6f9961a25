package testkit

import (
	"fmt"
	"testing"
)

func TestSelectors(t *testing.T) {
	for expr, want := range map[string]string{
		`a > 0`: "a", `up`: "up", `1`: "",
		`sum by (instance, le) (rate(a_bucket{x="1",y!~"2|3"}[5m])) / 2`:      "a_bucket{x y}",
		`max without (pod) (a) == 0 or min(b{z=""}) offset 5m > 1.1 * c`:      "a b{z} c",
		`a * on (job) group_left (node) b unless ignoring (x) c or vector(0)`: "a b c",
	} {
		got := ""
		for _, s := range Selectors(t, expr) {
			labels := ""
			for _, m := range s.Matchers {
				labels += " " + m.Label
			}
			if labels != "" {
				labels = "{" + labels[1:] + "}"
			}
			got += " " + s.Metric + labels
		}
		if fmt.Sprint(" ", want) != fmt.Sprint(" ", got[min(1, len(got)):]) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
	s := Selectors(t, `a{x="1.0",y!~"2|3"}`)[0]
	for labels, want := range map[[2]string]bool{{"1.0", ""}: true, {"1.0", "2"}: false, {"1x0", ""}: false, {"1.0", "22"}: true} {
		if s.Matches(map[string]string{"x": labels[0], "y": labels[1]}) != want {
			t.Errorf("%v: want %t", labels, want)
		}
	}
}

package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Selector is a metric in an expression of PromQL, and what it demands of labels.
type Selector struct {
	Metric   string
	Matchers []Matcher
}

// Matcher demands that a label matches a regular expression, from its begin to its end, or that
// it does not.
type Matcher struct {
	Label string
	Value *regexp.Regexp
	Not   bool
}

// Matches reports whether a series has labels as the selector wants them.
func (s Selector) Matches(labels map[string]string) bool {
	for _, m := range s.Matchers {
		if m.Value.MatchString(labels[m.Label]) == m.Not {
			return false
		}
	}
	return true
}

var (
	promToken   = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|[0-9][\w.]*|[A-Za-z_:][\w:]*|=~|!~|!=|[^\s]`)
	promWord    = regexp.MustCompile(`^[A-Za-z_:][\w:]*$`)
	promKeyword = []string{"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}
)

// Selectors of an expression, in the order in which they are in it. It knows what the alerts and
// dashboards of this repository are made of.
func Selectors(t testing.TB, expr string) (out []Selector) {
	t.Helper()
	tokens := promToken.FindAllString(expr, -1)
	at := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	for i := 0; i < len(tokens); i++ {
		switch word := tokens[i]; {
		case slices.Contains(promKeyword[5:], word) && at(i+1) == "(": // labels
			i += slices.Index(tokens[i:], ")")
		case slices.Contains(promKeyword, word), !promWord.MatchString(word), slices.Contains([]string{"(", "by", "without"}, at(i+1)):
		case at(i+1) == "{":
			s := Selector{Metric: word}
			for i += 2; at(i) != "}"; i += 3 {
				if at(i) == "," {
					i++
				}
				value := strings.Trim(at(i+2), `"`)
				if op := at(i + 1); op == "=" || op == "!=" {
					value = regexp.QuoteMeta(value)
				}
				re, err := regexp.Compile("^(?:" + value + ")$")
				if err != nil || !strings.HasPrefix(at(i+2), `"`) {
					t.Fatalf("%s: no matcher at %q: %v", expr, at(i), err)
				}
				s.Matchers = append(s.Matchers, Matcher{Label: at(i), Value: re, Not: strings.HasPrefix(at(i+1), "!")})
			}
			out = append(out, s)
		default:
			out = append(out, Selector{Metric: word})
		}
	}
	return out
}

// MetricReference is every metric of docs/reference/metrics.md with its labels.
func MetricReference(t testing.TB) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	out, name := map[string][]string{}, regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 4 && name.MatchString(cells[1]) {
			labels := []string{}
			for _, found := range name.FindAllStringSubmatch(cells[3], -1) {
				labels = append(labels, found[1])
			}
			out[name.FindStringSubmatch(cells[1])[1]] = labels
		}
	}
	return out
}

// LabelsOf the series of a metric, which may be one of the three of a histogram, with those of a
// scrape's target; ok is false if the reference lacks the metric.
func LabelsOf(metric string, reference map[string][]string) (labels []string, ok bool) {
	of, ok := reference[metric]
	labels = []string{"instance", "job", "pod"}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name, cut := strings.CutSuffix(metric, suffix)
		if histogram, there := reference[name]; cut && there && !ok {
			of, ok = histogram, true
			if suffix == "_bucket" {
				labels = append(labels, "le")
			}
		}
	}
	return append(labels, of...), ok
}

// CheckMetrics reports what an expression names that is not in the reference: metrics, and labels
// of them besides those of a scrape's target.
func CheckMetrics(t testing.TB, what, expr string, reference map[string][]string) {
	t.Helper()
	selectors := Selectors(t, expr)
	if len(selectors) == 0 {
		t.Errorf("%s: no metric in %s", what, expr)
	}
	for _, s := range selectors {
		labels, ok := LabelsOf(s.Metric, reference)
		if !ok {
			t.Errorf("%s: there is no metric %s", what, s.Metric)
			continue
		}
		for _, m := range s.Matchers {
			if !slices.Contains(labels, m.Label) {
				t.Errorf("%s: %s has no label %s", what, s.Metric, m.Label)
			}
		}
	}
}

// Promtool is the path of Prometheus' own tool; without it the test is skipped.
func Promtool(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	path := filepath.Join(Root(t), "bin", "promtool")
	if _, err := os.Stat(path); err != nil {
		t.Skip("promtool is missing: tools/setup unpacks it")
	}
	return path
}

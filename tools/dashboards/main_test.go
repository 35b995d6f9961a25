package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// units that panels may have, as Grafana names them.
var units = []string{"short", "s", "ops", "cps", "Bps", "bytes", "percentunit", "dateTimeFromNow"}

// many are labels with a value for each machine or Service: they need a bound on the lines of a panel.
var many = []string{"instance", "node", "service"}

var (
	grouped = regexp.MustCompile(`\bby \(([^)]*)\)`)
	ranged  = regexp.MustCompile(`(\w+)\((\w+)(?:\{[^}]*\})?(\[[^\]]*\])`)
	inText  = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// TestDashboards: what is committed is what the code gives, and shows metrics and labels that there are.
func TestDashboards(t *testing.T) {
	reference := testkit.MetricReference(t)
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) != len(pages()) {
		t.Errorf("%d files, %d dashboards, %v", len(files), len(pages()), err)
	}
	for _, p := range pages() {
		want, err := p.json()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../../deploy/grafana", p.file()))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("deploy/grafana/%s is not what the code gives: run make gen (%v)", p.file(), err)
		}
		for _, v := range p.variables {
			testkit.CheckMetrics(t, p.title+", "+v.name, queryOf(v), reference)
		}
		for _, panel := range p.panels {
			what := p.title + ", " + panel.title
			if len(panel.series) == 0 || panel.description == "" || !slices.Contains(units, panel.unit) {
				t.Errorf("%s: needs series, a description and one of the units %v, has %q", what, units, panel.unit)
			}
			for _, s := range panel.series {
				testkit.CheckMetrics(t, what, s.expr, reference)
				checkLabels(t, what, s, reference)
				checkRanges(t, what, s.expr)
				checkBounds(t, p, what, s.expr)
			}
		}
	}
}

// queryOf a variable: the expression in label_values.
func queryOf(v variable) string {
	expr := strings.TrimSuffix(strings.TrimPrefix(v.query, "label_values("), ")")
	return expr[:strings.LastIndex(expr, ",")]
}

// checkLabels that series are grouped by, and that their names have: of a metric in the expression.
func checkLabels(t *testing.T, what string, s series, reference map[string][]string) {
	t.Helper()
	var known []string
	for _, selector := range testkit.Selectors(t, s.expr) {
		labels, _ := testkit.LabelsOf(selector.Metric, reference)
		known = append(known, labels...)
	}
	var by []string
	for _, m := range grouped.FindAllStringSubmatch(s.expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			by = append(by, strings.TrimSpace(label))
		}
	}
	for _, label := range by {
		if !slices.Contains(known, label) {
			t.Errorf("%s: is grouped by %s, which no metric of %s has", what, label, s.expr)
		}
	}
	for _, m := range inText.FindAllStringSubmatch(s.legend, -1) {
		if !slices.Contains(by, m[1]) {
			t.Errorf("%s: the name %q has %s, which %s does not keep", what, s.legend, m[1], s.expr)
		}
	}
}

// checkRanges: Grafana chooses the window, by the interval of scrapes; rates are of counters.
func checkRanges(t *testing.T, what, expr string) {
	t.Helper()
	found := ranged.FindAllStringSubmatch(expr, -1)
	if len(found) != strings.Count(expr, "[") {
		t.Errorf("%s: a range that is not understood: %s", what, expr)
	}
	for _, m := range found {
		counter := regexp.MustCompile(`_(total|bucket|count|sum)$`).MatchString(m[2])
		if m[3] != "[$__rate_interval]" || counter != (m[1] == "rate" || m[1] == "increase") {
			t.Errorf("%s: want rate or increase of a counter, or deriv of a gauge, with [$__rate_interval]: %s", what, expr)
		}
	}
}

// checkBounds: a cluster of 10,000 nodes and Services does not draw as many lines.
func checkBounds(t *testing.T, p page, what, expr string) {
	t.Helper()
	chosen := slices.ContainsFunc(p.variables, func(v variable) bool { return v.some && strings.Contains(expr, "$"+v.name) })
	if chosen || strings.HasPrefix(expr, "topk(") || strings.HasPrefix(expr, "bottomk(") {
		return
	}
	for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if slices.Contains(many, strings.TrimSpace(label)) {
				t.Errorf("%s: has a line for each %s: use topk, or a variable: %s", what, strings.TrimSpace(label), expr)
			}
		}
	}
}

// TestQueriesParse: Prometheus' own parser reads every query.
func TestQueriesParse(t *testing.T) {
	promtool := testkit.Promtool(t)
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboards\n  rules:\n")
	n := 0
	add := func(expr string) {
		n++
		fmt.Fprintf(&rules, "  - record: dashboards:query%d\n    expr: %q\n", n, strings.ReplaceAll(expr, "$__rate_interval", "1m"))
	}
	for _, p := range pages() {
		for _, v := range p.variables {
			add(queryOf(v))
		}
		for _, panel := range p.panels {
			for _, s := range panel.series {
				add(s.expr)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", file).CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
}

package proxima_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	proxima "github.com/proxima-mesh/proxima"
	"github.com/proxima-mesh/proxima/internal/docs"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// runbooks is where the pages of documentation are read without a binary.
const runbooks = "https://github.com/proxima-mesh/proxima/blob/main/"

// maxAlerts that people can be expected to know.
const maxAlerts = 15

// alertRules is what is read of deploy/prometheus/alerts.yaml.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations map[string]string
		}
	}
}

// alertTests is what is read of deploy/prometheus/alerts_test.yaml.
type alertTests struct {
	Tests []struct {
		AlertRuleTest []struct {
			Alertname string
			ExpAlerts []any `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	}
}

// TestAlerts: each alert uses metrics that there are, has a section in the documentation
// with cause, check and fix, and a test in which it fires and one in which it does not.
func TestAlerts(t *testing.T) {
	var rules alertRules
	var tests alertTests
	readYAML(t, "deploy/prometheus/alerts.yaml", &rules)
	readYAML(t, "deploy/prometheus/alerts_test.yaml", &tests)
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range tests.Tests {
		for _, r := range c.AlertRuleTest {
			if len(r.ExpAlerts) > 0 {
				fires[r.Alertname] = true
			} else {
				quiet[r.Alertname] = true
			}
		}
	}
	reference, docs := testkit.MetricReference(t), embedded(t)
	trouble := readText(t, "docs/how-to/trouble.md")
	pages := readText(t, "web/src/main.tsx")
	alerts := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts++
			testkit.CheckMetrics(t, r.Alert, r.Expr, reference)
			if !fires[r.Alert] || !quiet[r.Alert] {
				t.Errorf("%s: has a test in which it fires: %t; in which it does not: %t", r.Alert, fires[r.Alert], quiet[r.Alert])
			}
			if page, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], runbooks), "#"); !docs.has(page, anchor) || anchor != strings.ToLower(r.Alert) {
				t.Errorf("%s: runbook_url %q: \"proxima docs\" has no such page and section", r.Alert, r.Annotations["runbook_url"])
			}
			if page, ok := strings.CutPrefix(r.Annotations["console"], "/console/#/"); !ok || !strings.Contains(pages, `path: "`+page+`"`) {
				t.Errorf("%s: console %q is no page of the console: use /console/#/PAGE", r.Alert, r.Annotations["console"])
			}
			_, section, found := strings.Cut(trouble, "\n### "+r.Alert+"\n")
			section, _, _ = strings.Cut(section, "\n#")
			for _, part := range []string{"**Cause.**", "**Check.**", "**Fix.**"} {
				if !found || !strings.Contains(section, part) {
					t.Errorf("%s: docs/how-to/trouble.md has no %s of it", r.Alert, part)
				}
			}
		}
	}
	if alerts == 0 || alerts > maxAlerts {
		t.Errorf("%d alerts, want 1 to %d", alerts, maxAlerts)
	}
}

// site is the documentation as the binary has it.
type site struct{ *docs.Site }

func embedded(t *testing.T) site {
	t.Helper()
	s, err := docs.New(proxima.Documentation, "v0")
	if err != nil {
		t.Fatal(err)
	}
	return site{s}
}

// has reports whether there is a page of this file, and a section of it; an empty anchor is the page.
func (s site) has(file, anchor string) bool {
	p, ok := s.Page(file)
	return ok && (anchor == "" || slices.ContainsFunc(p.Headings, func(h docs.Heading) bool { return h.Anchor == anchor }))
}

// TestAlertRules runs the tests of the rules in Prometheus' own tool.
func TestAlertRules(t *testing.T) {
	promtool := testkit.Promtool(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readText(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

var (
	internal  = filepath.Join("..", "..", "internal")
	reference = filepath.Join("..", "..", "docs", "reference", "metrics.md")
)

func TestReferenceIsUpToDate(t *testing.T) {
	all, err := collect(internal)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := write(&want, all); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("%s is out of date: run make gen\n%s", reference, diff)
	}
}

// TestNames: promlint reports no problems, names have the subsystem's prefix, and no two
// packages have one.
func TestNames(t *testing.T) {
	all, err := collect(internal)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Errorf("%d metrics are found; there are more", len(all))
	}
	var text strings.Builder
	for i, m := range all {
		// kubeproxy_ ones are kube-proxy's own names, for its dashboards.
		if !strings.HasPrefix(m.name, "proxima_") && !strings.HasPrefix(m.name, "kubeproxy_") {
			t.Errorf("%s (package %s) does not begin with proxima_", m.name, m.pkg)
		}
		if i > 0 && all[i-1].name == m.name {
			t.Errorf("%s is in packages %s and %s", m.name, all[i-1].pkg, m.pkg)
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: the help is no sentence: %q", m.name, m.help)
		}
		text.WriteString(exposition(m))
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// exposition is a metric with one sample, as Prometheus reads it.
func exposition(m metric) string {
	var labels []string
	for _, l := range m.labels {
		labels = append(labels, l+`="x"`)
	}
	head := fmt.Sprintf("# HELP %s %s\n# TYPE %[1]s %[3]s\n", m.name, m.help, m.kind)
	set := func(more ...string) string { return "{" + strings.Join(append(labels, more...), ",") + "} 1\n" }
	if m.kind == "histogram" {
		return head + m.name + "_bucket" + set(`le="+Inf"`) + m.name + "_sum" + set() + m.name + "_count" + set()
	}
	return head + m.name + set()
}

// TestCollect: how definitions may be written, and that what cannot be read is an
// error rather than left out.
func TestCollect(t *testing.T) {
	const head = "package a\n\nimport \"github.com/prometheus/client_golang/prometheus\"\n\n"
	for _, c := range []struct{ name, source, want string }{
		{"options", `var a = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "p", Subsystem: "s", Name: "n_total", Help: "H."})`, "p_s_n_total counter [] H."},
		{"vector", `var a = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "n", Help: "H" + "."}, []string{"x", "y"})`, "n gauge [x y] H."},
		{"constants", `const prefix = "p_"
var a = prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "n", Help: "H."})`, "p_n histogram [] H."},
		{"helper", `func f() {
	c := func(name string) prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "p_" + name, Help: "H."}) }
	c("a_total")
	c("b_total")
}`, "p_a_total counter [] H.; p_b_total counter [] H."},
		{"description", `var d = prometheus.NewDesc("n", "H.", []string{"x"}, nil)
func f(to chan<- prometheus.Metric) { to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1, "x") }`, "n gauge [x] H."},
		{"description in a helper with labels", `func desc(name string, labels ...string) *prometheus.Desc { return prometheus.NewDesc("p_"+name, "H.", labels, nil) }
var d = desc("n_total", "x", "y")
func f(to chan<- prometheus.Metric) {
	value := func(d *prometheus.Desc, t prometheus.ValueType) { to <- prometheus.MustNewConstMetric(d, t, 1) }
	value(d, prometheus.CounterValue)
}`, "p_n_total counter [x y] H."},
		{"name from elsewhere", `func f(c struct{ Name string }) { prometheus.NewGauge(prometheus.GaugeOpts{Name: c.Name, Help: "H."}) }`, "error"},
		{"description that is never used", `var d = prometheus.NewDesc("n", "H.", nil, nil)`, "error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte(head+c.source+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := collect(dir)
			var lines []string
			for _, m := range all {
				lines = append(lines, fmt.Sprintf("%s %s %v %s", m.name, m.kind, m.labels, m.help))
			}
			got := strings.Join(lines, "; ")
			if err != nil {
				got = "error"
			}
			if got != c.want {
				t.Errorf("%s, want %s (%v)", got, c.want, err)
			}
		})
	}
}

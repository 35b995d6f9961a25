package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestDashboards: what is committed is what the code gives, and shows metrics that there are.
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
		for _, panel := range p.panels {
			if len(panel.series) == 0 || panel.description == "" {
				t.Errorf("%s, %s: needs series and a description", p.title, panel.title)
			}
			for _, s := range panel.series {
				testkit.CheckMetrics(t, p.title+", "+panel.title, s.expr, reference)
			}
		}
	}
}

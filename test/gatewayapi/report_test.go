package gatewayapi

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/consts"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// Results of cases.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// results of cases by their names.
type results map[string]string

// record is the suite's hook after a case.
func (r results) record(t *testing.T, of suite.ConformanceTest, _ *suite.ConformanceTestSuite) {
	switch {
	case t.Failed():
		r[of.ShortName] = failed
	case t.Skipped():
		r[of.ShortName] = skipped
	default:
		r[of.ShortName] = passed
	}
}

// tell prints each case, and the counts, which tools/interop-gatewayapi reads.
func (r results) tell() {
	counts := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		fmt.Printf("%s\t%s\n", r[name], name)
		counts[r[name]]++
	}
	fmt.Printf("interop-gatewayapi: conformance %s, MESH-HTTP and MESH-GRPC: %d of %d cases passed, %d failed, %d skipped\n",
		consts.BundleVersion, counts[passed], len(r), counts[failed], counts[skipped])
}

// wantReport compares what the suite reports with the report in the repository, or with
// PROXIMA_GATEWAYAPI_UPDATE writes that.
func wantReport(t *testing.T, report *confv1.ConformanceReport) {
	t.Helper()
	path := filepath.Join(testkit.Root(t), "test", "gatewayapi", "report.yaml")
	if os.Getenv("PROXIMA_GATEWAYAPI_UPDATE") != "" {
		text, err := yaml.Marshal(report)
		if err == nil {
			err = os.WriteFile(path, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var kept confv1.ConformanceReport
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &kept)
	}
	if err != nil {
		t.Fatal(err)
	}
	kept.Date = report.Date
	want, err := yaml.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s says something else than this run (PROXIMA_GATEWAYAPI_UPDATE=1 writes it):\n%s", path, got)
	}
}

// wantCases checks that no case of meshes was left out.
func wantCases(t *testing.T, r results) {
	t.Helper()
	for _, test := range meshTests() {
		if r[test.ShortName] != passed {
			t.Errorf("case %s: %q", test.ShortName, r[test.ShortName])
		}
	}
	if len(r) == 0 {
		t.Error("there was no case")
	}
}

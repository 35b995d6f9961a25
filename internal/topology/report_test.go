package topology

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/resource"
)

var webKey = resource.Key{Namespace: "shop", Name: "web"}

// abroad are nodes of another region.
func abroad(zones string) []resource.Object {
	var out []resource.Object
	for _, z := range zones {
		n := node("node-"+string(z), string(z))
		n.Labels[corev1.LabelTopologyRegion] = "us"
		out = append(out, n)
	}
	return out
}

// TestExplain compares the explanation of every kind of situation with
// testdata/explain.txt; set PROXIMA_GOLDEN=1 to write it again.
func TestExplain(t *testing.T) {
	lost := workload("lost", "a", 9, true)
	lost.Spec.NodeName = ""
	var b strings.Builder
	for _, c := range []struct {
		name    string
		objects []resource.Object
		rates   map[string]float64
	}{
		{"balanced", all(equalNodes("abc"), workloads("abc"), one(adaptive())), nil},
		{"4/4/3, which Kubernetes gives up", all(equalNodes("abc"), workloads("aaaabbbbccc"), one(adaptive())), nil},
		{"a zone lost its endpoints", all(equalNodes("abc"), workloads("aabb"), one(adaptive())), nil},
		{"traffic from one zone, measured", all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive())), map[string]float64{"a": 120}},
		{"lightly used endpoints", all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive(AnnotationUtilisation, "0.2"))), map[string]float64{"a": 120}},
		{"the region is full", all(equalNodes("ab"), abroad("c"), workloads("abcccc"), one(adaptive())), nil},
		{"a matrix of costs", all(equalNodes("ab"), abroad("c"), workloads("bbccc"), one(adaptive(), costs(DefaultCosts, pair("a", "c", 0.1)))), nil},
		{"no endpoint is ready", all(equalNodes("abc"), workloads("ABC"), one(adaptive())), nil},
		{"a zone has no live node", all(equalNodes("ab"), one(node("node-c", "c", down)), workloads("abc"), one(adaptive())), nil},
		{"an endpoint without zone", all(equalNodes("ab"), workloads("ab"), one(lost, adaptive())), nil},
		{"bad parameters", all(equalNodes("ab"), workloads("ab"), one(adaptive(AnnotationOverload, "20 %", AnnotationCosts, "ours"))), nil},
		{"Auto is refused", all(equalNodes("abc"), workloads("ab"), one(web(mode, "Auto"))), nil},
		{"Auto is in effect", all(equalNodes("abc"), workloads("abc"), one(web(mode, "Auto"))), nil},
		{"PreferSameZone overloads", all(equalNodes("abc"), workloads("abbbb"), one(distribution(web(), "PreferSameZone"))), nil},
		{"an unknown heuristic", all(equalNodes("ab"), workloads("ab"), one(web(mode, "example.com/Mine"))), nil},
		{"weights of a rule", all(equalNodes("abc"), workloads("aabbc"), one(web(mode, weighing))), map[string]float64{"a": 60, "b": 30, "c": 10}},
		{"weights for some zones only", all(equalNodes("ab"), workloads("ab"), one(web(mode, partly))), nil},
		{"nothing is asked for", all(equalNodes("ab"), workloads("ab"), one(web())), nil},
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				c.Heuristics = Registry{weighing: &weigher{home: 8, away: 1}, partly: &weigher{home: 1, without: "b"}}
			}, c.objects...)
			if c.rates != nil {
				r.report(c.rates)
			}
			report, ok := r.c.Explain(webKey)
			if !ok {
				t.Fatalf("%s: not explained", c.name)
			}
			if _, err := json.Marshal(report); err != nil {
				t.Errorf("%s: %v", c.name, err) // such as a NaN
			}
			b.WriteString("-- " + c.name + " --\n" + report.Text("a") + "\n")
		})
	}
	golden(t, "explain.txt", b.String())
}

// partly is a heuristic that gives weights to some zones only.
const partly = "example.com/Partly"

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("PROXIMA_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
}

func TestExplainFollowsTheDemand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive()))...)
		if _, ok := r.c.Explain(resource.Key{Namespace: "shop", Name: "other"}); ok {
			t.Error("a Service that is not there was explained")
		}
		r.report(map[string]float64{"a": 60, "b": 10, "c": 10})
		time.Sleep(time.Minute)
		r.report(map[string]float64{"a": 60.5, "b": 10, "c": 10})
		report, _ := r.c.Explain(webKey)
		p := report.Plans[0]
		if p.Reason != planner.LargeGap.String() || p.Age < 60 || p.Age > 100 || !p.Measured || p.Gap <= 0 || p.Gap > 1 ||
			p.Now == p.Plan.Metrics {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(report.Text("b"), "\n> b: ") || strings.Contains(report.Text("b"), "\n> a: ") {
			t.Error(report.Text("b"))
		}
	})
}

func TestSimulate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		plain := web()
		plain.Name, plain.UID = "plain", "svc-2"
		idle := adaptive()
		idle.Name, idle.UID, idle.Spec.Selector = "idle", "svc-3", map[string]string{"app": "none"}
		r := newRig(t, nil, all(equalNodes("abc"), workloads("aaabbbccc"), one(adaptive(), plain, idle))...)
		before, _ := r.c.Explain(webKey)
		var b strings.Builder
		for _, c := range []struct {
			name   string
			change Change
		}{
			{"zone a fails", Change{FailZones: locality.Zones("a")}},
			{"zone a fails, in sum", Change{FailZones: locality.Zones("a"), Summary: true}},
			{"all zones fail, in sum", Change{FailZones: locality.Zones("a", "b", "c"), Summary: true}},
			{"two zones fail", Change{FailZones: locality.Zones("a", "b")}},
			{"zone a is taken out, its clients stay", Change{Shifts: []Shift{{Zone: "a"}}}},
			{"a node is taken out", Change{Shifts: []Shift{{Node: "node-a"}}}},
			{"all zones are taken out, and go on serving", Change{Shifts: []Shift{{Zone: "a"}, {Zone: "b"}, {Zone: "c"}}}},
			{"two more endpoints", Change{Endpoints: []EndpointsChange{{webKey, "b", 2}}}},
			{"three times the demand", Change{Demand: []DemandChange{{webKey, "a", 3}}}},
			{"and endpoints that take it", Change{Demand: []DemandChange{{webKey, "a", 3}}, Endpoints: []EndpointsChange{{webKey, "a", 5}}}},
			{"a Service that is not planned", Change{Demand: []DemandChange{{resource.Key{Namespace: "shop", Name: "plain"}, "a", 3}}}},
		} {
			s, err := r.c.Simulate(c.change)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(s); err != nil {
				t.Error(err)
			}
			b.WriteString("-- " + c.name + " --\n" + s.Text() + "\n")
		}
		golden(t, "simulate.txt", b.String())
		after, _ := r.c.Explain(webKey)
		after.Plans[0].Age = before.Plans[0].Age
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("something was applied: %s", diff)
		}
		for _, c := range []struct {
			change Change
			text   string
		}{
			{Change{FailZones: locality.Zones("x")}, `there is no zone "x"; there are a, b, c`},
			{Change{Shifts: []Shift{{Zone: "x"}}}, `there is no zone "x"; there are a, b, c`},
			{Change{Shifts: []Shift{{Node: "x"}}}, `there is no node "x"`},
			{Change{Endpoints: []EndpointsChange{{webKey, "x", 1}}}, `there is no zone "x"; there are a, b, c`},
			{Change{Endpoints: []EndpointsChange{{resource.Key{Namespace: "shop", Name: "y"}, "a", 1}}}, `there is no service "shop/y"`},
			{Change{Endpoints: []EndpointsChange{{webKey, "a", -4}}}, "service shop/web: endpoints: -4 where the weight is 3"},
			{Change{Endpoints: []EndpointsChange{{webKey, "a", 1 << 30}}}, "service shop/web: endpoints: +1073741824, at most +100000"},
			{Change{Demand: []DemandChange{{webKey, "a", -1}}}, "service shop/web: demand: multiplied by -1, not 0 to 1e6"},
		} {
			if _, err := r.c.Simulate(c.change); err == nil || !strings.HasSuffix(err.Error(), c.text) {
				t.Errorf("%+v: %v, want %s", c.change, err, c.text)
			}
		}
		var unknown *UnknownError
		if _, err := r.c.Simulate(Change{FailZones: locality.Zones("x")}); !errors.As(err, &unknown) {
			t.Errorf("%v is no UnknownError", err)
		}
	})
}

func TestParseChanges(t *testing.T) {
	for text, want := range map[string]string{
		"shop/web:a:+2": "shop/web:a:+2", "web:a:-1": "ns/web:a:-1",
		"web:a:2": "", "web:a": "", "web:a:+": "", "web:a:+x": "", "": "", ":a:+1": "", "web::+1": "", "web:a:+1:": "", "web:a:+99999999999": "",
	} {
		c, err := ParseEndpoints(text, "ns")
		if got := c.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("endpoints %q: %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"shop/web:a:x3": "shop/web:a:x3", "web:a:×0.5": "ns/web:a:x0.5", "web:a:*0": "ns/web:a:x0",
		"web:a:3": "", "web:a:x": "", "web:a:xNaN": "", "web:a:xInf": "", "web:a": "",
	} {
		c, err := ParseDemand(text, "ns")
		if got := c.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("demand %q: %s, %v", text, got, err)
		}
	}
}

func FuzzParseChanges(f *testing.F) {
	f.Add("shop/web:a:+2")
	f.Add("web:a:×3")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := ParseEndpoints(text, "ns"); err == nil {
			if again, err := ParseEndpoints(c.String(), ""); err != nil || again != c {
				t.Errorf("%q is %s, which is %+v, %v", text, c, again, err)
			}
		}
		if c, err := ParseDemand(text, "ns"); err == nil {
			if again, err := ParseDemand(c.String(), ""); err != nil || again != c {
				t.Errorf("%q is %s, which is %+v, %v", text, c, again, err)
			}
		}
	})
}

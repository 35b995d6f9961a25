package traffic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func amount(x float64) *float64 { return &x }

func TestParse(t *testing.T) {
	both := []Entry{
		{Namespace: "shop", Service: "web", GB: amount(500)},
		{Namespace: "shop", Service: "cart", GB: amount(0.5), Connections: amount(1e6)},
	}
	zoned := []Entry{
		{Namespace: "shop", Service: "web", From: "a", To: "b", GB: amount(3)},
		{Namespace: "shop", Service: "web", From: "b", To: "a", GB: amount(4)},
	}
	for name, tc := range map[string]struct {
		file, data string
		want       []Entry
	}{
		"CSV":            {"t.csv", "namespace,service,gbPerMonth,connectionsPerMonth\nshop,web,500,\nshop,cart,0.5,1e6\n", both},
		"names":          {"t.csv", "\ufeff# exported\nNamespace, Service ,gb_per_month,connections\n\nshop, web,500,\nshop,cart,.5,1000000\n", both},
		"no ending":      {"traffic", "service,namespace,gb,connections\nweb,shop,500,\ncart,shop,0.5,1e6", both},
		"JSON":           {"t.json", `[{"namespace":"shop","service":"web","gbPerMonth":500},{"namespace":"shop","service":"cart","gbPerMonth":0.5,"connectionsPerMonth":1000000}]`, both},
		"YAML":           {"t.yaml", "- {namespace: shop, service: web, gbPerMonth: 500, connectionsPerMonth: null}\n- namespace: shop\n  service: cart\n  gbPerMonth: 0.5\n  connectionsPerMonth: 1e6\n", both},
		"zones":          {"t.csv", "namespace,service,fromZone,toZone,gb\nshop,web,a,b,3\nshop,web,b,a,4\n", zoned},
		"an empty list":  {"t.yaml", "[]", nil},
		"an empty file":  {"t.yml", "# nothing yet\n", nil},
		"names and none": {"t.csv", "namespace,service,gb\n", nil},
	} {
		got, err := Parse(tc.file, []byte(tc.data))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestMistakes: an error names the file, the line, the field and what is wrong.
func TestMistakes(t *testing.T) {
	const head = "namespace,service,gb\n"
	for name, tc := range map[string]struct{ file, data, want string }{
		"no names":          {"t.csv", "", "t.csv: line 1: there is no line of names"},
		"an unknown field":  {"t.csv", "namespace,name,gb\n", `t.csv: line 1: there is no field "name"`},
		"no number":         {"t.csv", head + "shop,web,1\nshop,cart,many\n", `t.csv: line 3: gb: "many" is no number`},
		"infinite":          {"t.csv", head + "shop,web,Inf\n", `line 2: gb: "Inf" is no number`},
		"negative":          {"t.csv", head + "shop,web,-1\n", "t.csv: line 2: gbPerMonth: -1: must be from 0"},
		"too large":         {"t.csv", head + "shop,web,1e13\n", "line 2: gbPerMonth: 1e+13: must be"},
		"no namespace":      {"t.csv", head + ",web,1\n", "t.csv: line 2: namespace: missing"},
		"no service":        {"t.csv", head + "shop,,1\n", "t.csv: line 2: service: missing"},
		"no amount":         {"t.csv", head + "shop,web,\n", "t.csv: line 2: gbPerMonth, connectionsPerMonth: give one"},
		"twice":             {"t.csv", head + "shop,web,1\n\nshop,web,2\n", "t.csv: line 4: service: shop/web is there already (t.csv: line 2)"},
		"too few columns":   {"t.csv", head + "shop,web\n", "line 2"},
		"a field twice":     {"t.csv", "namespace,service,gb,gbPerMonth\nshop,web,1,2\n", "line 2: gbPerMonth: is there twice"},
		"one zone":          {"t.csv", "namespace,service,gb,fromZone\nshop,web,1,a\n", "line 2: fromZone, toZone: give both"},
		"zones and none":    {"t.csv", "namespace,service,gb,fromZone,toZone\nshop,web,1,a,b\nshop,web,2,,\n", "line 3: fromZone: shop/web has an entry with zones"},
		"no list":           {"t.yaml", "namespace: shop\n", "t.yaml: line 1: must be a list"},
		"no mapping":        {"t.yaml", "- {namespace: shop, service: web, gb: 1}\n- web\n", "t.yaml: line 2: must be a mapping"},
		"no field":          {"t.json", "[\n{\"namespace\":\"shop\",\n\"svc\":\"web\"}]", `t.json: line 3: there is no field "svc"`},
		"no value":          {"t.yaml", "- namespace: shop\n  service: [web]\n", "t.yaml: line 2: service: must be one value"},
		"no number in YAML": {"t.yaml", "- namespace: shop\n  service: web\n  gb: lots\n", `t.yaml: line 3: gb: "lots" is no number`},
		"an alias":          {"t.yaml", "- &a {namespace: shop, service: web, gb: 1}\n- *a\n", "t.yaml: line 2: must be a mapping"},
		"no YAML":           {"t.yaml", "- {namespace: shop\n", "t.yaml: "},
	} {
		_, err := Parse(tc.file, []byte(tc.data))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestCheck: entries that were not read from a file are checked the same.
func TestCheck(t *testing.T) {
	if err := Check([]Entry{{Namespace: "a", Service: "b", GB: amount(1)}, {Namespace: "a", Service: "c", Connections: amount(0)}}); err != nil {
		t.Error(err)
	}
	err := Check([]Entry{{Namespace: "a", Service: "b", GB: amount(1)}, {Namespace: "a", Service: "b", GB: amount(1)}})
	if err == nil || !strings.Contains(err.Error(), "entry 2 of traffic: service: a/b is there already (entry 1") {
		t.Error(err)
	}
	if err := Check(make([]Entry, maxEntries+1)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
}

func TestSum(t *testing.T) {
	gb, connections := Sum([]Entry{{GB: amount(1)}, {GB: amount(2)}, {}})
	if gb == nil || *gb != 3 || connections != nil {
		t.Errorf("%v GB, %v connections", gb, connections)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("t.csv", []byte("namespace,service,gb\nshop,web,1\n"))
	f.Add("t.csv", []byte("namespace,service,fromZone,toZone,connections\n\"a\nb\",web,a,b,1e3\n"))
	f.Add("t.yaml", []byte("- {namespace: shop, service: web, gb: 1}\n"))
	f.Add("t.json", []byte(`[{"namespace":"a","service":"b","connectionsPerMonth":3}]`))
	f.Add("t.yaml", []byte("- &a {namespace: *a}\n"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		entries, err := Parse(name, data)
		if err != nil {
			if entries != nil {
				t.Error("entries beside an error")
			}
			return
		}
		if err := Check(entries); err != nil {
			t.Errorf("what was read does not pass: %v", err)
		}
	})
}

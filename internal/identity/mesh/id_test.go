package mesh_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

func domain(t testing.TB, name string) mesh.Domain {
	t.Helper()
	d, err := mesh.ParseDomain(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func workload(t testing.TB, d, namespace, account string) mesh.ID {
	t.Helper()
	id, err := mesh.Workload(domain(t, d), namespace, account)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestDomainOf(t *testing.T) {
	for _, tc := range []struct{ mesh, configured, want string }{
		{"default", "", "default.mesh"},
		{"shop", "shop.example.com", "shop.example.com"},
		{"Shop", "", ""},
		{"shop", "spiffe://shop.example.com", ""}, // the library would take it
		{"shop", "shop.example.com/path", ""},
		{"shop", "shop_1.example.com", ""},
		{"shop", "10.0.0.1", ""},
		{"shop", "Shop.example.com", ""},
		{"shop", "shop.example.com:8080", ""},
		{"shop", strings.Repeat("a", 64) + ".com", ""},
		{"shop", strings.Repeat("a.", 130) + "com", ""},
		{"shop", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"shop", "bücher.example", ""},
	} {
		got, err := mesh.DomainOf(tc.mesh, tc.configured)
		if (err == nil) != (tc.want != "") || got.Name() != tc.want {
			t.Errorf("%s %q: %q %v, want %q", tc.mesh, tc.configured, got.Name(), err, tc.want)
		}
	}
}

func TestDomainIsImmutable(t *testing.T) {
	for _, tc := range []struct {
		before, after string
		ok            bool
	}{
		{"", "", true},
		{"", "shop.mesh", true}, // the default, spelled out
		{"shop.mesh", "", true},
		{"", "shop.example", false},
		{"a.example", "b.example", false},
		{"a.example", "", false},
		{"not valid", "a.example", true},
		{"a.example", "not valid", false},
	} {
		if err := mesh.CheckDomainUpdate("shop", tc.before, tc.after); (err == nil) != tc.ok {
			t.Errorf("%q to %q: %v", tc.before, tc.after, err)
		}
	}
}

func TestParseID(t *testing.T) {
	for _, tc := range []struct {
		in   string
		kind mesh.Kind
	}{
		{"spiffe://default.mesh/ns/shop/sa/web", mesh.WorkloadID},
		{"spiffe://default.mesh/ns/shop/sa/web.v1", mesh.WorkloadID},
		{"spiffe://default.mesh/zone/east/node/n-1", mesh.NodeID},
		{"spiffe://default.mesh/zone/east/ingress", mesh.IngressID},
		{"spiffe://default.mesh/zone/east/egress", mesh.EgressID},
		{"", 0},
		{"spiffe://default.mesh", 0},
		{"spiffe://default.mesh/", 0},
		{"spiffe://default.mesh/ns/shop", 0},
		{"spiffe://default.mesh/ns/shop/sa/web/", 0},
		{"spiffe://default.mesh/ns/shop/sa/web/x", 0},
		{"spiffe://default.mesh/ns/shop/sa/../sa/admin", 0},
		{"spiffe://default.mesh/ns//sa/web", 0},
		{"spiffe://default.mesh/ns/Shop/sa/web", 0},
		{"spiffe://default.mesh/ns/shop/sa/we%62", 0},
		{"spiffe://default.mesh/ns/shop/sa/web?x", 0},
		{"spiffe://default.mesh/ns/shop/sa/web#x", 0},
		{"spiffe://u@default.mesh/ns/shop/sa/web", 0},
		{"spiffe://default.mesh:1/ns/shop/sa/web", 0},
		{"SPIFFE://default.mesh/ns/shop/sa/web", 0},
		{"https://default.mesh/ns/shop/sa/web", 0},
		{"spiffe://default.mesh/ns/shop/sa/wéb", 0},
		{"spiffe://default.mesh/zone/east/gateway", 0},
	} {
		id, err := mesh.ParseID(tc.in)
		if (err == nil) != (tc.kind != 0) || id.Kind() != tc.kind {
			t.Errorf("%q: %v %v", tc.in, id.Kind(), err)
		}
		if err == nil && id.String() != tc.in {
			t.Errorf("%q becomes %q", tc.in, id)
		}
	}
}

func TestWorkloadDefaultsAndParts(t *testing.T) {
	id := workload(t, "default.mesh", "shop", "")
	if id.String() != "spiffe://default.mesh/ns/shop/sa/default" || id.Namespace() != "shop" ||
		id.ServiceAccount() != "default" || id.Node() != "" || id.Zone() != "" {
		t.Errorf("%s %q %q", id, id.Namespace(), id.ServiceAccount())
	}
	node, err := mesh.Node(domain(t, "default.mesh"), "east", "n1")
	if err != nil || node.Node() != "n1" || node.Zone() != "east" || node.Namespace() != "" || node.ServiceAccount() != "" {
		t.Errorf("%s %v", node, err)
	}
	if _, err := mesh.Workload(mesh.Domain{}, "shop", "web"); err == nil {
		t.Error("an ID without trust domain")
	}
	if _, err := (mesh.ID{}).MarshalText(); err == nil {
		t.Error("the zero value has a text")
	}
}

// FuzzParseID: what is accepted is written back as it was, through a URL too.
func FuzzParseID(f *testing.F) {
	for _, s := range []string{"spiffe://default.mesh/ns/shop/sa/web", "spiffe://d/zone/z/node/n", "spiffe://d/zone/z/ingress",
		"spiffe://1.2.3.4/ns/a/sa/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := mesh.ParseID(s)
		if err != nil {
			if !id.IsZero() {
				t.Fatalf("%q: an error and an ID", s)
			}
			return
		}
		if id.String() != s {
			t.Fatalf("%q became %q", s, id)
		}
		again, err := mesh.IDFromURI(id.URL())
		if err != nil || again != id {
			t.Fatalf("%q through a URL: %v %v", s, again, err)
		}
		u, err := url.Parse(s)
		if err != nil {
			t.Fatalf("%q is no URL: %v", s, err)
		}
		if _, err := mesh.IDFromURI(u); err != nil {
			t.Fatalf("%q parsed as a URL: %v", s, err)
		}
	})
}

func TestMatcher(t *testing.T) {
	web, api, other := workload(t, "a.mesh", "shop", "web"), workload(t, "a.mesh", "shop", "api"), workload(t, "b.mesh", "shop", "web")
	m := mesh.Accounts(web)
	if !m.Match(web) || m.Match(api) || m.Match(other) || m.Match(mesh.ID{}) || m.Empty() {
		t.Error("one account")
	}
	var none mesh.Matcher
	if none.Match(web) || none.Match(mesh.ID{}) || !none.Empty() || !mesh.Exactly(mesh.ID{}).Empty() ||
		mesh.Exactly(mesh.ID{}).Match(mesh.ID{}) {
		t.Error("an empty set matches")
	}
	node, _ := mesh.Node(domain(t, "a.mesh"), "shop", "n")
	many := []mesh.ID{node}
	for i := range 32 {
		many = append(many, workload(t, "a.mesh", "shop", "w"+strings.Repeat("x", i)))
	}
	m = mesh.Accounts(many[:32]...)
	if m.Match(api) || len(m.Exact()) != 32 || len(m.Prefixes()) != 0 {
		t.Error("32 accounts are matched exactly")
	}
	m = mesh.Accounts(many...)
	if !m.Match(api) || m.Match(other) || !m.Match(node) {
		t.Error("above 32, the namespace counts")
	}
	otherNode, _ := mesh.Node(domain(t, "a.mesh"), "shop", "m")
	if m.Match(otherNode) {
		t.Error("a node in a zone that is called as the namespace")
	}
	if p := m.Prefixes(); len(p) != 1 || p[0] != "spiffe://a.mesh/ns/shop/sa/" {
		t.Errorf("%q", p)
	}
}

// part of a name: names of Kubernetes, and everything else.
var part = rapid.OneOf(
	rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?`),
	rapid.StringMatching(`[a-z0-9]{55,70}`),
	rapid.StringN(1, 20, 253),
	rapid.SampledFrom([]string{"1team", "team", "east", "east1", "a.b", "a-b", "A-b", "K", "K", "ſ", "s", "ß", "münchen"}),
)

var service = rapid.Custom(func(t *rapid.T) mesh.Service {
	return mesh.Service{Mesh: part.Draw(t, "mesh"), Namespace: part.Draw(t, "namespace"), Name: part.Draw(t, "name"),
		Port: part.Draw(t, "port")}
})

// TestSNI: a server name is a DNS name, and different for different services.
func TestSNI(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := service.Draw(t, "a"), service.Draw(t, "b")
		nameA, errA := mesh.SNI(a)
		nameB, errB := mesh.SNI(b)
		if errA != nil || errB != nil {
			t.Skip("no name")
		}
		if (nameA == nameB) != (a == b) {
			t.Fatalf("%q and %q for %+v and %+v", nameA, nameB, a, b)
		}
		if len(nameA) > 253 || !mesh.IsSNI(nameA) {
			t.Fatalf("%q", nameA)
		}
		for label := range strings.SplitSeq(nameA, ".") {
			if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
				strings.Trim(label, "-") != label {
				t.Fatalf("label %q of %q", label, nameA)
			}
		}
		x, conflicts, err := mesh.NewIndex([]mesh.Service{a, b, a})
		if err != nil || len(conflicts) > 0 {
			t.Fatal(conflicts, err)
		}
		if got, ok := x.Find(nameB); !ok || got != b {
			t.Fatalf("%q finds %+v", nameB, got)
		}
	})
}

func TestSNIExamples(t *testing.T) {
	web := mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "8080"}
	name, err := mesh.SNI(web)
	if err != nil || name != "e0b0d4b8780dd5bf.8080.web.shop.default.proxima" {
		t.Errorf("%q %v", name, err)
	}
	// Plain concatenation would make these equal.
	one, _ := mesh.SNI(mesh.Service{Mesh: "m", Namespace: "1team", Name: "east", Port: "80"})
	two, _ := mesh.SNI(mesh.Service{Mesh: "m", Namespace: "team", Name: "east1", Port: "80"})
	if one[:16] == two[:16] {
		t.Error("one hash for two services")
	}
	longest := mesh.Service{Mesh: strings.Repeat("m", 63), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63),
		Port: strings.Repeat("p", 15)}
	if name, err := mesh.SNI(longest); err != nil || len(name) != 232 {
		t.Errorf("%d %v", len(name), err)
	}
	for _, bad := range []mesh.Service{
		{},
		{Mesh: "m", Namespace: "n", Name: "s"},
		{Mesh: "m", Namespace: "n", Name: "", Port: "80"},
		{Mesh: "m", Namespace: "n", Name: "s\x00", Port: "80"},
		{Mesh: "m", Namespace: "n", Name: "s\xff", Port: "80"},
		{Mesh: "m", Namespace: "n", Name: strings.Repeat("s", 254), Port: "80"},
	} {
		if name, err := mesh.SNI(bad); err == nil || name != "" {
			t.Errorf("%+v: %q %v", bad, name, err)
		}
		if _, _, err := mesh.NewIndex([]mesh.Service{bad, web}); err == nil {
			t.Errorf("%+v is indexed without an error", bad)
		}
	}
}

func TestIndexFind(t *testing.T) {
	web := mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "80"}
	x, _, err := mesh.NewIndex([]mesh.Service{web})
	if err != nil {
		t.Fatal(err)
	}
	name, _ := mesh.SNI(web)
	for in, want := range map[string]bool{
		name:                                   true,
		strings.ToUpper(name):                  true,
		"":                                     false,
		name + ".":                             false,
		name[1:]:                               false,
		"x" + name:                             false,
		strings.Replace(name, "web", "api", 1): false, // the hash alone is not enough
		strings.Replace(name, "shop", "ſhop", 1): false,
	} {
		if _, ok := x.Find(in); ok != want {
			t.Errorf("%q: %v", in, ok)
		}
	}
	if _, ok := (mesh.Index{}).Find(name); ok {
		t.Error("the zero value finds a service")
	}
	for _, in := range []string{"", "proxima", name + ".x", strings.ToUpper(name), strings.Replace(name, "80", "", 1),
		"0123456789abcdeg.80.a.b.c.proxima"} {
		if mesh.IsSNI(in) {
			t.Errorf("%q is a server name", in)
		}
	}
}

func FuzzFindSNI(f *testing.F) {
	web := mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "80"}
	name, err := mesh.SNI(web)
	if err != nil {
		f.Fatal(err)
	}
	x, _, _ := mesh.NewIndex([]mesh.Service{web})
	f.Add(name)
	f.Add("0123456789abcdef.80.web.shop.default.proxima")
	f.Fuzz(func(t *testing.T, in string) {
		mesh.IsSNI(in)
		if _, ok := x.Find(in); ok && !strings.EqualFold(in, name) {
			t.Fatalf("%q finds the service", in)
		}
	})
}

func TestSVIDChecks(t *testing.T) {
	if _, err := mesh.NewSVID("default", nil, nil); err == nil {
		t.Error("an SVID of nothing")
	}
	if _, err := mesh.IDFromURI(nil); err == nil {
		t.Error("an ID of nothing")
	}
	if _, err := mesh.NewTrust(mesh.Bundle{Mesh: "a", Domain: domain(t, "a.mesh"), Roots: []*x509.Certificate{{}}}); err == nil {
		t.Error("a root that is no authority's")
	}
}

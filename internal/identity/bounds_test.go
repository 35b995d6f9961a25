package identity

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxima-mesh/proxima/internal/certpem"
)

func someBounds() Bounds {
	return Bounds{
		Namespaces: []string{"a", "b"},
		Labels:     map[string][]string{"app": {"api", "web"}, "topology.kubernetes.io/zone": {"z"}},
		Addresses:  []netip.Prefix{netip.MustParsePrefix("10.0.3.0/24"), netip.MustParsePrefix("fd00:3::/64")},
	}
}

var comparePrefixes = cmpopts.EquateComparable(netip.Prefix{})

// Bounds are the same after every way on which they travel: the token's record,
// the user of a request, and the certificate.
func TestBoundsTravel(t *testing.T) {
	want := someBounds()
	if err := CheckBounds(Node, want); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(TokenInfo{Kind: Node, Name: "n1", Bounds: want})
	if err != nil {
		t.Fatal(err)
	}
	var record TokenInfo
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatal(err)
	}
	subject, err := record.Subject()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, subject.Bounds, comparePrefixes); diff != "" {
		t.Errorf("by the record of the token (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, BoundsOf(want.Extra()), comparePrefixes); diff != "" {
		t.Errorf("by the user of a request (-want +got):\n%s", diff)
	}
	ca, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	subject.TokenID = "abc"
	pair, err := ca.IssueClient(subject, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := certpem.ParseCertificates(pair.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(subject, SubjectOf(chain[0]), comparePrefixes); diff != "" {
		t.Errorf("by the certificate (-want +got):\n%s", diff)
	}
}

// What an earlier version issued has no bounds, and means namespace default.
func TestBoundsOfEarlierCredentials(t *testing.T) {
	var b Bounds
	if !b.AllowsNamespace("default") || b.AllowsNamespace("prod") || b.Everywhere() {
		t.Error("no bounds must mean namespace default alone")
	}
	if err := b.CheckLabels(map[string]string{"app": "any"}); err != nil {
		t.Errorf("labels are not restricted: %v", err)
	}
}

// A bound that can't be read must not be a right.
func TestDamagedBoundsAllowNothing(t *testing.T) {
	b := BoundsOf(map[string][]string{ExtraAddresses: {"10.0.0.0"}, ExtraLabels: {"app"}})
	if len(b.Addresses) == 0 || b.AllowsAddress(netip.MustParseAddr("10.0.0.0")) {
		t.Error("a damaged range must allow no address")
	}
	for _, value := range []string{"web", ""} {
		if b.CheckLabels(map[string]string{"app": value}) == nil {
			t.Errorf("a damaged label must allow no workload, not even with value %q", value)
		}
	}
	if BoundsOf(b.Extra()).CheckLabels(map[string]string{"app": "web"}) == nil {
		t.Error("a damaged label must not get lost in encoding")
	}
}

func TestCheckBounds(t *testing.T) {
	many := make([]string, maxBounds+1)
	for i := range many {
		many[i] = "n"
	}
	for name, tc := range map[string]struct {
		kind   Kind
		bounds Bounds
		want   string // part of the error; empty: none
	}{
		"node":                  {Node, someBounds(), ""},
		"everywhere":            {Node, Bounds{Namespaces: []string{"*"}}, ""},
		"workload":              {Workload, Bounds{Labels: map[string][]string{"app": {"web"}}}, ""},
		"admin":                 {Admin, Bounds{Namespaces: []string{"a"}}, "not admin"},
		"workload's namespaces": {Workload, Bounds{Namespaces: []string{"a"}}, "leave namespaces out"},
		"star and others":       {Node, Bounds{Namespaces: []string{"*", "a"}}, "name no other"},
		"namespace":             {Node, Bounds{Namespaces: []string{"A b"}}, `namespace "A b"`},
		"label key":             {Node, Bounds{Labels: map[string][]string{"a b": {"x"}}}, "labels"},
		"label value":           {Node, Bounds{Labels: map[string][]string{"a": {"x/y"}}}, "labels"},
		"label without values":  {Node, Bounds{Labels: map[string][]string{"app": {}}}, "no value"},
		"IPv4 in IPv6":          {Node, Bounds{Addresses: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}, "not a range"},
		"host bits":             {Node, Bounds{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, "not a range"},
		"too many":              {Node, Bounds{Namespaces: many}, "at most"},
	} {
		err := CheckBounds(tc.kind, tc.bounds)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestParseAddresses(t *testing.T) {
	got, err := ParseAddresses([]string{"10.0.3.7/24", "10.0.0.1", "fd00::1", "::ffff:10.0.0.2", "::ffff:10.1.2.3/112"})
	if err != nil {
		t.Fatal(err)
	}
	want := Bounds{Addresses: got}.Extra()[ExtraAddresses]
	if diff := cmp.Diff([]string{"10.0.3.0/24", "10.0.0.1/32", "fd00::1/128", "10.0.0.2/32", "10.1.0.0/16"}, want); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, bad := range []string{"", "web", "10.0.0.0/33", "fe80::1%eth0", "::ffff:10.0.0.0/64"} {
		if _, err := ParseAddresses([]string{bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestWorkloadNames(t *testing.T) {
	s, err := SubjectFor(Workload, "shop/web")
	if err != nil {
		t.Fatal(err)
	}
	if namespace, account, ok := WorkloadName(s.User, s.Groups); !ok || namespace != "shop" || account != "web" ||
		s.User != "proxima:workload:shop/web" {
		t.Errorf("%q is %q %q %t", s.User, namespace, account, ok)
	}
	for _, bad := range []string{"web", "/web", "shop/", "a/b/c", "Shop/web"} {
		if _, err := SubjectFor(Workload, bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if _, _, ok := WorkloadName("proxima:workload:shop/web", []string{GroupNodes}); ok {
		t.Error("without the group it is no workload")
	}
}

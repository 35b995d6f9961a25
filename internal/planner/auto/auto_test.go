package auto

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// equalZones are three zones with the same CPU.
func equalZones() []Node {
	var nodes []Node
	for _, z := range locality.Zones("a", "b", "c") {
		nodes = append(nodes, Node{Zone: z, Ready: true, NanoCPU: 4e9})
	}
	return nodes
}

// in makes ready endpoints, one for each letter, in the zone of that name; "-" has
// no zone, and a capital letter is not ready.
func in(zones string) []Endpoint {
	var endpoints []Endpoint
	for _, z := range zones {
		zone := strings.ToLower(string(z))
		e := Endpoint{Zone: locality.Zone(strings.Trim(zone, "-")), Node: "node-" + zone, Ready: zone == string(z)}
		endpoints = append(endpoints, e)
	}
	return endpoints
}

// hinted gives endpoints the zone hint of the letter at their place; "." is none.
func hinted(endpoints []Endpoint, zones string) []Endpoint {
	for i, z := range zones {
		if z != '.' {
			endpoints[i].Hints = forZone(locality.Zone(z))
		}
	}
	return endpoints
}

// letters is the reverse of hinted, slices separated by spaces.
func letters(r Result) string {
	var out []string
	for _, hints := range r.Hints {
		var b strings.Builder
		for _, h := range hints {
			if h == nil {
				b.WriteByte('.')
			} else {
				b.WriteString(strings.Join(locality.Names(h.ForZones), ""))
			}
		}
		out = append(out, b.String())
	}
	return strings.Join(out, " ")
}

const enabled = "Topology Aware Hints has been enabled, addressType: IPv4"

func TestDecide(t *testing.T) {
	unbalanced := []Node{{Zone: "a", Ready: true, NanoCPU: 8e9}, {Zone: "b", Ready: true, NanoCPU: 1e9},
		{Zone: "c", Ready: true, NanoCPU: 1e9}}
	with := func(nodes []Node, more ...Node) []Node { return append(nodes, more...) }
	for _, c := range []struct {
		name      string
		nodes     []Node
		endpoints string
		hints     string
		message   string
	}{
		{"one each", equalZones(), "abc", "abc", enabled},
		{"4/4/3 in equal zones is given up", equalZones(), "aaaabbbbccc", "...........",
			"Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (11 endpoints, 3 zones), addressType: IPv4"},
		{"9/0/0: the first six are given away, zones by name", equalZones(), "aaaaaaaaa", "bbbcccaaa", enabled},
		{"fewer endpoints than zones", equalZones(), "ab", "..",
			"Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"},
		{"none", equalZones(), "", "", "Insufficient number of endpoints (0 endpoints, 3 zones), addressType: IPv4"},
		{"unready endpoints do not count", equalZones(), "abC", "...",
			"Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"},
		{"an endpoint without zone", equalZones(), "abc-aabbcc-a", "............", "One or more endpoints do not have a zone specified, addressType: IPv4"},
		{"too few endpoints is said before a missing zone", equalZones(), "a-", "..",
			"Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4"},
		{"CPU decides", unbalanced, "aaabbbccc", "aaaaabaac", enabled},
		{"an endpoint in a zone without nodes counts", equalZones(), "abcd", "....",
			"Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 3 zones), addressType: IPv4"},
		{"and is hinted to it", equalZones(), "aabbccddd", "aabbccddd", enabled},
		{"one zone", equalZones()[:1], "aaa", "...",
			"Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4"},
		{"a node without zone", with(equalZones(), Node{Ready: true, NanoCPU: 1}), "abc", "...",
			"Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4"},
		{"a node without CPU", with(equalZones(), Node{Zone: "a", Ready: true}), "abc", "...",
			"Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4"},
		{"neither matters in an unready node", with(equalZones(), Node{}), "abc", "abc", enabled},
		{"nor in the control plane", with(equalZones(), Node{Ready: true, Excluded: true}), "abc", "abc", enabled},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(RatiosOf(c.nodes), Request{Slices: []Slice{{Endpoints: in(c.endpoints)}}, AddressType: "IPv4"})
			if letters(got) != c.hints {
				t.Errorf("hints %s, want %s", letters(got), c.hints)
			}
			if got.Event == nil || got.Event.Message != c.message {
				t.Errorf("event %+v, want %s", got.Event, c.message)
			}
			if ok := c.message == enabled; got.Hinted != ok || got.Event.Warning == ok {
				t.Errorf("hinted %v, event %+v", got.Hinted, got.Event)
			}
		})
	}
}

// TestNodeJoinsWithoutZone: hints go while the node is there, and are back when
// it has left or got its label; nothing is remembered.
func TestNodeJoinsWithoutZone(t *testing.T) {
	endpoints := in("aabbcc")
	hintedNow := false
	var events []string
	step := func(nodes []Node) string {
		r := Decide(RatiosOf(nodes), Request{Slices: []Slice{{State: Unchanged, Endpoints: endpoints}}, AddressType: "IPv4", Hinted: hintedNow})
		hintedNow = r.Hinted
		for k, h := range r.Hints[0] {
			endpoints[k].Hints = h
		}
		if r.Event != nil {
			events = append(events, r.Event.Reason)
		}
		return letters(r)
	}
	joined := append(equalZones(), Node{Ready: true, NanoCPU: 4e9})
	got := []string{step(equalZones()), step(joined), step(equalZones())}
	if diff := cmp.Diff([]string{"aabbcc", "......", "aabbcc"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled", "TopologyAwareHintsEnabled"}, events); diff != "" {
		t.Error(diff)
	}
}

func TestUnchangedSlices(t *testing.T) {
	for _, c := range []struct {
		name   string
		slices []Slice
		hints  string
		write  []bool
	}{
		{"hints that do are kept, though not by zone", []Slice{{State: Unchanged, Endpoints: hinted(in("aabbcc"), "bbaacc")}}, "bbaacc", []bool{false}},
		{"a ready endpoint without hint", []Slice{{State: Unchanged, Endpoints: hinted(in("aabbcc"), "aabbc.")}}, "aabbcc", []bool{true}},
		{"an unready one without", []Slice{{State: Unchanged, Endpoints: hinted(in("aabbccC"), "aabbcc.")}}, "aabbcc.", []bool{false}},
		{"a zone that is no more", []Slice{{State: Unchanged, Endpoints: hinted(in("aabbcc"), "aabbcd")}}, "aabbcc", []bool{true}},
		{"more than a zone may have", []Slice{{State: Unchanged, Endpoints: hinted(in("aabbcc"), "aaaabc")}}, "aabbcc", []bool{true}},
		{"a kept slice counts for the others", []Slice{
			{State: Create, Endpoints: in("aaa")},
			{State: Unchanged, Endpoints: hinted(in("aaa"), "aab")},
		}, "bcc aab", []bool{true, false}},
		{"unready endpoints of written slices keep their old hints", []Slice{{State: Update, Endpoints: hinted(in("abcA"), "...c")}}, "abcc", []bool{true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(RatiosOf(equalZones()), Request{Slices: c.slices, AddressType: "IPv4", Hinted: true})
			if diff := cmp.Diff(c.hints, letters(got)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.write, got.Write); diff != "" {
				t.Error(diff)
			}
			if got.Event != nil {
				t.Errorf("event %+v", got.Event)
			}
		})
	}
}

func TestOverloadOfService(t *testing.T) {
	r := Request{Slices: []Slice{{Endpoints: in("aaaabbbbccc")}}, AddressType: "IPv4", Overload: 0.25}
	if got := Decide(RatiosOf(equalZones()), r); letters(got) != "aaaabbbbccc" {
		t.Errorf("4/4/3 with 25 %%: %s, %+v", letters(got), got.Event)
	}
	r.Overload = math.NaN()
	if got := Decide(RatiosOf(equalZones()), r); got.Hinted {
		t.Error("NaN is no threshold")
	}
}

func TestDistribute(t *testing.T) {
	type hints = []*Hints
	zoneOnly := func(z locality.Zone) *Hints { return &Hints{ForZones: []locality.Zone{z}} }
	for _, c := range []struct {
		name         string
		distribution Distribution
		endpoint     Endpoint
		want         *Hints
		write        bool
	}{
		{"zone", PreferClose, Endpoint{Zone: "a", Node: "n", Ready: true}, zoneOnly("a"), true},
		{"same", PreferSameZone, Endpoint{Zone: "a", Node: "n", Ready: true, Hints: zoneOnly("a")}, zoneOnly("a"), false},
		{"other zone", PreferSameZone, Endpoint{Zone: "a", Ready: true, Hints: zoneOnly("b")}, zoneOnly("a"), true},
		{"node", PreferSameNode, Endpoint{Zone: "a", Node: "n", Ready: true}, &Hints{locality.Zones("a"), []string{"n"}}, true},
		{"node without zone", PreferSameNode, Endpoint{Node: "n", Ready: true}, &Hints{nil, []string{"n"}}, true},
		{"node no more", PreferSameZone, Endpoint{Zone: "a", Node: "n", Ready: true, Hints: &Hints{locality.Zones("a"), []string{"n"}}}, zoneOnly("a"), true},
		{"no zone", PreferClose, Endpoint{Ready: true, Hints: zoneOnly("a")}, nil, true},
		{"unready", PreferClose, Endpoint{Zone: "a", Hints: zoneOnly("b")}, zoneOnly("b"), false},
		{"unset", "", Endpoint{Zone: "a", Ready: true, Hints: zoneOnly("a")}, nil, true},
		{"unknown", "PreferFar", Endpoint{Zone: "a", Ready: true}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Distribute(c.distribution, []Slice{{State: Unchanged, Endpoints: []Endpoint{c.endpoint}}})
			if diff := cmp.Diff(hints{c.want}, got.Hints[0]); diff != "" || got.Write[0] != c.write {
				t.Errorf("write %v\n%s", got.Write[0], diff)
			}
		})
	}
}

// TestThresholdRounds as Kubernetes' constant expression does.
func TestThresholdRounds(t *testing.T) {
	const constant float64 = 0.2
	overload := threshold(0)
	if computed := 1 / (1 + overload); computed != 1/(1+constant) {
		t.Errorf("%v, not %v", computed, 1/(1+constant))
	}
}

// FuzzRatios: whatever nodes say, ratios are none or sum to 1.
func FuzzRatios(f *testing.F) {
	f.Add(int64(1), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(-1), int64(0), int64(5))
	f.Fuzz(func(t *testing.T, a, b, c int64) {
		ratios := RatiosOf([]Node{{"a", true, false, a}, {"b", true, false, b}, {"b", true, false, c}})
		if ratios == nil {
			return
		}
		sum := 0.0
		for _, r := range ratios {
			sum += r
			if !(r >= 0 && r <= 1) {
				t.Fatalf("ratio %v", r)
			}
		}
		if sum < 0.6 || sum > 2.1 {
			t.Fatalf("sum %v", sum) // parts of a milli are rounded up, the sum is too
		}
	})
}

package admin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func zoneOf(name string, online bool) ZoneState {
	return ZoneState{Name: name, Enabled: true, Insight: &meshv1alpha1.ZoneInsightStatus{
		Online: online, Subscriptions: []meshv1alpha1.Subscription{{ID: "1", ConnectTime: metav1.NowMicro()}},
	}}
}

// TestFailures: each row of the board is lit by what it is about, and by nothing else.
func TestFailures(t *testing.T) {
	gateways := func(kind string, connected ...bool) (out []GatewayState) {
		for i, c := range connected {
			out = append(out, GatewayState{Kind: kind, Name: kind + string(rune('1'+i)), Zone: "east", Connected: c})
		}
		return out
	}
	zone := func(change func(*FederationStatus)) *failureFacts {
		f := &FederationStatus{Zone: "east", Global: "global:6443", Connected: true}
		if change != nil {
			change(f)
		}
		return &failureFacts{federation: f, nodes: true, zones: []zoneOfNodes{{name: "a", nodes: 2}, {name: "b", nodes: 1}}}
	}
	global := func(f *FederationStatus) *failureFacts { return &failureFacts{federation: f} }
	lostNode, lostZone := zone(nil), zone(nil)
	lostNode.zones[0].lost = []string{"a-1"}
	lostZone.zones[0].lost = []string{"a-1", "a-2"}
	for name, c := range map[string]struct {
		facts *failureFacts
		want  map[string][]string // rows that are lit, and where
	}{
		"a site that is well": {zone(func(f *FederationStatus) {
			f.Gateways = append(gateways("ingress", true, true), gateways("egress", true)...)
		}), nil},
		"a site without global":   {zone(func(f *FederationStatus) { f.Connected = false }), map[string][]string{"GlobalOffline": {"global:6443"}, "LinkCut": {"global:6443"}}},
		"another instance has it": {zone(func(f *FederationStatus) { f.Connected, f.Elsewhere = false, true }), nil},
		"a node":                  {lostNode, map[string][]string{"NodeLost": {"a-1"}}},
		"a zone of nodes":         {lostZone, map[string][]string{"NodeLost": {"a-1", "a-2"}, "ZoneLost": {"a"}}},
		"one of two ingresses":    {zone(func(f *FederationStatus) { f.Gateways = gateways("ingress", true, false) }), map[string][]string{"GatewayCut": {"ingress east/ingress2"}}},
		"all ingresses":           {zone(func(f *FederationStatus) { f.Gateways = gateways("ingress", false, false) }), map[string][]string{"IngressesDown": {"east"}, "GatewayCut": {"ingress east/ingress1", "ingress east/ingress2"}}},
		"all egresses": {zone(func(f *FederationStatus) {
			f.Gateways = append(gateways("egress", false), gateways("ingress", true)...)
		}), map[string][]string{"EgressesDown": {"east"}, "GatewayCut": {"egress east/egress1"}}},
		"global that is well":        {global(&FederationStatus{Zones: []ZoneState{zoneOf("east", true), {Name: "new", Enabled: true}, {Name: "off"}}}), nil},
		"global, a site is silent":   {global(&FederationStatus{Zones: []ZoneState{zoneOf("east", false), zoneOf("west", true)}}), map[string][]string{"ZoneOffline": {"east"}, "LinkCut": {"east"}}},
		"global, gateways of silent": {global(&FederationStatus{Zones: []ZoneState{zoneOf("east", false)}, Gateways: gateways("ingress", false)}), map[string][]string{"ZoneOffline": {"east"}, "LinkCut": {"east"}}},
	} {
		got, all := map[string][]string{}, failures(c.facts)
		for _, f := range all {
			if f.Lit() {
				got[f.Name] = f.Where
			}
			if f.Why == "" || f.Works == "" || f.Fails == "" || f.Failure == "" {
				t.Errorf("%s: a row without words: %+v", name, f)
			}
		}
		if c.want == nil {
			c.want = map[string][]string{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: lit (-want +got):\n%s", name, diff)
		}
		if len(all) != 10 || all[3].State != FailureUnknown {
			t.Errorf("%s: %d rows, the fourth %s", name, len(all), all[3].State)
		}
	}
}

// TestUnknownFailures: what a control plane does not see is not said to be well.
func TestUnknownFailures(t *testing.T) {
	f := &failureFacts{federation: &FederationStatus{Zone: "east", Connected: true, GatewaysUnknown: "Kubernetes watches them"}}
	for _, row := range failures(f) {
		switch row.Name {
		case "NodeLost", "ZoneLost", "IngressesDown", "EgressesDown", "GatewayCut", "SitesApart":
			if row.State != FailureUnknown || row.Why == "" {
				t.Errorf("%s: %s, %s", row.Name, row.State, row.Why)
			}
		default:
			if row.State != FailureAbsent {
				t.Errorf("%s: %s", row.Name, row.State)
			}
		}
	}
}

// TestAddFederation: what another instance has of a connection is added, and nothing else is replaced.
func TestAddFederation(t *testing.T) {
	s := &Status{Federation: &FederationStatus{Zones: []ZoneState{{Name: "a", Link: &SyncLink{Epoch: "own"}}, {Name: "b"}, {Name: "c"}}}}
	s.addFederation(nil)
	s.addFederation(&FederationStatus{Zones: []ZoneState{{Name: "b", Link: &SyncLink{Epoch: "there"}}, {Name: "a", Link: &SyncLink{Epoch: "old"}}}})
	if z := s.Federation.Zones; z[0].Link.Epoch != "own" || z[1].Link == nil || z[1].Link.Epoch != "there" || z[2].Link != nil {
		t.Errorf("%+v", z)
	}
	s = &Status{Federation: &FederationStatus{Zone: "a", Elsewhere: true}}
	s.addFederation(&FederationStatus{Zone: "a", Elsewhere: true, Behind: 1})
	s.addFederation(&FederationStatus{Zone: "a", Connected: true, Behind: 7, Link: &SyncLink{}})
	s.addFederation(&FederationStatus{Zone: "a", Elsewhere: true, Behind: 2})
	if f := s.Federation; !f.Elsewhere || !f.Connected || f.Behind != 7 || f.Link == nil {
		t.Errorf("%+v", f)
	}
}

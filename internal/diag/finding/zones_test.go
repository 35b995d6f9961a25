package finding

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
)

func TestZoneProblems(t *testing.T) {
	ended := metav1.NewMicroTime(time.Now().Add(-time.Hour))
	gone := []meshv1alpha1.Subscription{{ID: "x", DisconnectTime: &ended}}
	held := []meshv1alpha1.TypeSync{{
		Type: "mesh.proxima.dev/Mesh", Direction: meshv1alpha1.SyncToZone, Held: 3, HeldNames: []string{"/shop", "/web"},
	}}
	refused := []meshv1alpha1.TypeSync{{
		Type: "/Service", Direction: meshv1alpha1.SyncToGlobal, Refused: []meshv1alpha1.SyncRefusal{{Name: "shop/web", Reason: "too long"}},
	}}
	for name, test := range map[string]struct {
		state *admin.FederationStatus
		want  string
	}{
		"alone":            {nil, ""},
		"connected":        {&admin.FederationStatus{Zone: "a", Connected: true}, ""},
		"other instance":   {&admin.FederationStatus{Zone: "a", Elsewhere: true}, ""},
		"not connected":    {&admin.FederationStatus{Zone: "a", Global: "g:1", Problem: "no route"}, "no connection to global (g:1): no route"},
		"held":             {&admin.FederationStatus{Zone: "a", Connected: true, Types: held}, `first /shop, /web: is it meant? then "proxima zone confirm a Mesh"`},
		"a zone offline":   {zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Subscriptions: gone}), "zone b is offline since 60m"},
		"a zone disabled":  {zoneIs(false, &meshv1alpha1.ZoneInsightStatus{Subscriptions: gone}), ""},
		"refused":          {refusedZone, "a zone is refused, and goes on with what it has: too old"},
		"never connected":  {zoneIs(true, nil), ""},
		"refused by us":    {zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Online: true, Types: refused}), "global refuses Service shop/web: too long"},
		"held of one zone": {zoneIs(true, &meshv1alpha1.ZoneInsightStatus{Online: true, Types: held}), "proxima zone confirm b Mesh"},
	} {
		var lines []string
		for _, p := range Zones(test.state, time.Now()) {
			lines = append(lines, Text(p))
		}
		got := strings.Join(lines, "\n")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

var refusedZone = &admin.FederationStatus{Zones: []admin.ZoneState{{Name: "b", Enabled: true, Refused: "too old"}}}

func zoneIs(enabled bool, insight *meshv1alpha1.ZoneInsightStatus) *admin.FederationStatus {
	return &admin.FederationStatus{Zones: []admin.ZoneState{{Name: "b", Enabled: enabled, Insight: insight}}}
}

package diag_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

func endpoint(addr, node, zone string, change func(*proxy.SliceEndpoint)) proxy.SliceEndpoint {
	e := proxy.SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: node, Zone: locality.Zone(zone), Ready: true, Serving: true}
	if change != nil {
		change(&e)
	}
	return e
}

func hinted(zone string) func(*proxy.SliceEndpoint) {
	return func(e *proxy.SliceEndpoint) { e.Hints = proxy.HintsOf(locality.Zones(zone), nil) }
}

func TestExplainService(t *testing.T) {
	down := func(e *proxy.SliceEndpoint) { e.Ready, e.Serving = false, false }
	draining := func(e *proxy.SliceEndpoint) { e.Ready, e.Terminating = false, true }
	for _, tc := range []struct {
		name      string
		local     bool
		endpoints []proxy.SliceEndpoint
		rule      string
		outcome   string
		why       []string
		shares    []float64
	}{
		{"nobody", false, nil, "no endpoint", "refused: no endpoint can serve", nil, nil},
		{
			"all", false, []proxy.SliceEndpoint{endpoint("10.0.0.1", "n1", "a", nil), endpoint("10.0.0.2", "n2", "b", nil)},
			"all ready endpoints", "shared by 2", []string{"used", "used"}, []float64{0.5, 0.5},
		},
		{
			"near", false, []proxy.SliceEndpoint{endpoint("10.0.0.1", "n1", "a", hinted("a")), endpoint("10.0.0.2", "n2", "b", hinted("b"))},
			"zone hints", "shared by 1; if none of them answers, the userspace mode tries 1 more", []string{"used", "hinted to zones [b]"}, []float64{1, 0},
		},
		{
			"some down", false, []proxy.SliceEndpoint{endpoint("10.0.0.1", "n1", "a", down), endpoint("10.0.0.2", "n2", "b", draining), endpoint("10.0.0.3", "n2", "b", nil)},
			"all ready endpoints", "shared by 1", []string{"not ready", "terminating, or disabled: used only when no endpoint is ready", "used"}, []float64{0, 0, 1},
		},
		{
			"last resort", false, []proxy.SliceEndpoint{endpoint("10.0.0.2", "n2", "b", draining)},
			"terminating endpoints, as none is ready", "shared by 1", []string{"used"}, []float64{1},
		},
		{
			"suspect", false, []proxy.SliceEndpoint{endpoint("10.0.0.1", "dead", "b", nil), endpoint("10.0.0.2", "n2", "b", nil)},
			"all ready endpoints", "shared by 1; if none of them answers, the userspace mode tries 1 more",
			[]string{"its node is suspect: used last", "used"}, []float64{0, 1},
		},
		{
			"local policy", true, []proxy.SliceEndpoint{endpoint("10.0.0.2", "n2", "b", nil)},
			"internalTrafficPolicy Local: endpoints on this node alone",
			"dropped: there are endpoints, but none on this node, and the policy is Local", []string{"on another node"}, []float64{0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := &proxy.Service{
				Name: proxy.ServiceName{Namespace: "default", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")},
				Ports: []proxy.Port{{Port: 80, Protocol: proxy.TCP}}, InternalLocal: tc.local,
			}
			slice := &proxy.Slice{Service: svc.Name, Ports: []proxy.SlicePort{{Port: 8080, Protocol: proxy.TCP}}, Endpoints: tc.endpoints}
			got := diag.ExplainService(svc, []*proxy.Slice{slice}, choose.Node{Name: "n1", Zone: "a", Suspects: map[string]bool{"dead": true}}, nil, nil).Ports[0].Families
			if len(got) != 1 {
				t.Fatalf("families %v, want IPv4 alone", got)
			}
			var why []string
			var shares []float64
			for _, e := range got[0].Endpoints {
				why, shares = append(why, e.Why), append(shares, e.Share)
			}
			if diff := cmp.Diff([]any{tc.rule, tc.outcome, tc.why, tc.shares}, []any{got[0].Rule, got[0].Outcome, why, shares}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

package diag

import (
	"net/netip"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// TestWeigh: an explanation says which part of a share is the endpoint's weight, and which
// its warm-up.
func TestWeigh(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	port := proxy.Port{Name: "http", Port: 80, Protocol: proxy.TCP}
	svc := &proxy.Service{
		Name: proxy.ServiceName{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []proxy.Port{port}, WarmUp: 30 * time.Second,
	}
	slice := &proxy.Slice{Service: svc.Name, Ports: []proxy.SlicePort{{Name: "http", Port: 8080, Protocol: proxy.TCP}}}
	own := map[netip.AddrPort]uint32{}
	for i, weight := range []uint32{100, 5, 100} {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		own[netip.AddrPortFrom(addr, 8080)] = weight
		slice.Endpoints = append(slice.Endpoints, proxy.SliceEndpoint{Addr: addr, Weight: weight, Ready: i != 2, Serving: true})
		slice.SetReadySince(i, now.Add(-time.Duration(100-90*i)*time.Second).Unix(), 3)
	}
	from := []*proxy.Slice{slice}
	warmed, _ := choose.Warm(svc, from, now)
	e := ExplainService(svc, warmed, choose.Node{Name: "n"}, nil, nil)
	e.Weigh(svc, from, own, now)
	got := e.Ports[0].Families[0].Endpoints
	want := []string{
		"used: weight 100 (100 is the default)",
		"used: weight 5 (100 is the default); warming up, at 40 % of its weight",
		"serving, but not ready, as a workload whose weight is 0",
	}
	for i := range want {
		if got[i].Why != want[i] {
			t.Errorf("endpoint %d: %q, want %q", i, got[i].Why, want[i])
		}
	}
	if share := got[1].Share; share < .019 || share > .020 || got[1].Weight != 5 || got[1].WarmUp != .4 { // 2 of 102
		t.Errorf("share %f, weight %d, warm-up %f", share, got[1].Weight, got[1].WarmUp)
	}
}

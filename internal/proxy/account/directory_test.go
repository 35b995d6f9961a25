package account

import (
	"net/netip"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func target(at string, zone locality.Zone) proxy.Target {
	return proxy.Target{Addr: netip.MustParseAddrPort(at), Weight: 1, Zone: zone}
}

func TestDirectory(t *testing.T) {
	here := netip.MustParseAddr("192.0.2.1")
	var d *Directory
	d = NewDirectory(func(a netip.Addr) bool {
		if !d.mu.TryLock() {
			t.Error("updates wait while the machine's addresses are read")
		} else {
			d.mu.Unlock()
		}
		return a == here
	})
	state := func(local bool, targets ...proxy.Target) *proxy.PortState {
		return &proxy.PortState{
			Name: web, Port: proxy.Port{Protocol: proxy.TCP, Port: 80, NodePort: 30080},
			Service: &proxy.Service{
				Name: web.ServiceName, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, ExternalLocal: local,
			},
			IPv4: proxy.Choice{Cluster: targets, Fallback: []proxy.Target{target("10.0.0.9:80", "zone-z")}},
		}
	}
	a, b := target("10.0.0.1:80", "zone-a"), target("10.0.0.2:80", "zone-b")
	d.Update([]proxy.Change{{Name: web, State: state(true, a, b)}})
	find := func(front, endpoint, client string) string {
		at, ok := d.Find(conntrack.Frontend{Protocol: proxy.TCP, Addr: netip.MustParseAddrPort(front)},
			netip.MustParseAddrPort(endpoint), netip.AddrPortFrom(netip.MustParseAddr(client), 999))
		switch {
		case !ok:
			return "nothing"
		case at.Kept:
			return string(at.Zone) + " kept"
		}
		return string(at.Zone)
	}
	check := func(front, endpoint, client, want string) {
		t.Helper()
		if got := find(front, endpoint, client); got != want {
			t.Errorf("%s to %s at %s: %q, want %q", client, front, endpoint, got, want)
		}
	}
	const outside, inside = "198.51.100.7", "192.0.2.1"
	check("10.96.0.1:80", "10.0.0.2:80", outside, "zone-b")
	check("10.96.0.1:80", "10.0.0.9:80", outside, "zone-z") // a fallback
	check("10.96.0.1:81", "10.0.0.2:80", outside, "nothing")
	check("203.0.113.1:80", "10.0.0.1:80", outside, "zone-a kept")
	check("203.0.113.1:80", "10.0.0.1:80", inside, "zone-a") // local clients use all endpoints
	check("192.0.2.1:30080", "10.0.0.1:80", outside, "zone-a kept")
	check("192.0.2.1:30080", "10.7.7.7:80", outside, "nothing") // another program's port
	check("10.96.0.1:80", "10.7.7.7:80", outside, "")           // nobody knows where that is
	if !d.Has(web) || !d.Serves(web) {
		t.Error("it has no such port")
	}
	d.Update([]proxy.Change{{Name: web, State: state(false, b)}})
	check("203.0.113.1:80", "10.0.0.2:80", outside, "zone-b")
	check("192.0.2.1:30080", "10.0.0.1:80", outside, "zone-a") // departed a moment ago
	d.Age()
	check("10.96.0.1:80", "10.0.0.1:80", outside, "zone-a")
	d.Age()
	check("10.96.0.1:80", "10.0.0.1:80", outside, "")
	d.Update([]proxy.Change{{Name: web}})
	check("10.96.0.1:80", "10.0.0.2:80", outside, "nothing")
	if d.Has(web) || d.Serves(web) {
		t.Error("the port is still there")
	}
}

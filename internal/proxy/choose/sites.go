package choose

import (
	"math"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// WithElsewhere adds other sites to a choice that was made among this site's endpoints,
// and returns it. tunnel are the addresses of the node's own tunnel, at most one per
// family; it stands for all other sites. e may be nil. A family without an address of the
// tunnel stays as it is.
//
// Endpoints of the site that are ready come first, suspect ones included; the tunnel is
// their fallback. Those that are terminating serve only if no other site does.
func WithElsewhere(s *proxy.PortState, e *proxy.Elsewhere, tunnel []netip.AddrPort) *proxy.PortState {
	if e == nil || s.Port.Protocol != proxy.TCP || e.Instances[s.Port.Name] == 0 {
		return s
	}
	for _, addr := range tunnel {
		c := &s.IPv6
		if addr.Addr().Unmap().Is4() {
			c = &s.IPv4
		}
		elsewhere(c, proxy.Target{Addr: addr, Weight: e.Instances[s.Port.Name], Local: true}, e.Spread)
	}
	return s
}

func elsewhere(c *proxy.Choice, tunnel proxy.Target, spread bool) {
	switch {
	case c.Why == proxy.Unused:
	case c.Why == proxy.NoEndpoint, c.Why == proxy.TerminatingFallback:
		c.Fallback = append(slices.Clone(c.Cluster), c.Fallback...)
		tunnel.Weight = 1
		c.Cluster, c.NoCluster, c.Why = []proxy.Target{tunnel}, proxy.Accept, proxy.OtherSites
	case spread:
		tunnel.Weight = share(c.Cluster, tunnel.Weight)
		at, _ := slices.BinarySearchFunc(c.Cluster, tunnel.Addr, func(t proxy.Target, a netip.AddrPort) int { return t.Addr.Compare(a) })
		c.Cluster, c.Why = slices.Insert(slices.Clone(c.Cluster), at, tunnel), proxy.AllSites
	default:
		tunnel.Weight = 1
		c.Fallback = append(slices.Clone(c.Fallback), tunnel)
	}
}

// share is the weight of so many instances next to endpoints of this site: each instance
// counts as much as one of them on average.
func share(own []proxy.Target, instances uint32) uint32 {
	sum := uint64(0)
	for _, t := range own {
		sum += uint64(t.Weight)
	}
	if len(own) == 0 {
		return instances
	}
	return uint32(min(max(sum*uint64(instances)/uint64(len(own)), 1), math.MaxUint32))
}

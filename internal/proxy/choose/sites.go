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
// their fallback, unless a plan gives it a part of the connections. Those that are terminating serve only if no other site does.
func WithElsewhere(s *proxy.PortState, e *proxy.Elsewhere, tunnel []netip.AddrPort) *proxy.PortState {
	if e == nil || s.Port.Protocol != proxy.TCP || e.Instances[s.Port.Name] == 0 {
		return s
	}
	for _, addr := range tunnel {
		c := &s.IPv6
		if addr.Addr().Unmap().Is4() {
			c = &s.IPv4
		}
		elsewhere(c, proxy.Target{Addr: addr, Weight: e.Instances[s.Port.Name], Local: true, Zone: proxy.OtherSitesZone}, e.Spread, e.Splits[s.Port.Name])
	}
	return s
}

func elsewhere(c *proxy.Choice, tunnel proxy.Target, spread bool, plan proxy.Split) {
	switch {
	case c.Why == proxy.Unused:
	case c.Why == proxy.NoEndpoint, c.Why == proxy.TerminatingFallback:
		c.Fallback = append(slices.Clone(c.Cluster), c.Fallback...)
		tunnel.Weight = 1
		c.Cluster, c.NoCluster, c.Why = []proxy.Target{tunnel}, proxy.Accept, proxy.OtherSites
	case spread:
		tunnel.Weight = share(c.Cluster, tunnel.Weight)
		c.Cluster, c.Why = with(c.Cluster, tunnel), proxy.AllSites
	case plan.Away > 0 && plan.Here == 0:
		c.Fallback = append(slices.Clone(c.Cluster), c.Fallback...)
		tunnel.Weight = 1
		c.Cluster, c.Why = []proxy.Target{tunnel}, proxy.PlannedSites
	case plan.Away > 0:
		own := scaled(c.Cluster)
		tunnel.Weight = uint32(min(max(math.Round(float64(sum(own))*float64(plan.Away)/float64(plan.Here)), 1), math.MaxUint32))
		c.Cluster, c.Why = with(own, tunnel), proxy.PlannedSites
	default:
		tunnel.Weight = 1
		c.Fallback = append(slices.Clone(c.Fallback), tunnel)
	}
}

// with adds the tunnel to endpoints, in their order.
func with(own []proxy.Target, tunnel proxy.Target) []proxy.Target {
	at, _ := slices.BinarySearchFunc(own, tunnel.Addr, func(t proxy.Target, a netip.AddrPort) int { return t.Addr.Compare(a) })
	return slices.Insert(slices.Clone(own), at, tunnel)
}

// minSum of the weights of this site's endpoints beside that of the tunnel: the part of the
// tunnel is then off by less than 1/1000.
const minSum = 1024

// scaled multiplies the weights of endpoints so that they are finer.
func scaled(own []proxy.Target) []proxy.Target {
	by := uint32(1)
	if s := sum(own); s > 0 && s < minSum {
		by = uint32((minSum + s - 1) / s)
	}
	out := slices.Clone(own)
	for i := range out {
		out[i].Weight *= by
	}
	return out
}

func sum(own []proxy.Target) uint64 {
	s := uint64(0)
	for _, t := range own {
		s += uint64(t.Weight)
	}
	return s
}

// share is the weight of so many instances next to endpoints of this site: each instance
// counts as much as one of them on average.
func share(own []proxy.Target, instances uint32) uint32 {
	if len(own) == 0 {
		return instances
	}
	return uint32(min(max(sum(own)*uint64(instances)/uint64(len(own)), 1), math.MaxUint32))
}

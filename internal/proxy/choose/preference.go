package choose

import (
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Preference is what a policy says of localities, to clients of one zone. The zero value: as plans
// and hints say.
type Preference struct {
	// Anywhere: zones are not looked at. Strict: there is the client's zone alone.
	Anywhere, Strict bool
	Zone             locality.Zone
	// Failover says where connections go that the zone cannot take; nil: anywhere.
	Failover *proxy.Failover
}

// PreferenceOf clients in a zone of a site; an empty site is named by no rule. Nil: no policy says
// anything.
func PreferenceOf(l *proxy.Locality, zone locality.Zone, site locality.Site) Preference {
	if l == nil {
		return Preference{Zone: zone}
	}
	return Preference{
		Zone: zone, Anywhere: l.Mode == proxy.LocalityOff,
		Strict:   l.Mode == proxy.LocalityStrict && zone != "", // who is in no zone is not cut off from all
		Failover: l.For(zone, site),
	}
}

// Takes reports whether endpoints in a zone of a site may have what the client's own zone cannot
// take. Rules name zones, or sites.
func (p *Preference) Takes(zone locality.Zone, site locality.Site) bool {
	if p.Failover == nil {
		return true
	}
	named := slices.Contains(p.Failover.Zones, zone) || site != "" && slices.Contains(p.Failover.Zones, locality.Zone(site))
	switch p.Failover.To {
	case proxy.FailoverNone:
		return false
	case proxy.FailoverOnly:
		return named
	case proxy.FailoverAnyExcept:
		return !named
	}
	return true
}

// Order the endpoints of a site: those that are used, and those that are used where these do not
// suffice. first and next are two lists of a choice, which are not changed. Under Anywhere the choice
// has to be one that was made so (Node.Anywhere).
func (p *Preference) Order(why proxy.Rule, first, next []proxy.Target, site locality.Site) (used, rest []proxy.Target) {
	own := func(t proxy.Target) bool { return t.Zone == p.Zone }
	planned := why == proxy.ZoneHints || why == proxy.NodeHints
	switch {
	case p.Anywhere:
		return alike(first), next
	case p.Strict:
		if used = only(first, own); len(used) == 0 {
			used = only(next, own)
		}
		return used, nil
	case p.Failover == nil:
		return first, next
	case !planned && p.Zone != "": // there is no plan that says what the client's own zone takes
		next = slices.Concat(only(first, func(t proxy.Target) bool { return !own(t) }), next)
		first = only(first, own)
	}
	return first, only(next, func(t proxy.Target) bool { return own(t) || p.Takes(t.Zone, site) })
}

// Leaves reports whether connections to a port may leave the site by the node's tunnel, which does not
// tell sites apart: a rule that names zones or sites keeps them here, unless a plan has decided.
func (p *Preference) Leaves(e *proxy.Elsewhere, port string) bool {
	switch {
	case e == nil || p.Strict:
		return false
	case p.Failover == nil || p.Failover.To == proxy.FailoverAny:
		return true
	}
	return e.Spread || e.Splits[port].Away > 0
}

// prefer narrows a choice of a node. A mode has one list of endpoints: where it has none left, those
// that are used next take its place.
func (p *Preference) prefer(c *proxy.Choice, site locality.Site) {
	if c.Why == proxy.Unused || c.Why == proxy.NoEndpoint {
		return
	}
	was := c.Cluster
	used, rest := p.Order(c.Why, c.Cluster, c.Fallback, site)
	if len(used) == 0 {
		trusted := func(t proxy.Target) bool { return has(was, t.Addr) }
		if used = only(rest, trusted); len(used) > 0 {
			rest = only(rest, func(t proxy.Target) bool { return !trusted(t) })
		} else {
			used, rest = rest, nil
		}
	}
	used = slices.SortedFunc(slices.Values(used), func(a, b proxy.Target) int { return a.Addr.Compare(b.Addr) })
	if slices.Equal(used, was) {
		c.Fallback = rest
		return
	}
	c.Cluster, c.Fallback, c.Why = used, rest, proxy.Preferred
	if len(used) == 0 {
		c.NoCluster, c.Why = proxy.Reject, proxy.NoEndpoint
	}
}

// hold adds the endpoints of a list that are not used any more to those at which flows stay.
func hold(c *proxy.Choice, was []proxy.Target) {
	for _, t := range was {
		c.Held = append(c.Held, t.Addr)
	}
	slices.SortFunc(c.Held, netip.AddrPort.Compare)
	c.Held = slices.DeleteFunc(slices.Compact(c.Held), func(a netip.AddrPort) bool { return has(c.Cluster, a) || has(c.Local, a) })
}

// alike are targets of which none is preferred.
func alike(all []proxy.Target) []proxy.Target {
	out := slices.Clone(all)
	for i := range out {
		out[i].Weight = 1
	}
	return out
}

func only(all []proxy.Target, is func(proxy.Target) bool) []proxy.Target {
	var out []proxy.Target
	for _, t := range all {
		if is(t) {
			out = append(out, t)
		}
	}
	return out
}

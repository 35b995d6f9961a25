package choose

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Origin is what the endpoints of a service port are chosen from.
type Origin struct {
	Service *proxy.Service
	// Port of the Service; its name is that of the ports of slices.
	Port   proxy.Port
	Slices []*proxy.Slice
	// Elsewhere is what other sites offer; nil: nothing.
	Elsewhere *proxy.Elsewhere
	// Routing of the port; nil: no policy says anything.
	Routing *proxy.Routing
}

// Backend is one to which a route leads.
type Backend struct {
	Origin
	Weight uint32
}

// Port chooses for a service port, and for the backends of its route, if it has one. tunnel is as in
// WithElsewhere. next is when a weight changes by time alone, as in Warm.
//
// Of a route only those backends share the connections that have endpoints. Those of other sites
// serve the Service itself alone, as the node's tunnel goes by the address that a client asked for.
func Port(to Origin, backends []Backend, tunnel []netip.AddrPort, node Node, now time.Time) (state *proxy.PortState, next time.Time) {
	if to.Routing == nil {
		warmed, next := Warm(to.Service, to.Slices, now)
		return WithElsewhere(Slices(to.Service, to.Port, warmed, node), to.Elsewhere, tunnel), next
	}
	if len(backends) == 0 {
		state, next = to.choose(to.Service, to.Port, tunnel, node, now)
	} else {
		state, next = divide(to, backends, tunnel, node, now)
	}
	state.SourceHash, state.ConnectTimeout, state.TCPAttempts = to.Routing.SourceHash, to.Routing.ConnectTimeout, to.Routing.TCPAttempts
	return state, next
}

// choose for the policies of a Service and port, which may be another one that leads here.
func (o *Origin) choose(svc *proxy.Service, port proxy.Port, tunnel []netip.AddrPort, node Node, now time.Time) (*proxy.PortState, time.Time) {
	warmed, next := Warm(o.Service, o.Slices, now)
	var policy *proxy.Locality
	var site locality.Site
	if o.Routing != nil && o.Routing.Locality != nil {
		policy, site = o.Routing.Locality, o.Routing.Locality.Site
	}
	p := PreferenceOf(policy, node.Zone, site)
	node.Anywhere = p.Anywhere
	s := Slices(svc, port, warmed, node)
	if policy != nil {
		for _, c := range []*proxy.Choice{&s.IPv4, &s.IPv6} {
			was := c.Cluster
			p.prefer(c, site)
			if port.Protocol == proxy.UDP {
				hold(c, was)
			}
		}
		if !p.Leaves(o.Elsewhere, port.Name) {
			return s, next
		}
	}
	return WithElsewhere(s, o.Elsewhere, tunnel), next
}

// divide the connections to a service port among backends.
func divide(to Origin, backends []Backend, tunnel []netip.AddrPort, node Node, now time.Time) (*proxy.PortState, time.Time) {
	state := &proxy.PortState{
		Name: proxy.PortName{ServiceName: to.Service.Name, Port: to.Port.Name}, Service: to.Service, Port: to.Port, Divided: true,
	}
	var next time.Time
	var parts []part
	for i := range backends {
		b := &backends[i]
		as := *to.Service // whose traffic policies decide which lists there are
		as.InternalLocal = to.Service.InternalLocal || b.Service.InternalLocal
		port := proxy.Port{Name: b.Port.Name, Protocol: b.Port.Protocol, NodePort: to.Port.NodePort}
		way := tunnel
		if b.Service.Name != cmp.Or(to.Service.Of, to.Service.Name) || b.Port.Name != to.Port.Name {
			way = nil
		}
		s, at := b.choose(&as, port, way, node, now)
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
		if b.Service.InternalLocal && !to.Service.InternalLocal {
			for _, c := range []*proxy.Choice{&s.IPv4, &s.IPv6} {
				c.Cluster, c.Fallback = c.Local, nil
			}
		}
		state.LocalReady += s.LocalReady
		parts = append(parts, part{b.Weight, s})
	}
	use := lists(to.Service, to.Port)
	state.IPv4 = divided(parts, use, node.Name, func(s *proxy.PortState) *proxy.Choice { return &s.IPv4 })
	state.IPv6 = divided(parts, use, node.Name, func(s *proxy.PortState) *proxy.Choice { return &s.IPv6 })
	return state, next
}

// part is a backend's weight, and its endpoints.
type part struct {
	weight uint32
	state  *proxy.PortState
}

// portion of connections that a list of endpoints gets.
type portion struct {
	weight  uint32
	targets []proxy.Target
}

func divided(parts []part, use used, node string, of func(*proxy.PortState) *proxy.Choice) proxy.Choice {
	var out proxy.Choice
	var cluster, local []portion
	missing := proxy.Reject
	for _, p := range parts {
		c := of(p.state)
		cluster, local = append(cluster, portion{p.weight, c.Cluster}), append(local, portion{p.weight, c.Local})
		out.Fallback = append(out.Fallback, c.Fallback...)
		if len(c.Cluster) > 0 || c.NoLocal == proxy.Drop {
			missing = proxy.Drop
		}
	}
	if use.cluster {
		out.Cluster, out.Why = apportion(cluster, node), proxy.Divided
		if len(out.Cluster) == 0 {
			out.NoCluster, out.Why = proxy.Reject, proxy.NoEndpoint
		}
	}
	if use.local {
		if out.Local = apportion(local, node); len(out.Local) == 0 {
			out.NoLocal = missing
		}
	}
	var seen []netip.AddrPort
	out.Fallback = slices.DeleteFunc(out.Fallback, func(t proxy.Target) bool {
		twice := slices.Contains(seen, t.Addr) || has(out.Cluster, t.Addr)
		seen = append(seen, t.Addr)
		return twice
	})
	if len(out.Fallback) == 0 {
		out.Fallback = nil
	}
	return out
}

// finest is the part of all connections that every endpoint of a share gets at least, as one in so
// many: modes that have a table of slots give each at least one, so that many endpoints with tiny
// parts would have more than their share.
const finest = 512

// apportion gives endpoints weights so that the sums of the shares are in proportion to their
// weights, and the endpoints of a share to theirs. A share with more endpoints than it has parts
// (finest) uses as many of them as it has, others on other nodes. An endpoint of several shares
// has the sum. Sorted by address.
func apportion(shares []portion, node string) []proxy.Target {
	shares = slices.DeleteFunc(slices.Clone(shares), func(s portion) bool { return s.weight == 0 || len(s.targets) == 0 })
	total := uint64(0)
	for _, s := range shares {
		total += uint64(s.weight)
	}
	for i := range shares {
		most := max(1, int(uint64(shares[i].weight)*finest/total))
		shares[i].targets = thin(shares[i].targets, most, node)
	}
	weights := exact(shares)
	var out []proxy.Target
	for i, s := range shares {
		for k, t := range s.targets {
			t.Weight = weights[i][k]
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b proxy.Target) int { return a.Addr.Compare(b.Addr) })
	n := 0
	for _, t := range out {
		if n > 0 && out[n-1].Addr == t.Addr {
			out[n-1].Weight = uint32(min(uint64(out[n-1].Weight)+uint64(t.Weight), math.MaxUint32)) //nolint:gosec // bounded
			continue
		}
		out[n] = t
		n++
	}
	return slices.Clip(out[:n])
}

// thin keeps so many targets, which ones differs from node to node.
func thin(all []proxy.Target, most int, node string) []proxy.Target {
	if len(all) <= most {
		return all
	}
	rank := func(t proxy.Target) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(node))
		addr := t.Addr.Addr().As16()
		_, _ = h.Write(addr[:])
		_, _ = h.Write(binary.BigEndian.AppendUint16(nil, t.Addr.Port()))
		v := h.Sum64() // whose high bits are weak
		v ^= v >> 32
		v *= 0x9E3779B97F4A7C15
		return v ^ v>>29
	}
	out := slices.SortedFunc(slices.Values(all), func(a, b proxy.Target) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Addr.Compare(b.Addr))
	})
	return out[:most]
}

// exact weights of the endpoints of shares: as small as possible, and to within one in 2³⁰ where
// exact ones do not fit.
func exact(shares []portion) [][]uint32 {
	out := make([][]uint32, len(shares))
	sums := make([]uint64, len(shares))
	common, fits := uint64(1), true
	for i, s := range shares {
		out[i] = make([]uint32, len(s.targets))
		for _, t := range s.targets {
			sums[i] += uint64(max(t.Weight, 1))
		}
		if step := sums[i] / gcd(common, sums[i]); common <= math.MaxUint32/step {
			common *= step
		} else {
			fits = false
		}
	}
	wide := make([][]uint64, len(shares))
	least, most := uint64(0), uint64(0)
	for i, s := range shares {
		wide[i] = make([]uint64, len(s.targets))
		for k, t := range s.targets {
			if !fits {
				break
			}
			scale := common / sums[i] * uint64(s.weight)
			w := uint64(max(t.Weight, 1))
			if scale > math.MaxUint64/w {
				fits = false
				break
			}
			wide[i][k] = scale * w
			least, most = gcd(least, wide[i][k]), max(most, wide[i][k])
		}
	}
	if fits && least > 0 && most/least <= math.MaxUint32 {
		for i := range wide {
			for k := range wide[i] {
				out[i][k] = uint32(wide[i][k] / least) //nolint:gosec // bounded above
			}
		}
		return out
	}
	total := 0.0
	for _, s := range shares {
		total += float64(s.weight)
	}
	for i, s := range shares {
		for k, t := range s.targets {
			part := float64(s.weight) / total * float64(max(t.Weight, 1)) / float64(sums[i])
			out[i][k] = uint32(max(1, math.Round(part*(1<<30))))
		}
	}
	return out
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

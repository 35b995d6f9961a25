package proxy

import (
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"
)

// noClient is what an unreadable source range becomes: it restricts, and admits
// no client, as the unspecified address is never a source address (RFC 4291,
// section 2.5.2).
var noClient = netip.PrefixFrom(netip.IPv6Unspecified(), 128)

// ParseSourceRanges reads a Service's loadBalancerSourceRanges as the API accepts
// them: surrounded by spaces, with bits beyond the prefix, with leading zeros and
// as IPv4-mapped IPv6. The result has each range once. An entry that is no range
// admits no client; it never makes the list shorter, as an empty list admits all.
func ParseSourceRanges(in []string) []netip.Prefix {
	var out []netip.Prefix
	seen := map[netip.Prefix]bool{}
	for _, s := range in {
		p := parseSourceRange(strings.TrimSpace(s))
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

func parseSourceRange(s string) netip.Prefix {
	_, n, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return noClient
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits != addr.BitLen() {
		return noClient
	}
	// Kubernetes takes a range of IPv4-mapped addresses for IPv4.
	const mapped = 128 - 32
	if addr.Is4In6() && ones >= mapped {
		addr, ones = addr.Unmap(), ones-mapped
	}
	return netip.PrefixFrom(addr, ones).Masked()
}

// SourcesOf returns the clients of one family, IPv4 or IPv6, that may use the
// Service's load balancer addresses of that family: all of them, or those in
// ranges. Without any range all may. With ranges in the other family only, none
// may: all is false and ranges is empty. The caller owns the slice.
func (s *Service) SourcesOf(is4 bool) (ranges []netip.Prefix, all bool) {
	if len(s.SourceRanges) == 0 {
		return nil, true
	}
	for _, p := range s.SourceRanges {
		if p.Addr().Is4() != is4 {
			continue
		}
		if p.Bits() == 0 {
			return nil, true
		}
		if p = p.Masked(); !slices.Contains(ranges, p) {
			ranges = append(ranges, p)
		}
	}
	return ranges, false
}

// Admits reports whether a client may use the Service's load balancer addresses
// of the client's family. See SourcesOf.
func (s *Service) Admits(client netip.Addr) bool {
	if len(s.SourceRanges) == 0 {
		return true
	}
	client = client.Unmap().WithZone("")
	for _, p := range s.SourceRanges {
		if p.Contains(client) {
			return true
		}
	}
	return false
}

// Package netns makes network namespaces and what connects them: a small
// network of machines that are not there, on one that is.
//
// Enter at [New] for a namespace that lives as long as this process holds it,
// however the process ends, or at [Create] for one with a name that outlives
// it, as "ip netns" shows it. [Connect], [NS.AddBridge], [NS.AddRoute] and
// [NS.SetSysctl] make it a network; [NS.Do], [NS.DialContext], [NS.Listen] and
// [NS.Start] act in it.
//
// A namespace that is made here has its loopback up, no duplicate address
// detection, and no way out: nothing but what is connected explicitly. The
// package never touches the namespace that the process runs in, except with a
// handle from [Current]. It needs root, and Linux: elsewhere [Available] says so
// and everything else fails.
package netns

import (
	"net/netip"
	"os"
)

// HasIPv6 reports whether this machine's kernel speaks IPv6 at all.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// End is one end of a pair of links made by Connect.
type End struct {
	NS *NS
	// Link is the name of the interface, at most 15 bytes (IFNAMSIZ, linux/if.h).
	Link string
	// Bridge, if set, is a bridge of NS that the link becomes a port of.
	Bridge string
	// Addrs of the link.
	Addrs []netip.Prefix
}

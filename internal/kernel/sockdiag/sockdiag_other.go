//go:build !linux

package sockdiag

import (
	"errors"
	"net/netip"
)

// Connections fails: only Linux has sock_diag.
func Connections(map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	return nil, errors.ErrUnsupported
}

// CgroupOf fails: only Linux has sock_diag.
func CgroupOf(netip.AddrPort, netip.AddrPort) (uint64, error) { return 0, errors.ErrUnsupported }

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

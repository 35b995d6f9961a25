//go:build !linux

package conntrack

import (
	"errors"
	"net/netip"
)

// Table is not available: only Linux has one.
type Table struct{}

// Open fails.
func Open(int) (*Table, error) { return nil, errors.New("connection tracking needs Linux") }

// Close does nothing.
func (*Table) Close() error { return nil }

// Prune does nothing.
func (*Table) Prune(Keep) (int, error) { return 0, nil }

// Connections fails.
func (*Table) Connections(map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	return nil, errors.ErrUnsupported
}

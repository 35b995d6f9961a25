//go:build !linux

package conntrack

import (
	"context"
	"errors"
	"net/netip"
)

var errNotLinux = errors.New("connection tracking needs Linux")

// Table is not available: only Linux has one.
type Table struct{}

// Open fails.
func Open(int) (*Table, error) { return nil, errNotLinux }

// Close does nothing.
func (*Table) Close() error { return nil }

// Prune does nothing.
func (*Table) Prune(Keep) (int, error) { return 0, nil }

// EndUnanswered does nothing.
func (*Table) EndUnanswered(map[netip.AddrPort]bool) (int, error) { return 0, nil }

// Connections fails.
func (*Table) Connections(map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	return nil, errNotLinux
}

// Reader is not available, either.
type Reader struct{}

// NewReader returns a Reader whose methods fail.
func NewReader(int) *Reader { return &Reader{} }

// Dump fails.
func (*Reader) Dump(context.Context, int, func(*Entry)) (Dump, error) { return Dump{}, errNotLinux }

// Accounting fails.
func (*Reader) Accounting() (bool, error) { return false, errNotLinux }

// Counting fails.
func (*Reader) Counting() (bool, error) { return false, errNotLinux }

// Tracked fails.
func (*Reader) Tracked() (int, error) { return 0, errNotLinux }

// Life fails.
func (*Reader) Life() (uint64, error) { return 0, errNotLinux }

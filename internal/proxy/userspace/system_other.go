//go:build !linux

package userspace

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
)

// canDrop: without socket filters the verdict Drop becomes a refusal.
const canDrop = false

func control(*Mode, frontendKey, bool) func(string, string, syscall.RawConn) error { return nil }

// openFiles is a guess on the safe side.
func openFiles() int { return 1024 }

// Cleanup has nothing to remove: there are no local routes on this system.
func Cleanup() error { return nil }

type routes struct{}

func (routes) add(ranges []netip.Prefix) error {
	if len(ranges) > 0 {
		return fmt.Errorf("routing %s to this host is not available on %s", ranges[0], runtime.GOOS)
	}
	return nil
}

func (r routes) change(_, want []netip.Prefix) error { return r.add(want) }

func (routes) remove() error { return nil }

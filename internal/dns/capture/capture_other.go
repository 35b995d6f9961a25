//go:build !linux

package capture

import (
	"fmt"
	"runtime"
	"syscall"
)

// Capture is not available: only Linux has it.
type Capture struct{}

// Install fails.
func Install(int, Rules) (*Capture, error) {
	return nil, fmt.Errorf("capture of DNS needs Linux, this is %s", runtime.GOOS)
}

// Close does nothing.
func (*Capture) Close() error { return nil }

// EndFlows does nothing.
func EndFlows(int) error { return nil }

// Control does nothing.
func Control(_, _ string, _ syscall.RawConn) error { return nil }

//go:build !linux

package ebpf

import (
	"errors"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

var errLinux = errors.New("ebpf mode works on Linux only: use --mode userspace")

// Mode does not exist on this system.
type Mode struct{ proxy.Mode }

// New fails on this system.
func New(Options, proxy.Mode) (*Mode, error) { return nil, errLinux }

// Check fails on this system.
func Check() error { return errLinux }

// Cleanup has nothing to do on this system.
func Cleanup(Options) error { return nil }

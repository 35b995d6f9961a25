//go:build !linux

package ipvs

import (
	"context"
	"errors"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

var errLinux = errors.New("ipvs mode works on Linux only: use --mode userspace")

// routes are not here.
type routes any

// Mode does not exist on this system.
type Mode struct{ *nftables.Mode }

// Check fails on this system.
func Check(string) error { return errLinux }

// New fails on this system.
func New(Options) (*Mode, error) { return nil, errLinux }

// Cleanup has nothing to remove on this system.
func Cleanup() error { return nil }

// Leave has nothing to remove on this system.
func Leave() (left bool, err error) { return false, nil }

// Name implements proxy.Mode.
func (*Mode) Name() string { return Name }

// SetRanges fails on this system.
func (*Mode) SetRanges([]netip.Prefix) error { return errLinux }

// Close implements proxy.Mode.
func (*Mode) Close(context.Context) error { return nil }

// Services are none on this system.
func (*Mode) Services() (objects, missing, foreign []string, err error) { return nil, nil, nil, nil }

// Status says nothing on this system.
func (*Mode) Status() Status { return Status{} }

//go:build !linux

package ebpf

import (
	"context"
	"errors"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

var errLinux = errors.New("ebpf mode works on Linux only: use --mode userspace")

// Mode does not exist on this system.
type Mode struct{ proxy.Mode }

// Status of no layer.
func (*Mode) Status() Status { return Status{Passing: errLinux.Error()} }

// WayOf a connection: it passes.
func (*Mode) WayOf(netip.AddrPort) Way { return Way{Why: Why(errLinux.Error())} }

// Dump of no layer is empty.
func (*Mode) Dump() []string { return nil }

// ExemptNetworks does nothing.
func (*Mode) ExemptNetworks(map[uint64]struct{}) {}

// ExemptCgroups does nothing.
func (*Mode) ExemptCgroups(map[proxy.Cgroup]struct{}) {}

// OnHost reports that there are no network namespaces.
func OnHost() (bool, error) { return true, nil }

// New fails on this system.
func New(Options, proxy.Mode) (*Mode, error) { return nil, errLinux }

// Check fails on this system.
func Check(Options) error { return errLinux }

// Measure fails on this system.
func Measure(context.Context, string, proxy.Mode) (Estimate, error) { return Estimate{}, errLinux }

// Cleanup has nothing to do on this system.
func Cleanup(Options) error { return nil }

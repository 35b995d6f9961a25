//go:build !linux

package nftables

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// errLinux is all that this mode can say elsewhere.
var errLinux = errors.New("nftables mode works on Linux only: use --mode userspace")

// Mode does not exist on this system.
type Mode struct{}

// kernel is nf_tables, which is not here.
type kernel interface{}

// system is what a mode works on, which is not here.
type system struct{}

func openSystem(int) (*system, error) { return nil, errLinux }

// New fails on this system.
func New(Options) (*Mode, error) { return nil, errLinux }

// Check fails on this system.
func Check(Options) error { return errLinux }

// Cleanup has nothing to remove on this system.
func Cleanup(context.Context, Options) error { return nil }

// KeepFlows has nothing to keep on this system.
func KeepFlows(Options) error { return nil }

// ForgetFlows has nothing to remove on this system.
func ForgetFlows(Options) error { return nil }

// Name implements proxy.Mode.
func (*Mode) Name() string { return "nftables" }

// Apply implements proxy.Mode.
func (*Mode) Apply(context.Context, []proxy.Change) error { return errLinux }

// SetRanges fails on this system.
func (*Mode) SetRanges([]netip.Prefix) error { return errLinux }

// AddressesChanged does nothing on this system.
func (*Mode) AddressesChanged() {}

// Dump fails on this system.
func (*Mode) Dump(context.Context) (*Dump, error) { return nil, errLinux }

// Path knows nothing on this system.
func (*Mode) Path(netip.Addr, proxy.Protocol, uint16, netip.Addr, string) *Path {
	return &Path{Outcome: "pass"}
}

// Close implements proxy.Mode.
func (*Mode) Close(context.Context) error { return nil }

// Counts implements proxy.Counter.
func (*Mode) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	return func(func(proxy.PortName, proxy.Counts) bool) {}
}

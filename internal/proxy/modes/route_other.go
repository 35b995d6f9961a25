//go:build !linux

package modes

import "net/netip"

// InterfaceTo is the interface by which this machine reaches an address. Modes that tell workloads
// by it are on Linux alone.
func InterfaceTo(netip.Addr) string { return "" }

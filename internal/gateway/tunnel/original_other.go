//go:build !linux

package tunnel

import (
	"errors"
	"net"
	"net/netip"
)

func originalDestination(net.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.New("original destination: only Linux has it")
}

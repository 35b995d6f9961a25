// Package proxyproto writes headers of the PROXY protocol, version 2, by which an
// endpoint learns who its client is.
//
// Enter at Append. The package never reads headers: none are accepted.
package proxyproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Types of our own fields, from the range for custom ones (PROXY protocol
// specification 2.2: PP2_TYPE_MIN_CUSTOM).
const (
	// TypeNode has the name of the client's node.
	TypeNode = 0xE0
	// TypeIdentity has the client's SPIFFE ID.
	TypeIdentity = 0xE1
)

// Constants of the specification.
const (
	signature     = "\r\n\r\n\x00\r\nQUIT\n"
	commandProxy  = 0x21 // version 2, PROXY
	familyIPv4    = 0x11 // AF_INET, STREAM
	familyIPv6    = 0x21 // AF_INET6, STREAM
	maxValue      = 4 << 10
	fieldHeader   = 3
	addressesIPv4 = 12
	addressesIPv6 = 36
)

// Header is what an endpoint learns.
type Header struct {
	// Source is the client, Destination what it connected to; if that is not known, the
	// unspecified address of the source's family and port 0.
	Source, Destination netip.AddrPort
	// Node and Identity are left out if empty.
	Node, Identity string
}

// Append appends the header. If the two addresses are of different families, IPv4 ones
// are written as IPv4-mapped IPv6 addresses.
func Append(b []byte, h Header) ([]byte, error) {
	if !h.Source.IsValid() {
		return b, errors.New("PROXY header: the source address is missing")
	}
	if len(h.Node) > maxValue || len(h.Identity) > maxValue {
		return b, fmt.Errorf("PROXY header: node of %d and identity of %d bytes, at most %d are allowed", len(h.Node), len(h.Identity), maxValue)
	}
	source, destination := h.Source.Addr().Unmap(), h.Destination.Addr().Unmap()
	if !destination.IsValid() {
		destination = netip.IPv6Unspecified()
		if source.Is4() {
			destination = netip.IPv4Unspecified()
		}
	}
	length := field(h.Node) + field(h.Identity)
	b = append(b, signature...)
	if source.Is4() && destination.Is4() {
		b = append(b, commandProxy, familyIPv4)
		b = binary.BigEndian.AppendUint16(b, uint16(length+addressesIPv4))
		b = append(append(b, source.AsSlice()...), destination.AsSlice()...)
	} else {
		b = append(b, commandProxy, familyIPv6)
		b = binary.BigEndian.AppendUint16(b, uint16(length+addressesIPv6))
		s, d := source.As16(), destination.As16()
		b = append(append(b, s[:]...), d[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, h.Source.Port())
	b = binary.BigEndian.AppendUint16(b, h.Destination.Port())
	b = appendField(b, TypeNode, h.Node)
	return appendField(b, TypeIdentity, h.Identity), nil
}

func field(value string) int {
	if value == "" {
		return 0
	}
	return fieldHeader + len(value)
}

func appendField(b []byte, t byte, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, t)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// Package proxyproto writes headers of the PROXY protocol, version 2, by which an
// endpoint learns who its client is, and reads those of a proxy on the same machine.
//
// Enter at Append and Read. Headers from the network are never read: anyone could write them.
package proxyproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	commandLocal  = 0x20 // version 2, LOCAL: the proxy's own connection
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

// maxRead of what follows the first 16 bytes of a header.
const maxRead = 1 << 10

// Read a header of a connection over TCP, and nothing after it. Fields other than the addresses are skipped.
// The result is zero for a connection of the proxy itself (LOCAL).
func Read(r io.Reader) (Header, error) {
	var fixed [len(signature) + 4]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return Header{}, fmt.Errorf("PROXY header: %w", err)
	}
	if string(fixed[:len(signature)]) != signature {
		return Header{}, errors.New("PROXY header: there is none of version 2")
	}
	command, family := fixed[len(signature)], fixed[len(signature)+1]
	length := int(binary.BigEndian.Uint16(fixed[len(signature)+2:]))
	if length > maxRead {
		return Header{}, fmt.Errorf("PROXY header: %d bytes, at most %d are read", length, maxRead)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return Header{}, fmt.Errorf("PROXY header: %w", err)
	}
	if command == commandLocal {
		return Header{}, nil
	}
	size := 0
	switch {
	case command == commandProxy && family == familyIPv4:
		size = 4
	case command == commandProxy && family == familyIPv6:
		size = 16
	default:
		return Header{}, fmt.Errorf("PROXY header: command %#x of family %#x is not known", command, family)
	}
	if len(body) < 2*size+4 {
		return Header{}, fmt.Errorf("PROXY header: %d bytes are too few for its addresses", length)
	}
	at := func(address, port int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(body[address : address+size])
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(body[port:]))
	}
	return Header{Source: at(0, 2*size), Destination: at(size, 2*size+2)}, nil
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

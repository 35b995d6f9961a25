package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"
)

// Stream is the body of an Open frame: what the peer learns of a stream besides the
// service, which is the SNI of the connection.
type Stream struct {
	// Client is the address of the program that connected.
	Client netip.AddrPort
	// Node on which that program runs; at most 253 bytes.
	Node string
	// Identity is the SPIFFE ID of the program. It counts only if it is the one of the
	// peer's certificate, or if that peer may speak for others.
	Identity string
	// Destination is the address that the program connected to; the zero value is not
	// sent.
	Destination netip.AddrPort
}

// Tags of the fields. A receiver skips those that it lacks.
const (
	tagClient      = 1
	tagNode        = 2
	tagIdentity    = 3
	tagDestination = 4
)

const (
	maxNode     = 253
	maxIdentity = 2048
)

// AppendOpen appends an Open frame. It fails for a Stream without a valid client
// address or with a field that is too long.
func AppendOpen(b []byte, s Stream) ([]byte, error) {
	if !s.Client.IsValid() {
		return b, errors.New("encode OPEN: the client's address is missing")
	}
	if len(s.Node) > maxNode || len(s.Identity) > maxIdentity {
		return b, fmt.Errorf("encode OPEN: node has %d bytes (at most %d), identity %d (at most %d)",
			len(s.Node), maxNode, len(s.Identity), maxIdentity)
	}
	begin := len(b)
	b = appendHeader(b, Open, 0)
	b = appendAddress(b, tagClient, s.Client)
	b = appendString(b, tagNode, s.Node)
	b = appendString(b, tagIdentity, s.Identity)
	if s.Destination.IsValid() {
		b = appendAddress(b, tagDestination, s.Destination)
	}
	PutHeader(b[begin:], Open, len(b)-begin-HeaderSize)
	return b, nil
}

func appendField(b []byte, tag byte, length int) []byte {
	return append(b, tag, byte(length>>8), byte(length))
}

func appendString(b []byte, tag byte, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendField(b, tag, len(s)), s...)
}

// appendAddress appends 4 or 16 bytes of address and 2 of port. Scopes of addresses
// mean nothing to another machine, and are left out.
func appendAddress(b []byte, tag byte, a netip.AddrPort) []byte {
	addr := a.Addr().Unmap().WithZone("").AsSlice()
	b = appendField(b, tag, len(addr)+2)
	b = append(b, addr...)
	return binary.BigEndian.AppendUint16(b, a.Port())
}

// ParseOpen decodes the body of an Open frame. The result holds no reference to
// body. Unknown fields are skipped; a field that comes twice is an error, as is a
// missing client address.
func ParseOpen(body []byte) (Stream, error) {
	var s Stream
	if len(body) > MaxOpen {
		return s, malformed("OPEN with a body of %d bytes", len(body))
	}
	seen := [256]bool{}
	for len(body) > 0 {
		if len(body) < 3 {
			return Stream{}, malformed("OPEN ends within a field")
		}
		tag, length := body[0], int(binary.BigEndian.Uint16(body[1:]))
		if body = body[3:]; len(body) < length {
			return Stream{}, malformed("OPEN ends within field %d", tag)
		}
		if seen[tag] {
			return Stream{}, malformed("OPEN has field %d twice", tag)
		}
		seen[tag] = true
		if err := s.set(tag, body[:length]); err != nil {
			return Stream{}, err
		}
		body = body[length:]
	}
	if !s.Client.IsValid() {
		return Stream{}, malformed("OPEN without a client address")
	}
	return s, nil
}

func (s *Stream) set(tag byte, value []byte) (err error) {
	switch tag {
	case tagClient:
		s.Client, err = parseAddress(value)
	case tagDestination:
		s.Destination, err = parseAddress(value)
	case tagNode:
		s.Node, err = parseString(tag, value, maxNode)
	case tagIdentity:
		s.Identity, err = parseString(tag, value, maxIdentity)
	}
	return err
}

func parseAddress(value []byte) (netip.AddrPort, error) {
	if len(value) != 6 && len(value) != 18 {
		return netip.AddrPort{}, malformed("OPEN with an address of %d bytes", len(value))
	}
	addr, _ := netip.AddrFromSlice(value[:len(value)-2])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(value[len(value)-2:])), nil
}

// parseString accepts what may stand in a log line and in a header of another
// protocol: UTF-8 without control characters.
func parseString(tag byte, value []byte, most int) (string, error) {
	if len(value) > most || !utf8.Valid(value) {
		return "", malformed("OPEN with field %d of %d bytes that is too long or no UTF-8", tag, len(value))
	}
	for _, b := range value {
		if b < ' ' || b == 0x7f {
			return "", malformed("OPEN with a control character in field %d", tag)
		}
	}
	return string(value), nil
}

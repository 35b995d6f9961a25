package ipvs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Commands and attributes of the generic netlink family (linux/ip_vs.h).
const (
	familyName    = "IPVS"
	familyVersion = 1

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8
	cmdSetConfig  = 12

	attrService       = 1
	attrDest          = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	svcFamily    = 1
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9

	destAddr     = 1
	destPort     = 2
	destForward  = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7
	destInactive = 8
	destFamily   = 11

	// forwardMask and forwardNAT are IP_VS_CONN_F_FWD_MASK and _MASQ.
	forwardMask = 7
	forwardNAT  = 0
)

// typeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off an attribute's type.
const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

func addressFamily(f proxy.Family) uint16 {
	if f == proxy.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func u16(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// flagFallback has scheduler mh pass over destinations of weight 0, which keep their place in its table; without it their clients
// are refused (IP_VS_SVC_F_SCHED_MH_FALLBACK).
const flagFallback = 0x8

// encodeService makes the attribute of a service; without a scheduler, of its key.
func encodeService(s Service) *nl.RtAttr {
	a := nl.NewRtAttr(attrService|unix.NLA_F_NESTED, nil)
	a.AddRtAttr(svcFamily, u16(addressFamily(s.Family)))
	a.AddRtAttr(svcMark, u32(s.Mark))
	if s.Scheduler == "" {
		return a
	}
	netmask := uint32(1<<32 - 1)
	if s.Family == proxy.IPv6 {
		netmask = 128 // a prefix length
	}
	a.AddRtAttr(svcScheduler, nl.ZeroTerminated(s.Scheduler))
	flags := uint32(0)
	if s.Scheduler == "mh" {
		flags = flagFallback
	}
	a.AddRtAttr(svcFlags, append(u32(flags), u32(1<<32-1)...)) // flags, mask
	a.AddRtAttr(svcTimeout, u32(0))
	a.AddRtAttr(svcNetmask, u32(netmask))
	return a
}

// encodeDestination makes the attribute of a destination; only of its address if that is enough.
func encodeDestination(d Destination, full bool) *nl.RtAttr {
	a := nl.NewRtAttr(attrDest|unix.NLA_F_NESTED, nil)
	addr := make([]byte, 16) // union nf_inet_addr
	copy(addr, d.Addr.Addr().AsSlice())
	a.AddRtAttr(destAddr, addr)
	a.AddRtAttr(destPort, binary.BigEndian.AppendUint16(nil, d.Addr.Port()))
	if full {
		a.AddRtAttr(destForward, u32(forwardNAT))
		a.AddRtAttr(destWeight, u32(d.Weight))
		a.AddRtAttr(destUpper, u32(0))
		a.AddRtAttr(destLower, u32(0))
	}
	return a
}

var errShort = errors.New("a message of IPVS is too short")

// nested returns the attributes within the one of a type in a message.
func nested(msg []byte, want uint16) (map[uint16][]byte, error) {
	if len(msg) < nl.SizeofGenlmsg {
		return nil, errShort
	}
	outer, err := attributes(msg[nl.SizeofGenlmsg:])
	if err != nil {
		return nil, err
	}
	value, ok := outer[want]
	if !ok {
		return nil, fmt.Errorf("a message of IPVS lacks attribute %d", want)
	}
	return attributes(value)
}

func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, fmt.Errorf("attributes of IPVS: %w", err)
	}
	out := make(map[uint16][]byte, len(list))
	for _, a := range list {
		out[a.Attr.Type&typeMask] = a.Value
	}
	return out, nil
}

func number(a map[uint16][]byte, key uint16) (uint32, bool) {
	switch b := a[key]; len(b) {
	case 2:
		return uint32(binary.NativeEndian.Uint16(b)), true
	case 4:
		return binary.NativeEndian.Uint32(b), true
	}
	return 0, false
}

// decodeService reads an answer to cmdGetService. ok is false for a service without a mark.
func decodeService(msg []byte) (s Service, ok bool, err error) {
	a, err := nested(msg, attrService)
	if err != nil {
		return s, false, err
	}
	family, _ := number(a, svcFamily)
	switch family {
	case unix.AF_INET:
		s.Family = proxy.IPv4
	case unix.AF_INET6:
		s.Family = proxy.IPv6
	default:
		return s, false, fmt.Errorf("a service of IPVS has address family %d", family)
	}
	s.Mark, ok = number(a, svcMark)
	name, _, _ := bytes.Cut(a[svcScheduler], []byte{0})
	s.Scheduler = string(name)
	return s, ok && s.Mark != 0, nil
}

// decodeDestination reads an answer to cmdGetDest for a service of a family. Destinations that are not reached by NAT have
// the weight 2^32-1, which none of ours has, so that they differ from every other.
func decodeDestination(msg []byte, family proxy.Family) (d Destination, err error) {
	a, err := nested(msg, attrDest)
	if err != nil {
		return d, err
	}
	if f, ok := number(a, destFamily); ok && f == unix.AF_INET6 || !ok && family == proxy.IPv6 {
		family = proxy.IPv6
	} else {
		family = proxy.IPv4
	}
	b, port := a[destAddr], a[destPort]
	if len(b) < 4 || family == proxy.IPv6 && len(b) < 16 || len(port) != 2 {
		return d, errShort
	}
	addr := netip.AddrFrom4([4]byte(b))
	if family == proxy.IPv6 {
		addr = netip.AddrFrom16([16]byte(b))
	}
	d.Addr = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
	d.Weight, _ = number(a, destWeight)
	d.Active, _ = number(a, destActive)
	d.Inactive, _ = number(a, destInactive)
	if forward, _ := number(a, destForward); forward&forwardMask != forwardNAT {
		d.Weight = foreignWeight
	}
	return d, nil
}

//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Names of maps and sets. None is a keyword of nft, else its own output could
// not be loaded.
const (
	setVIP        = "vip"         // address . protocol . port → service:class of the entry
	setVIPCluster = "vip-cluster" // the same → class of the cluster list, where the entry is no list
	setVIPLocal   = "vip-local"   // the same → class of the local list
	setEP         = "ep"          // service . protocol . slot → endpoint
	setEPID       = "ep-id"       // service . slot → service:id (affinity)
	setIDCluster  = "id-cluster"  // service:id . protocol → endpoint, if in the cluster list (affinity)
	setIDLocal    = "id-local"    // the same for the local list
	setAffinity   = "aff"         // service . client → service:id; written by packets
	setDemand     = "demand"      // service, counting
	setClusterIPs = "clusterips"  // addresses that no other port may be unanswered of
	setHairpin    = "hairpin"     // local endpoint . itself
	setEntry      = "entry"       // class → chain
	setLists      = "lists"       // class → chain, lists only: else chains would form a loop
	prefixSrc     = "src"         // + prefix length: service . network (source ranges)
)

// Chains that are always there.
const (
	chainPre        = "nat-prerouting"
	chainOut        = "nat-output"
	chainPost       = "nat-postrouting"
	chainDispatch   = "dispatch"
	chainCIDR       = "service-cidr"
	chainRefuse     = "refuse"
	chainNoEndpoint = "refuse-service"
	chainExtLocal   = "external-local"
	chainRanges     = "ranges"
	chainRangesLoc  = "ranges-local"
	chainRangesPass = "ranges-pass"
)

// Classes that are always there. A class is the lower half of a number whose
// upper half is the service's; ids have bit 0x8000, so a class never is one.
const (
	classRefuse uint16 = 1 + iota
	classDrop
	classExtLocal
	classRanges
	classRangesLocal
	firstPick uint16 = 16
	idBit     uint16 = 0x8000
)

// localSlots is where slots of the local list begin.
const localSlots = 1 << 16

// The hooks' priorities, as nft's dstnat and srcnat
// (NF_IP_PRI_NAT_DST and _SRC, linux/netfilter_ipv4.h).
const (
	priorityDNAT = -100
	prioritySNAT = 100
)

// rtnLocal is RTN_LOCAL of linux/rtnetlink.h.
const rtnLocal = 2

// ipsDstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const ipsDstNAT = 1 << 5

// ICMP codes: ICMP_PORT_UNREACH and ICMPV6_PORT_UNREACH.
const (
	portUnreachable4 = 3
	portUnreachable6 = 4
)

// dims are what differs between IPv4 and IPv6.
type dims struct {
	proto        uint8 // unix.NFPROTO_…
	addrType     uint32
	addrLen      uint32
	words        nfnl.Reg // registers of an address
	saddr, daddr uint32   // offsets in the header
	unreachable  uint8
}

var (
	ipv4 = dims{unix.NFPROTO_IPV4, nfnl.TypeIPAddr, 4, 1, 12, 16, portUnreachable4}
	ipv6 = dims{unix.NFPROTO_IPV6, nfnl.TypeIP6Addr, 16, 4, 8, 24, portUnreachable6}
)

// sets are the definitions of all sets but those of source ranges.
func (d dims) sets(affinityClients uint32) []nfnl.Set {
	addr := d.addrLen
	vipKey := nfnl.TypeOf(d.addrType, nfnl.TypeProto, nfnl.TypePort)
	vip := func(name string) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: vipKey, KeyLen: addr + 8, ValueType: nfnl.TypeClass, ValueLen: 4,
			UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.HostOrder, ""),
		}
	}
	priority := nfnl.TypeofMeta(unix.NFT_META_PRIORITY)
	l4proto := nfnl.TypeofMeta(unix.NFT_META_L4PROTO)
	slot := nfnl.TypeofRandom(1 << 16)
	endpoint := nfnl.TypeofConcat(nfnl.TypeofDaddr(d.proto), nfnl.TypeofPort())
	ep := func(name string, keyLen, keyType uint32, key nfnl.Typeof) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: keyType, KeyLen: keyLen,
			ValueType: nfnl.TypeOf(d.addrType, nfnl.TypePort), ValueLen: addr + 4,
			UserData: nfnl.SetUserData(nfnl.NoOrder, key, nfnl.NoOrder, endpoint),
		}
	}
	id := func(name string) nfnl.Set {
		return ep(name, 8, nfnl.TypeOf(nfnl.TypeClass, nfnl.TypeProto), nfnl.TypeofConcat(priority, l4proto))
	}
	verdicts := func(name string) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: nfnl.TypeClass, KeyLen: 4, ValueType: nfnl.VerdictType,
			UserData: nfnl.SetUserData(nfnl.HostOrder, "", nfnl.NoOrder, ""),
		}
	}
	return []nfnl.Set{
		ep(setEP, 12, nfnl.TypeOf(nfnl.TypeClass, nfnl.TypeProto, nfnl.TypeInteger), nfnl.TypeofConcat(priority, l4proto, slot)),
		id(setIDCluster),
		id(setIDLocal),
		{
			Name: setEPID, KeyType: nfnl.TypeOf(nfnl.TypeClass, nfnl.TypeInteger), KeyLen: 8,
			ValueType: nfnl.TypeClass, ValueLen: 4,
			UserData: nfnl.SetUserData(nfnl.NoOrder, nfnl.TypeofConcat(priority, slot), nfnl.HostOrder, priority),
		},
		{
			Name: setAffinity, KeyType: nfnl.TypeOf(nfnl.TypeClass, d.addrType), KeyLen: 4 + addr,
			ValueType: nfnl.TypeClass, ValueLen: 4,
			Flags: unix.NFT_SET_EVAL, Timeout: true, Size: affinityClients,
			UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.HostOrder, ""),
		},
		{
			Name: setDemand, KeyType: nfnl.TypeClass, KeyLen: 4, Counter: true,
			UserData: nfnl.SetUserData(nfnl.HostOrder, "", nfnl.NoOrder, ""),
		},
		{
			Name: setClusterIPs, KeyType: d.addrType, KeyLen: addr,
			UserData: nfnl.SetUserData(nfnl.NetworkOrder, "", nfnl.NoOrder, ""),
		},
		{
			Name: setHairpin, KeyType: nfnl.TypeOf(d.addrType, d.addrType), KeyLen: 2 * addr,
			UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.NoOrder, ""),
		},
		verdicts(setLists),
		verdicts(setEntry),
		vip(setVIPCluster),
		vip(setVIPLocal),
		vip(setVIP),
	}
}

// source is the set of source ranges of one prefix length.
func (d dims) source(bits int) nfnl.Set {
	return nfnl.Set{
		Name: prefixSrc + strconv.Itoa(bits), KeyType: nfnl.TypeOf(nfnl.TypeClass, d.addrType), KeyLen: 4 + d.addrLen,
		UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.NoOrder, ""),
	}
}

func sourceBits(set string) (int, bool) {
	rest, ok := strings.CutPrefix(set, prefixSrc)
	if !ok {
		return 0, false
	}
	bits, err := strconv.Atoi(rest)
	return bits, err == nil
}

// Keys and values are written as registers hold them: 32-bit words, addresses
// and ports in network order, our own numbers in the host's.

func mix(service, class uint16) string { return nfnl.Host(uint32(service)<<16 | uint32(class)) }

// unmix takes a service's number and class apart again.
func unmix(s string) (service, class uint16) {
	v := hostNumber(s)
	return uint16(v >> 16), uint16(v)
}

func hostNumber(s string) uint32 {
	if len(s) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32([]byte(s[:4]))
}

func protoKey(p proxy.Protocol) string { return string([]byte{protoNumber(p), 0, 0, 0}) }

// protoNumber is the protocol's number (IANA, linux/in.h).
func protoNumber(p proxy.Protocol) uint8 {
	switch p {
	case proxy.UDP:
		return unix.IPPROTO_UDP
	case proxy.SCTP:
		return unix.IPPROTO_SCTP
	}
	return unix.IPPROTO_TCP
}

func portKey(p uint16) string { return string([]byte{byte(p >> 8), byte(p), 0, 0}) }

func addrKey(a netip.Addr) string { return string(a.AsSlice()) }

func vipKey(a netip.Addr, p proxy.Protocol, port uint16) string {
	return addrKey(a) + protoKey(p) + portKey(port)
}

func endpointValue(ap netip.AddrPort) string { return addrKey(ap.Addr()) + portKey(ap.Port()) }

// readEndpoint reads what endpointValue wrote.
func readEndpoint(s string) netip.AddrPort {
	if len(s) < 8 {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice([]byte(s[:len(s)-4]))
	return netip.AddrPortFrom(addr, uint16(s[len(s)-4])<<8|uint16(s[len(s)-3]))
}

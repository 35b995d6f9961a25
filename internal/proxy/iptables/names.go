package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// prefix of everything that is ours: chains and sets. Cleanup goes by it.
const prefix = "PROXIMA-"

// Chains that exist once per table. Chain names have at most 28 characters
// (XT_EXTENSION_MAXNAMELEN in linux/netfilter/x_tables.h, less the final zero).
const (
	chainServices  = prefix + "SERVICES"   // nat: from PREROUTING and OUTPUT
	chainPost      = prefix + "POST"       // nat: from POSTROUTING
	chainMasq      = prefix + "MASQ"       // nat: masquerades, for good
	chainMarkMasq  = prefix + "MARK"       // nat: marks clients from elsewhere for masquerading
	chainReject    = prefix + "REJECT"     // nat: marks a packet to be refused
	chainDrop      = prefix + "DROP"       // nat: marks a packet to be dropped
	chainRefuse    = prefix + "REFUSE"     // filter: refuses and drops what is marked so
	chainForward   = prefix + "FORWARD"    // filter: lets service traffic be forwarded
	chainProbe     = prefix + "CHECK"      // exists only while Check tries the kernel
	chainDispatch  = prefix + "T-"         // nat: nodes of the trie over virtual addresses
	chainNodePorts = prefix + "N-"         // nat: nodes of the trie over node ports
	chainHairpin   = prefix + "H-"         // nat: nodes of the trie over local endpoints
	chainPicks     = prefix + "P-"         // nat: of a leaf of T, picks from the short lists of its ports
	chainExternal  = prefix + "EXT-"       // nat: a port's way in from outside
	chainFirewall  = prefix + "FW-"        // nat: a port's source ranges
	chainCluster   = prefix + listCluster  // nat: picks from a port's cluster list
	chainLocal     = prefix + listLocal    // nat: picks from a port's local list
	chainEndpoint  = prefix + listEndpoint // nat: an endpoint that remembers clients

	listCluster  = "SVC-"
	listLocal    = "LOC-"
	listEndpoint = "SEP-"
)

// tag is a name's hash in the alphabet of chain names: 80 bits, so that chance
// collisions stay out of reach.
func tag(rendered ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(rendered, "\x00")))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// portTag is what all chains of a service port end in.
func portTag(n proxy.PortName) string { return tag(n.Namespace, n.Name, n.Port) }

// endpointTag names an endpoint of a service port with affinity.
func endpointTag(n proxy.PortName, e netip.AddrPort) string {
	return tag(n.Namespace, n.Name, n.Port, e.String())
}

// maxSetTimeoutSeconds is IPSET_MAX_TIMEOUT, the most that the kernel's clock
// can hold (linux/netfilter/ipset/ip_set_timeout.h).
const maxSetTimeoutSeconds = (1<<32 - 1) / 1000 / 2

// setName is the set of an endpoint's clients. Set names have at most 31
// characters (IPSET_MAXNAMELEN in linux/netfilter/ipset/ip_set.h).
func setName(f family, endpoint string) string { return prefix + f.digit() + "-" + endpoint }

// family of addresses; the two have separate tables.
type family int

const (
	v4 family = iota
	v6
)

var families = [...]family{v4, v6}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return v4
	}
	return v6
}

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }
func (f family) digit() string  { return [...]string{"4", "6"}[f] }

// digits in an address.
func (f family) digits() int { return [...]int{4, 16}[f] * digitsPerByte }

func (f family) loopback() string { return [...]string{"127.0.0.0/8", "::1/128"}[f] }

// unreachable is what REJECT answers to anything but TCP.
func (f family) unreachable() string {
	return [...]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
}

// printed is an address as iptables-save prints it. It is that of inet_ntop(3),
// which writes an IPv6 address whose first 96 bits, and no more, are zero with an
// IPv4 address at its end (RFC 4291, 2.5.5.1); masks are such addresses, too.
func printed(a netip.Addr) string {
	if b := a.AsSlice(); len(b) == 16 && [12]byte(b) == [12]byte{} && (b[12] != 0 || b[13] != 0) {
		return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	return a.String()
}

// host is an address as a prefix, in the notation of iptables-save.
func host(a netip.Addr) string { return prefixText(netip.PrefixFrom(a, a.BitLen())) }

func prefixText(p netip.Prefix) string { return printed(p.Addr()) + "/" + strconv.Itoa(p.Bits()) }

// addrPort is where DNAT leads, as iptables-save prints it.
func addrPort(e netip.AddrPort) string {
	a := e.Addr().Unmap()
	if a.Is4() {
		return netip.AddrPortFrom(a, e.Port()).String()
	}
	return "[" + printed(a) + "]:" + strconv.Itoa(int(e.Port()))
}

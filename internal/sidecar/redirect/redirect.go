// Package redirect leads the TCP connections of a workload through its proxy: one table of
// nftables, whose rules stay while proxy and supervisor are down, so that nothing passes them by.
//
// Enter at Install and Remove. Connections to the machine itself, and those of the proxy, are
// never led to it. Connections whose address others have translated cannot be led to it: where a port
// is strict they are refused (Refuse). UDP is left alone, but for questions of DNS where Rules say so.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// TableName of the table, in the family inet.
const TableName = "proxima-sidecar"

// Ports of the proxy that connections are led to, and that of the supervisor that questions of DNS are
// led to, on the loopback address.
const (
	OutboundPort = 15001
	InboundPort  = 15006
	DNSPort      = 15053
)

// Connections to BeaconPort of 127.0.0.1, where nobody listens, are led to HealthPort by the rules of
// a network namespace: by that a supervisor without privileges knows that they stand.
const (
	BeaconPort = 15022
	HealthPort = 15021
)

// ProxyUser is the user ID of the proxy in a network namespace, by which its own connections are
// told from those of the workload.
const ProxyUser = 5678

// ProxyPriority (SO_PRIORITY) is that of the proxy's connections to what may have a proxy. One of them to the
// workload itself, as a client of its own Service, is led to the proxy again, as those from outside are: the
// application does not expect TLS. The proxy's connections to the application have another one. It is
// TC_PRIO_INTERACTIVE_BULK (linux/pkt_sched.h), which needs no privilege, and which queues treat as 0.
const ProxyPriority = 4

// Mark (bit of the packet mark, SO_MARK) of the supervisor's own connections. That of questions
// to DNS is 0x2000, and kube-proxy has 0x4000 and 0x8000.
const Mark = 0x1000

// Rules are whose connections are led to the proxy, and which are not.
type Rules struct {
	// Owner is the node ID of the workload: the table is one workload's.
	Owner string
	// Cgroup (its number, and its level below the root) of the workload; number 0: everything in
	// the network namespace but the ProxyUser.
	Cgroup      uint64
	CgroupLevel int
	// Addresses of the workload: connections from outside to other addresses stay as they are.
	// None: all addresses of the machine are its own.
	Addresses []netip.Addr
	// Inbound ports that the workload has declared.
	Inbound []uint16
	// ExcludeOutbound and ExcludeInbound are left alone: by the address or the port that is
	// connected to, and by the address that connects or the port.
	ExcludeOutbound, ExcludeInbound Exclusion
	// DNS: what the workload sends to port 53, by UDP and TCP and wherever to, is led to DNSPort.
	DNS bool
}

// Exclusion of addresses and ports.
type Exclusion struct {
	Prefixes []netip.Prefix
	Ports    []uint16
}

// ErrTaken: another workload's connections are led to a proxy here.
var ErrTaken = errors.New("another workload of this network namespace has its connections led to a proxy")

// ErrUnsupported: this machine's kernel, or operating system, cannot.
var ErrUnsupported = errors.New("this kernel cannot lead connections to a proxy (nf_tables, nft_nat, nft_redir, nft_ct, nft_reject_inet, nft_fib_inet, and nft_socket with cgroup v2)")

// ParseExclusion reads addresses, prefixes and ports, joined by commas: "10.0.0.0/8,192.0.2.1,25".
func ParseExclusion(text string) (Exclusion, error) {
	var out Exclusion
	for _, item := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		if port, err := strconv.ParseUint(item, 10, 16); err == nil && port > 0 {
			out.Ports = append(out.Ports, uint16(port))
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			addr, addrErr := netip.ParseAddr(item)
			if addrErr != nil || addr.Zone() != "" {
				return out, fmt.Errorf("%q: want an address, a prefix as in 10.0.0.0/8, or a port", item)
			}
			prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
		out.Prefixes = append(out.Prefixes, prefix.Masked())
	}
	return out, nil
}

// ParsePorts reads ports, joined by commas.
func ParsePorts(text string) ([]uint16, error) {
	e, err := ParseExclusion(text)
	if err != nil || len(e.Prefixes) > 0 {
		return nil, fmt.Errorf("%q: want ports, joined by commas", text)
	}
	return e.Ports, nil
}

// Package hns is what the kernelspace mode needs of the Host Networking Service (HNS) of Windows.
//
// It owns its structs, the errors that a caller branches on, and the interface [Service]. Enter at
// [Open], which on systems other than Windows fails with [ErrUnsupported]; package hnstest has a
// fake in memory. It decides nothing and keeps no state: what is in HNS is the caller's matter.
//
// Names, numbers and flags are those of the Host Compute Network API, version 2
// (https://learn.microsoft.com/windows-server/networking/technologies/hcn/hcn-top, package hcn of
// github.com/Microsoft/hnslib).
package hns

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// Errors that calls of a Service wrap.
var (
	// ErrUnsupported: this system has no HNS, or one without version 2 of the API.
	ErrUnsupported = errors.New("this system has no Host Networking Service with version 2 of its API (Windows Server 2019 or later)")
	// ErrUnavailable: the service does not run (RPC_S_UNKNOWN_IF 0x6b5, RPC_S_SERVER_UNAVAILABLE 0x6ba).
	ErrUnavailable = errors.New("the Host Networking Service does not run")
	// ErrNetworkNotFound: there is no network of that name or id.
	ErrNetworkNotFound = errors.New("HNS network not found")
	// ErrNotFound: there is no endpoint or load balancer of that id or name.
	ErrNotFound = errors.New("not found in HNS")
	// ErrExists: something has the front or the address already (ERROR_ALREADY_EXISTS 0xb7,
	// HCN_E_PORT_ALREADY_EXISTS).
	ErrExists = errors.New("exists in HNS already")
	// ErrNotImplemented: this version of HNS lacks the call (E_NOTIMPL).
	ErrNotImplemented = errors.New("not implemented by this version of HNS")
)

// Service is HNS. Calls block until HNS answers; they may come from several goroutines.
// Identifiers are GUIDs, compared by [SameID].
type Service interface {
	// Features of this version of HNS. ErrUnsupported: it has no version 2 of the API.
	Features() (Features, error)
	// NetworkByName fails with ErrNetworkNotFound.
	NetworkByName(name string) (*Network, error)
	// EndpointsOf lists the endpoints of a network, local and remote ones.
	EndpointsOf(networkID string) ([]Endpoint, error)
	// EndpointByName fails with ErrNotFound.
	EndpointByName(name string) (*Endpoint, error)
	// CreateEndpoint in e.Network, a remote one if e says so. The result has its ID. ErrExists:
	// the network has an endpoint with that address.
	CreateEndpoint(e Endpoint) (*Endpoint, error)
	// DeleteEndpoint fails with ErrNotFound.
	DeleteEndpoint(id string) error
	// LoadBalancers lists all, those of other programs, too.
	LoadBalancers() ([]LoadBalancer, error)
	// LoadBalancerByID fails with ErrNotFound.
	LoadBalancerByID(id string) (*LoadBalancer, error)
	// CreateLoadBalancer ignores b.ID and returns the new one. ErrExists: another has its front.
	CreateLoadBalancer(b LoadBalancer) (id string, err error)
	// UpdateLoadBalancer replaces what the one with b.ID is. It needs Features.ModifyLoadBalancer
	// and an endpoint; ErrNotImplemented, ErrNotFound.
	UpdateLoadBalancer(b LoadBalancer) error
	// DeleteLoadBalancer fails with ErrNotFound.
	DeleteLoadBalancer(id string) error
	// AddACLs to a network, and RemoveACLs from it: those that are equal in all fields. They need
	// Features.NetworkACL.
	AddACLs(networkID string, rules []ACL) error
	RemoveACLs(networkID string, rules []ACL) error
}

// Features of a version of HNS, as far as the mode depends on them.
type Features struct {
	DSR, RemoteSubnet, IPv6DualStack, SessionAffinity, ModifyLoadBalancer bool
	// NetworkACL: access control lists of networks.
	NetworkACL bool
}

// Types of networks. HNS spells them in various cases.
const (
	Overlay  = "Overlay"
	L2Bridge = "L2Bridge"
)

// Network of HNS.
type Network struct {
	ID, Name, Type string
	// RemoteSubnets of an overlay: where its other nodes are.
	RemoteSubnets []RemoteSubnet
	// ACLs of the network, in the order of HNS.
	ACLs []ACL
}

// IsOverlay reports whether the network encapsulates (VXLAN).
func (n *Network) IsOverlay() bool { return strings.EqualFold(n.Type, Overlay) }

// RemoteSubnet is a policy RemoteSubnetRoute.
type RemoteSubnet struct {
	Prefix          netip.Prefix
	ProviderAddress netip.Addr
}

// Provider is the address of the node that an address is at, or is; zero: no remote subnet has it.
func (n *Network) Provider(a netip.Addr) netip.Addr {
	for _, s := range n.RemoteSubnets {
		if s.Prefix.Contains(a) || s.ProviderAddress == a {
			return s.ProviderAddress
		}
	}
	return netip.Addr{}
}

// Endpoint of a network.
type Endpoint struct {
	ID, Name, Network string
	Addrs             []netip.Addr
	MAC               string
	// Remote: it is at another machine (EndpointFlagsRemoteEndpoint).
	Remote bool
	// ProviderAddress of the machine that it is at, for CreateEndpoint in an overlay; zero: none.
	ProviderAddress netip.Addr
}

// LoadBalancer has one port, as the mode makes them; of others the first one is shown.
type LoadBalancer struct {
	ID        string
	Endpoints []string // their IDs
	SourceVIP netip.Addr
	// VIPs are its addresses; none: those of the machine.
	VIPs    []netip.Addr
	Mapping PortMapping
	Flags   BalancerFlags
}

// PortMapping of a load balancer.
type PortMapping struct {
	Protocol                   uint32 // TCP, UDP or SCTP
	InternalPort, ExternalPort uint16
	Distribution               Distribution
	Flags                      MappingFlags
}

// Numbers of protocols (IANA).
const (
	TCP  uint32 = 6
	UDP  uint32 = 17
	SCTP uint32 = 132
)

// Distribution of connections among endpoints.
type Distribution uint32

// Distributions. ClientIP keeps a client at an endpoint, by a hash: there is no timeout.
const (
	PerConnection Distribution = 0
	ClientIP      Distribution = 2
)

// MappingFlags of a port mapping.
type MappingFlags uint32

// Flags of port mappings. Mux is direct return for the node port behind an address, PreserveDIP
// leaves the destination of packets as it is, External is an address from outside the cluster
// (16, which kube-proxy has and hnslib 0.1.3 does not name).
const (
	LocalRouted MappingFlags = 2
	Mux         MappingFlags = 4
	PreserveDIP MappingFlags = 8
	External    MappingFlags = 16
)

// BalancerFlags of a load balancer.
type BalancerFlags uint32

// Flags of load balancers. DSR is direct server return.
const (
	DSR  BalancerFlags = 1
	IPv6 BalancerFlags = 2
)

// ACL is a rule of a network. Empty lists and port 0 stand for all.
type ACL struct {
	Allow bool // else it blocks
	Out   bool // what leaves the machine's endpoints; else what comes in
	// Protocol number.
	Protocol uint32
	// Local and Remote are the two ends, seen from the endpoints.
	Local, Remote         []netip.Prefix
	LocalPort, RemotePort uint16
	// Priority: the lowest number is asked first.
	Priority uint16
}

// Equal reports whether two rules are the same.
func (a ACL) Equal(b ACL) bool {
	return a.Allow == b.Allow && a.Out == b.Out && a.Protocol == b.Protocol && a.LocalPort == b.LocalPort &&
		a.RemotePort == b.RemotePort && a.Priority == b.Priority && slices.Equal(a.Local, b.Local) && slices.Equal(a.Remote, b.Remote)
}

// SameID compares identifiers: HNS writes them in either case, with braces or without.
func SameID(a, b string) bool { return CanonicalID(a) == CanonicalID(b) }

// CanonicalID of a GUID: lower case, without braces.
func CanonicalID(id string) string { return strings.ToLower(strings.Trim(id, "{}")) }

package tunnel

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
)

// Role of a peer.
type Role uint8

// The roles.
const (
	// RoleIngress is the zone ingress of another site.
	RoleIngress Role = iota
	// RoleEgress is the zone egress of this site.
	RoleEgress
	// RoleNode is the agent of another node. The protocol allows it; this version
	// refuses it.
	RoleNode
)

// String is the name in log lines.
func (r Role) String() string {
	switch r {
	case RoleIngress:
		return "ingress"
	case RoleEgress:
		return "egress"
	case RoleNode:
		return "node"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Peer is the other end of tunnels.
type Peer struct {
	// Name of the object, for log lines.
	Name string
	// Address that the peer advertises.
	Address netip.AddrPort
	Role    Role
	// Site in which the peer is.
	Site string
	// Weight among the peers of a service: healthy instances behind it. A peer of
	// weight 0 is used only when the others fail.
	Weight uint32
}

// Credentials are a workload's part of a handshake. They are immutable.
type Credentials struct {
	// Identity is the SPIFFE ID in the certificate, and Serial names the certificate
	// among those of the identity. Pools and session caches are per pair.
	Identity, Serial string
	Certificate      *tls.Certificate
	// VerifyPeer authenticates the peer. It is called in every handshake, also when a
	// session is resumed, and is the only check of the peer's certificate.
	VerifyPeer func(Peer, tls.ConnectionState) error
}

// Request is what a stream is wanted for.
type Request struct {
	// SNI names the service, mesh and port.
	SNI string
	// Peers to choose from. Those that have one address count once.
	Peers []Peer
	// EgressOnly is set where the zone egress is the only way out: a peer of any other
	// role is an error, not an alternative.
	EgressOnly  bool
	Stream      frame.Stream
	Credentials *Credentials
}

// check refuses what this version or the configuration of the mesh does not allow.
func (r *Request) check(site string) error {
	if len(r.Peers) == 0 {
		return &OpenError{SNI: r.SNI, Reason: frame.NoRoute,
			Err: errors.New("there is no peer: no site exports the service, or the zone has no egress")}
	}
	if r.Credentials == nil || r.Credentials.Certificate == nil || r.Credentials.VerifyPeer == nil {
		return &OpenError{SNI: r.SNI, Reason: frame.Unauthorized,
			Err: errors.New("the workload has no certificate: check its mesh's mtls backend")}
	}
	for _, p := range r.Peers {
		switch {
		case r.EgressOnly && p.Role != RoleEgress:
			return &OpenError{SNI: r.SNI, Reason: frame.Unsupported,
				Err: fmt.Errorf("peer %s is a %s, but the mesh allows the zone egress only (routing.zoneEgress)", p.Name, p.Role)}
		case p.Role == RoleNode:
			return &OpenError{SNI: r.SNI, Reason: frame.Unsupported,
				Err: fmt.Errorf("peer %s: tunnels from node to node are not supported: use a sidecar for mTLS inside a site", p.Name)}
		case p.Role == RoleIngress && p.Site == site && site != "":
			return &OpenError{SNI: r.SNI, Reason: frame.Unsupported,
				Err: fmt.Errorf("peer %s is in this site (%s): its endpoints are reached without a tunnel", p.Name, site)}
		}
	}
	return nil
}

// Order returns peers in an order of attempts: at random by weight. Peers with one
// address count once.
func Order(peers []Peer) []Peer {
	return order(peers, func(netip.AddrPort) bool { return false })
}

// order returns the peers in the order of attempts: at random by weight, those that
// failed lately last. Peers with one address count once.
func order(peers []Peer, suspect func(netip.AddrPort) bool) []Peer {
	left := make([]Peer, 0, len(peers))
	for _, p := range peers {
		if !slices.ContainsFunc(left, func(o Peer) bool { return o.Address == p.Address }) {
			left = append(left, p)
		}
	}
	out := make([]Peer, 0, len(left))
	var last []Peer
	for len(left) > 0 {
		i := draw(left)
		if suspect(left[i].Address) {
			last = append(last, left[i])
		} else {
			out = append(out, left[i])
		}
		left = slices.Delete(left, i, i+1)
	}
	return append(out, last...)
}

// draw returns an index at random by weight; those without weight only if no other is
// left.
func draw(peers []Peer) int {
	sum := uint64(0)
	for _, p := range peers {
		sum += uint64(p.Weight)
	}
	if sum == 0 {
		return rand.IntN(len(peers))
	}
	at := rand.Uint64N(sum)
	for i, p := range peers {
		if at < uint64(p.Weight) {
			return i
		}
		at -= uint64(p.Weight)
	}
	return len(peers) - 1
}

// suspicion is how long a peer comes last after a failure to connect.
const suspicion = 5 * time.Second

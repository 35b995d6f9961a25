package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// outside answers for a name of a service outside every mesh (spec.hosts of an
// ExternalService), by the mesh of the client. The agent itself has no address here: it asks
// where the service really is.
func (s *Server) outside(q dns.Question, name string, client netip.Addr) (a answer, ok bool) {
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeANY:
	case dns.TypeCNAME, dns.TypeHTTPS, dns.TypeSVCB:
		// There are none: they would lead past the virtual IPs (RFC 9460, 7.3).
	default:
		return a, false // such as MX and TXT, which are of the name's owner
	}
	if !client.IsValid() {
		return a, false
	}
	h := s.config.Zone.Outside(strings.TrimSuffix(name, "."), func() string { return s.config.Mesh(client) })
	if h == nil {
		return a, false
	}
	a = addresses(q, h)
	a.varies, a.origin = true, name
	return a, true
}

// Resolver resolves names for the agent itself: those of others by the upstreams, also where
// they are of services outside every mesh and have virtual IPs for workloads. It honours
// /etc/hosts, and needs no socket of the server.
func (s *Server) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe() // messages go over it as over TCP (package net)
		go s.serveConn(context.WithoutCancel(ctx), server, newConnections(1))
		return client, nil
	}}
}

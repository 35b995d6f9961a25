// Package site is what a gateway of a site decides by: which services it serves, at which
// endpoints of the site, and to whom.
//
// Enter at [NewIngress] and [NewEgress]; both are the authority of a server.Server. An
// [Ingress] is also the data path of an agent: the agent chooses endpoints for it as for
// any node, and a stream goes to one of them. The package carries no bytes.
package site

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Identities of a gateway. Methods are called concurrently, and do not block.
type Identities interface {
	// Own is the certificate of the gateway in a mesh.
	Own(mesh string) (*mesh.SVID, error)
	// Trust is what is trusted now.
	Trust() *mesh.Trust
	// Zone is the site of the gateway; empty: not known yet.
	Zone() string
}

// service that a gateway serves.
type service struct {
	mesh string
	// toSites may use it; empty: all may.
	toSites []string
}

// authority implements server.Authority for the services that find knows by server name.
type authority struct {
	identities Identities
	find       func(sni string) (service, bool)
}

// Certificate is a tls.Config.GetCertificate: the gateway's in the mesh that the server
// name is of.
func (a authority) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s, ok := a.find(hello.ServerName)
	if !ok {
		return nil, fmt.Errorf("no service of this gateway has the server name %.260q", hello.ServerName)
	}
	svid, err := a.identities.Own(s.mesh)
	if err != nil {
		return nil, err
	}
	pair := svid.TLS()
	return &pair, nil
}

// VerifyPeer implements server.Authority: an identity of the service's mesh, or of one that
// it is exported to, from a site that may use the service.
func (a authority) VerifyPeer(sni string, chain []*x509.Certificate) error {
	s, ok := a.find(sni)
	if !ok {
		return fmt.Errorf("no service of this gateway has the server name %.260q", sni)
	}
	p, err := a.identities.Trust().Client(s.mesh, chain, time.Now())
	if err != nil {
		return err
	}
	// Certificates that were not signed by an intermediate of a site do not tell it: the
	// views of sites that may not use the service have no way to it.
	if p.IssuerZone == "" || p.IssuerZone == a.identities.Zone() || len(s.toSites) == 0 || slices.Contains(s.toSites, p.IssuerZone) {
		return nil
	}
	return fmt.Errorf("verify client %s: site %s may not use the service", p.ID, p.IssuerZone)
}

// AuthorizeStream implements server.Authority. A connection outlives changes of what is
// served and trusted.
func (a authority) AuthorizeStream(p server.Peer, s frame.Stream) error {
	return a.mayUse(p.SNI, s.Identity)
}

// mayUse checks an identity without its certificate, which was verified before.
func (a authority) mayUse(sni, identity string) error {
	s, ok := a.find(sni)
	if !ok {
		return errors.New("the service is not served here any more")
	}
	id, err := mesh.ParseID(identity)
	if err != nil {
		return err
	}
	if !slices.Contains(a.identities.Trust().ClientDomains(s.mesh), id.Domain()) {
		return fmt.Errorf("%s may not use services of mesh %s", id, s.mesh)
	}
	return nil
}

// MayAssert implements server.Authority: an egress speaks for workloads and nodes that it
// has authenticated.
func (a authority) MayAssert(p server.Peer, identity string) bool {
	own, err := mesh.ParseID(p.Identity)
	if err != nil || own.Kind() != mesh.EgressID {
		return false
	}
	id, err := mesh.ParseID(identity)
	return err == nil && (id.Kind() == mesh.WorkloadID || id.Kind() == mesh.NodeID)
}

var _ server.Authority = authority{}

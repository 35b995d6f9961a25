package site

import (
	"context"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/gateway/egress"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Egress is what an egress serves: the services of other sites, and those outside every
// mesh. Safe for concurrent use.
type Egress struct {
	authority
	router *outbound.Router
}

// NewEgress serves what a router knows.
func NewEgress(identities Identities, router *outbound.Router) *Egress {
	e := &Egress{router: router}
	e.authority = authority{identities, e.find}
	return e
}

func (e *Egress) find(sni string) (service, bool) {
	b, ok := e.router.Beyond(sni)
	return service{mesh: b.Mesh}, ok
}

// Target implements egress.Targets.
func (e *Egress) Target(sni string) (egress.Target, bool) {
	b, ok := e.router.Beyond(sni)
	out := egress.Target{Ingresses: b.Ingresses, External: b.External}
	if b.External != nil {
		out.Outside = fmt.Sprintf("%s/%s:%d", b.Service.Namespace, b.Service.Name, b.Port)
	}
	return out, ok
}

// Credentials of the egress, for ingresses that serve a server name.
func (e *Egress) Credentials(sni string) (*tunnel.Credentials, error) {
	s, _ := e.find(sni)
	svid, err := e.identities.Own(s.mesh)
	if err != nil {
		return nil, err
	}
	return outbound.CredentialsOf(svid, s.mesh, e.identities.Trust), nil
}

// Name implements proxy.Mode: an egress has no endpoints of this site.
func (*Egress) Name() string { return "egress" }

// Apply implements proxy.Mode.
func (*Egress) Apply(context.Context, []proxy.Change) error { return nil }

// Close implements proxy.Mode.
func (*Egress) Close(context.Context) error { return nil }

var (
	_ egress.Targets = (*Egress)(nil)
	_ proxy.Mode     = (*Egress)(nil)
)

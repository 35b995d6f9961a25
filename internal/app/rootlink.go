package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// rootLink is how a zone gets roots and intermediates of global. Each instance has its own:
// all of them sign.
type rootLink struct {
	zone atomic.Pointer[zoneLink]

	mu   sync.Mutex
	conn *grpc.ClientConn
}

// rootTimeout bounds one call.
const rootTimeout = 5 * time.Second

// errNotJoined: the control plane is starting.
var errNotJoined = errors.New("this zone is not connected to global yet")

func (l *rootLink) client() (federationv1.MeshAuthoritiesClient, error) {
	zone := l.zone.Load()
	if zone == nil {
		return nil, errNotJoined
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		conn, err := (&planeLink{renewer: zone.renewer, server: zone.cfg.Global, serves: "zones"}).connect()
		if err != nil {
			return nil, err
		}
		l.conn = conn
	}
	return federationv1.NewMeshAuthoritiesClient(l.conn), nil
}

// root implements authorities.Config.Root.
func (l *rootLink) root(ctx context.Context, mesh, backend string) (rotation.Authority, error) {
	client, err := l.client()
	if err != nil {
		return rotation.Authority{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, rootTimeout)
	defer cancel()
	answer, err := client.Root(ctx, &federationv1.RootRequest{Mesh: mesh, Backend: backend})
	if err != nil {
		return rotation.Authority{}, errors.New(status.Convert(err).Message())
	}
	certs, err := certpem.ParseCertificates(answer.GetRoot())
	switch {
	case err != nil:
		return rotation.Authority{}, fmt.Errorf("root of mesh %s: %w", mesh, err)
	case len(certs) != 1 || authority.ID(certs[0]) != answer.GetAuthority():
		return rotation.Authority{}, fmt.Errorf("root of mesh %s: it is not the one of authority %s", mesh, answer.GetAuthority())
	}
	return rotation.Authority{
		ID: answer.GetAuthority(), Backend: backend, Type: meshv1alpha1.BackendBuiltin, Roots: answer.GetRoot(),
	}, nil
}

// intermediates implements authorities.Config.Intermediates.
func (l *rootLink) intermediates(_ string, a rotation.Authority) authority.IntermediateIssuer {
	return remoteRoot{l, a.ID}
}

// remoteRoot is a root that global has.
type remoteRoot struct {
	link      *rootLink
	authority string
}

// IssueIntermediate implements authority.IntermediateIssuer.
func (r remoteRoot) IssueIntermediate(ctx context.Context, mesh string, csr []byte) (*authority.Intermediate, error) {
	client, err := r.link.client()
	if err != nil {
		return nil, err
	}
	answer, err := client.Intermediate(ctx, &federationv1.IntermediateRequest{Mesh: mesh, Authority: r.authority, Request: csr})
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	var i authority.Intermediate
	if i.Chain, err = certpem.ParseCertificates(answer.GetChain()); err == nil {
		i.Roots, err = certpem.ParseCertificates(answer.GetRoots())
	}
	if err != nil {
		return nil, fmt.Errorf("intermediate of mesh %s: %w", mesh, err)
	}
	return &i, nil
}

func (l *rootLink) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

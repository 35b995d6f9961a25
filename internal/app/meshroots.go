package app

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/federation/zones"
	"github.com/proxima-mesh/proxima/internal/identity/authorities"
	"github.com/proxima-mesh/proxima/internal/identity/authority/files"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
)

// meshRoots are the roots of meshes at global: the leader makes them, every instance signs
// the intermediates of zones by them. The roots' keys never leave global.
type meshRoots struct {
	federationv1.UnimplementedMeshAuthoritiesServer
	log         *slog.Logger
	api         *api
	records     sealedRecords
	authorities *authorities.Authorities
	zones       *zones.Zones
}

func newMeshRoots(cfg ControlPlaneConfig, s *storage, a *api, i *instance, z *zones.Zones, log *slog.Logger) (*meshRoots, error) {
	r := &meshRoots{log: log.With("component", "identities"), api: a, records: sealedRecords{sealed.NewRecords(s.store, s.keys)}, zones: z}
	csrs, err := signerAPI(cfg.SignerKubeconfig)
	if err != nil {
		return nil, err
	}
	// It issues nothing but intermediates, and no agent takes its states.
	const site = string(RoleGlobal)
	r.authorities = authorities.New(authorities.Config{
		Zone: site, Client: a.client, Records: r.records, CSRs: csrs, Logger: r.log,
		Intermediates: authorities.Local(r.records, site, time.Now),
		Files:         func(cert, key, roots string) authorities.FileSource { return files.New(cert, key, roots) },
		Publish:       func(authorities.Published) error { return nil }, Unpublish: func(string) {},
	})
	a.meshes.authorities = r.authorities
	federationv1.RegisterMeshAuthoritiesServer(i.server, r)
	return r, nil
}

func (r *meshRoots) components() []component {
	return []component{
		{Name: "authorities of meshes", Run: r.authorities.Run},
		{Name: "roots of meshes", Scope: leader, Run: r.lead},
	}
}

// lead makes roots. Zones follow them by themselves, each with an overlap of its own, so
// nobody acknowledges here.
func (r *meshRoots) lead(ctx context.Context) error {
	return authorities.NewLeader(authorities.LeaderConfig{
		Authorities: r.authorities, Client: r.api.client, Logger: r.log,
		Peers:   func(string) []rotation.Peer { return nil },
		Members: func(string) []string { return nil },
	}).Run(ctx)
}

// Root implements MeshAuthoritiesServer.
func (r *meshRoots) Root(ctx context.Context, q *federationv1.RootRequest) (*federationv1.RootResponse, error) {
	if _, err := r.zones.Caller(ctx); err != nil {
		return nil, err
	}
	t, err := r.authorities.Root(q.GetMesh(), q.GetBackend())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &federationv1.RootResponse{Authority: t.ID, Root: t.Roots}, nil
}

// Intermediate implements MeshAuthoritiesServer. The zone is that of the credential.
func (r *meshRoots) Intermediate(ctx context.Context, q *federationv1.IntermediateRequest) (*federationv1.IntermediateResponse, error) {
	zone, err := r.zones.Caller(ctx)
	if err != nil {
		return nil, err
	}
	t, ok := r.authorities.Trusted(q.GetMesh(), q.GetAuthority())
	if !ok {
		return nil, status.Errorf(codes.FailedPrecondition, "mesh %s has no authority %s", q.GetMesh(), q.GetAuthority())
	}
	i, err := authorities.Local(r.records, zone, time.Now)(q.GetMesh(), t).IssueIntermediate(ctx, q.GetMesh(), q.GetRequest())
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "intermediate of zone %s in mesh %s: %v", zone, q.GetMesh(), err)
	}
	r.log.Info("intermediate issued to a zone", "zone", zone, "mesh", q.GetMesh(), "authority", t.ID, "runsOut", i.Chain[0].NotAfter)
	return &federationv1.IntermediateResponse{
		Chain: certpem.EncodeCertificates(i.Chain...), Roots: certpem.EncodeCertificates(i.Roots...),
	}, nil
}

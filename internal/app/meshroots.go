package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
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

func newMeshRoots(
	cfg ControlPlaneConfig, records *sealed.Records, a *api, i *instance, z *zones.Zones, log *slog.Logger,
) (*meshRoots, error) {
	r := &meshRoots{log: log.With("component", "identities"), api: a, records: sealedRecords{records}, zones: z}
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

// lead makes roots, and takes the steps of their rotation, for which zones are the peers.
func (r *meshRoots) lead(ctx context.Context) error {
	return authorities.NewLeader(authorities.LeaderConfig{
		Authorities: r.authorities, Client: r.api.client, Logger: r.log,
		Peers:   func(mesh string) []rotation.Peer { return r.peers(ctx, mesh) },
		Members: func(string) []string { return nil },
	}).Run(ctx)
}

// zoneRecord is what global knows of a zone in a mesh, whichever instance it was told to.
type zoneRecord struct {
	// Acked is the newest generation that the zone has acknowledged.
	Acked uint64 `json:"acked,omitempty"`
	// SignsUntil is the end of the newest certificate by which it can sign.
	SignsUntil time.Time `json:"signsUntil,omitzero"`
	// Problem that it has reported.
	Problem string `json:"problem,omitempty"`
}

// maxProblem bounds what is kept of a problem, in bytes.
const maxProblem = 1024

// changeRecord of a zone. change is called again when another instance has written meanwhile.
func (r *meshRoots) changeRecord(ctx context.Context, mesh, zone string, change func(*zoneRecord)) error {
	record := r.records.Record(authorities.ZoneRecord(mesh, zone))
	for {
		data, version, err := record.Load(ctx)
		if err != nil {
			return err
		}
		var old zoneRecord
		if data != nil {
			if err := json.Unmarshal(data, &old); err != nil {
				return fmt.Errorf("record of zone %s in mesh %s: %w", zone, mesh, err)
			}
		}
		next := old
		if change(&next); next == old && data != nil {
			return nil
		}
		if data, err = json.Marshal(next); err != nil {
			return err
		}
		if _, err = record.Save(ctx, data, version); !errors.Is(err, rotation.ErrConflict) {
			return err
		}
	}
}

// peers of a mesh's rotation. While they cannot be read nothing is stepped over.
func (r *meshRoots) peers(ctx context.Context, mesh string) []rotation.Peer {
	out, err := r.readPeers(ctx, mesh)
	if err != nil {
		r.log.Warn("zones of a mesh not read; the change of its authorities waits", "mesh", mesh, "error", err)
		return []rotation.Peer{{Name: "the records of zones: " + err.Error(), Connected: true}}
	}
	return out
}

// readPeers are all zones that may connect: those that are online, and those that can sign
// although they are not.
func (r *meshRoots) readPeers(ctx context.Context, mesh string) ([]rotation.Peer, error) {
	all, err := zoneStates(ctx, r.api.client)
	if err != nil {
		return nil, err
	}
	state, ok := r.authorities.State(mesh)
	if !ok {
		return nil, nil
	}
	var out []rotation.Peer
	for _, z := range all {
		data, _, err := r.records.Record(authorities.ZoneRecord(mesh, z.Name)).Load(ctx)
		if err != nil {
			return nil, err
		}
		var known zoneRecord
		if data != nil {
			if err := json.Unmarshal(data, &known); err != nil {
				return nil, fmt.Errorf("record of zone %s: %w", z.Name, err)
			}
			known.SignsUntil = latest(known.SignsUntil, ownKeysUntil(state))
		}
		if z.Enabled {
			out = append(out, rotation.Peer{
				Name: "zone " + z.Name, Acked: known.Acked, Connected: z.Insight != nil && z.Insight.Online, HoldsUntil: known.SignsUntil,
				Problem: known.Problem,
			})
		}
	}
	return out, nil
}

// ownKeysUntil is the end of the authorities by which zones sign without global: those whose
// keys they have. The zero time: there are none.
func ownKeysUntil(state rotation.State) (end time.Time) {
	for _, t := range state.Trusted {
		if t.ID == rotation.None || t.Type == meshv1alpha1.BackendBuiltin {
			continue
		}
		certs, _ := certpem.ParseCertificates(t.Roots) // they were checked when they were stored
		for _, c := range certs {
			end = latest(end, c.NotAfter)
		}
	}
	return end
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Follow implements MeshAuthoritiesServer.
func (r *meshRoots) Follow(_ *federationv1.FollowRequest, stream grpc.ServerStreamingServer[federationv1.FollowResponse]) error {
	ctx := stream.Context()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.authorities.Synced():
	}
	var sent *federationv1.FollowResponse
	for {
		if _, err := r.zones.Caller(ctx); err != nil {
			return err
		}
		states, changed := r.authorities.States()
		next := &federationv1.FollowResponse{}
		for _, name := range slices.Sorted(maps.Keys(states)) {
			next.Meshes = append(next.Meshes, wireState(states[name]))
		}
		if sent == nil || !proto.Equal(sent, next) {
			if err := stream.Send(next); err != nil {
				return err
			}
			sent = next
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func wireState(s rotation.State) *federationv1.MeshState {
	out := &federationv1.MeshState{Mesh: s.Mesh, Generation: s.Generation, Phase: string(s.Phase), Issuer: s.Issuer}
	for _, t := range s.Trusted {
		out.Trusted = append(out.Trusted, &federationv1.MeshAuthority{Id: t.ID, Backend: t.Backend, Type: t.Type, Roots: t.Roots})
	}
	return out
}

// Acknowledge implements MeshAuthoritiesServer. The zone is that of the credential.
func (r *meshRoots) Acknowledge(ctx context.Context, q *federationv1.AcknowledgeRequest) (*federationv1.AcknowledgeResponse, error) {
	zone, err := r.zones.Caller(ctx)
	if err != nil {
		return nil, err
	}
	s, ok := r.authorities.State(q.GetMesh())
	if !ok || q.GetGeneration() > s.Generation {
		return nil, status.Errorf(codes.FailedPrecondition, "mesh %s has no generation %d of authorities", q.GetMesh(), q.GetGeneration())
	}
	trouble := q.GetProblem()
	trouble = strings.ToValidUTF8(trouble[:min(len(trouble), maxProblem)], "")
	err = r.changeRecord(ctx, q.GetMesh(), zone, func(z *zoneRecord) {
		z.Acked, z.Problem = max(z.Acked, q.GetGeneration()), trouble
	})
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &federationv1.AcknowledgeResponse{}, nil
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
	// It may sign by it from now on, so a change of authorities has to wait for it.
	end := i.Chain[0].NotAfter.UTC()
	if err := r.changeRecord(ctx, q.GetMesh(), zone, func(z *zoneRecord) { z.SignsUntil = latest(z.SignsUntil, end) }); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	r.log.Info("intermediate issued to a zone", "zone", zone, "mesh", q.GetMesh(), "authority", t.ID, "runsOut", i.Chain[0].NotAfter)
	return &federationv1.IntermediateResponse{
		Chain: certpem.EncodeCertificates(i.Chain...), Roots: certpem.EncodeCertificates(i.Roots...),
	}, nil
}

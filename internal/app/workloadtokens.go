package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// workloadTokens are callers that show a token of kind workload, for a workload with the service account of
// the token: they get certificates of that identity, and nothing else. In the records of certificates the
// name of the workload is workloadPeer.
type workloadTokens struct {
	tokens *identity.Tokens
	tables *catalog.Catalog
	log    *slog.Logger
}

// workloadPeer is a holder of certificates that is no node: names of nodes have no "/".
func workloadPeer(key resource.Key) string { return "workload/" + key.Namespace + "/" + key.Name }

// caller implements issue.Config.Caller. It blocks for a look at the store.
func (t workloadTokens) caller(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	one := func(name string) string {
		if values := md.Get(name); len(values) == 1 {
			return values[0]
		}
		return ""
	}
	text, ok := strings.CutPrefix(one("authorization"), "Bearer ")
	if !ok {
		return "", status.Error(codes.Unauthenticated, "a token of kind workload is needed")
	}
	subject, err := t.tokens.Check(ctx, text)
	switch {
	case errors.Is(err, identity.ErrToken):
		t.log.Info("the token of a workload is refused", "reason", err)
		return "", status.Error(codes.Unauthenticated, err.Error())
	case err != nil:
		return "", status.Error(codes.Unavailable, "the token could not be checked")
	case !t.tables.Listed():
		return "", status.Error(codes.Unavailable, errNotSynced.Error())
	}
	namespace, account, ok := identity.WorkloadName(subject.User, subject.Groups)
	if !ok {
		return "", status.Errorf(codes.PermissionDenied, "%s is no workload: a token of kind workload is needed", subject.User)
	}
	key := resource.Key{Namespace: namespace, Name: one(wire.WorkloadHeader)}
	d, ok := t.tables.Snapshot().Dataplanes.Get(key)
	switch {
	case !ok:
		return "", status.Errorf(codes.NotFound, "there is no Dataplane %s: register the workload first (proxima run)", key)
	case kind.DataplaneAccount(d) != account:
		return "", status.Errorf(codes.PermissionDenied, "Dataplane %s has service account %s, and the token is of %s", key, kind.DataplaneAccount(d), account)
	}
	return workloadPeer(key), nil
}

// ownWorkload lets a workload have the certificate of its own Dataplane.
type ownWorkload struct{ ownPods }

// Workload implements issue.Workloads.
func (o ownWorkload) Workload(ctx context.Context, namespace, name string) (issue.Workload, bool, error) {
	w, ok, err := o.Workloads.Workload(ctx, namespace, name)
	w.Node = workloadPeer(resource.Key{Namespace: namespace, Name: name})
	return w, ok, err
}

// serveWorkloads has certificates issued to workloads that show their token, at the port of xDS.
func (d *identities) serveWorkloads(p *proxies, workloads issue.Workloads, tokens *identity.Tokens, site string) {
	log := d.log.With("callers", "workloads")
	identityv1.RegisterIdentityServer(p.grpc, issue.NewServer(issue.Config{
		Zone: site, Caller: workloadTokens{tokens, d.catalog, log}.caller, Workloads: ownWorkload{ownPods{workloads}}, Mesh: d.mesh,
		Record: d.record, Board: d.board, Logger: log,
	}))
}

// forgetWorkloads that are gone: a change of authorities does not wait for them.
func (d *identities) forgetWorkloads(ctx context.Context) error {
	sub := d.catalog.Subscribe(catalog.Dataplanes)
	defer sub.Close()
	for {
		delta, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		for _, c := range delta.Dataplanes {
			if c.Old != nil && (c.New == nil || c.New.UID != c.Old.UID) {
				d.board.Forget(workloadPeer(c.Key))
			}
		}
	}
}

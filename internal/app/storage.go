package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/metered"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// storage is all that a control plane keeps: the state, keys, tokens and audit logs.
type storage struct {
	log     *slog.Logger
	dataDir string
	// machineID of this machine.
	machineID   string
	store       store.Store
	metrics     *prometheus.Registry
	ca          *identity.Authority
	keys        *keyring.Ring
	tokens      *identity.Tokens
	revocations *identity.Revocations
	// renewExpired as in ControlPlaneConfig.
	renewExpired time.Duration
	audit        *audit.Logs
	// feed of changes; nil: there is none.
	feed *feed.Feed
	// cursors of those who follow the feed; nil: there is none.
	cursors *cursor.Cursors
	// traces of changes; nil: off.
	traces *traces
	// sharing of the key ring with the other instances; nil: there are none.
	sharing *ringSharing
}

// shared reports whether this control plane may have several instances.
func (s *storage) shared() bool { return s.sharing != nil }

// storeOpener opens the store that a name stands for.
type storeOpener func(ctx context.Context, name, dataDir string, log *slog.Logger) (store.Store, error)

func openStorage(ctx context.Context, cfg ControlPlaneConfig, open storeOpener, log *slog.Logger) (s *storage, err error) {
	opened := &storage{
		log: log, dataDir: cfg.DataDir, machineID: cfg.MachineID, renewExpired: cfg.RenewExpired, metrics: prometheus.NewRegistry(),
	}
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	s = opened
	if s.machineID == "" {
		if s.machineID, err = machine.ID(); err != nil {
			return nil, err
		}
	}
	if err := makeDataDir(cfg.DataDir, log); err != nil {
		return nil, err
	}
	// The store is opened first: it makes sure that no other process uses the data.
	opening, err := open(ctx, cfg.Store, cfg.DataDir, log)
	if err != nil {
		return nil, err
	}
	actors := &feed.Actors{Of: actorOf}
	s.store = actors.Store(cluster.Fenced(metered.New(opening, metered.Config{Registerer: s.metrics})))
	s.traces, err = newTraces(cfg.Traces, planeService, cfg.APIAddress, tracing.Config{
		Epoch: s.store.Epoch(), Annotate: cfg.ClusterKeyFile != "" || len(cfg.ClusterKeyCommand) > 0,
	}, s.metrics, log)
	if err != nil {
		return nil, err
	}
	wrapper, err := cfg.clusterWrapper()
	if err != nil {
		return nil, err
	}
	if err := s.shareKeys(ctx, wrapper, cfg.Store); err != nil {
		return nil, err
	}
	if s.ca, err = identity.Open(filepath.Join(cfg.DataDir, "pki")); err != nil {
		return nil, err
	}
	if s.keys, err = openKeys(ctx, s.store, cfg.DataDir, log); err != nil {
		return nil, err
	}
	if s.shared() {
		s.keys.Share(s.sharing)
	}
	s.tokens = identity.NewTokens(s.store, s.ca.Pin())
	s.revocations, err = identity.NewRevocations(ctx, s.store, cfg.RenewExpired, log.With("component", "revocations"))
	if err != nil {
		return nil, err
	}
	if !cfg.Feed.Off && cfg.Store != "memory" {
		offloader, err := openOffload(cfg.Feed.Offload, cfg.DataDir, s.log)
		if err != nil {
			return nil, err
		}
		if s.feed, err = openFeed(ctx, cfg, s, s.store, offloader, actors); err != nil {
			return nil, err
		}
		s.cursors, err = cursor.New(ctx, cursor.Config{Store: s.store, Feed: s.feed, Logger: s.log.With("component", "feed")})
		if err != nil {
			return nil, err
		}
	}
	s.audit = audit.OpenLogs(cfg.DataDir, log.With("component", "audit"), s.metrics)
	return s, nil
}

func (s *storage) components() []component {
	out := []component{
		{Name: "revocations", Run: s.revocations.Run},
		{Name: "compaction", Scope: leader, Run: func(ctx context.Context) error { return compact(ctx, s.store, s.compactable, s.log) }},
	}
	out = append(out, s.traces.components()...)
	if s.feed != nil {
		out = append(out, component{Name: "change feed", Run: s.feed.Run}, component{Name: "cursors", Run: s.cursors.Run})
	}
	if s.shared() {
		out = append(out, component{Name: "shared keys", Run: s.followKeys})
	}
	return out
}

// policy by which credentials are admitted.
func (s *storage) policy() access.Policy {
	return access.Policy{Revocations: s.revocations, RenewExpired: s.renewExpired}
}

// close releases what was opened, the store last.
func (s *storage) close() {
	if s.audit != nil {
		s.audit.Close()
	}
	if s.feed != nil {
		_ = s.feed.Log.Close() // where it never ran
	}
	if s.store == nil {
		return
	}
	if err := s.store.Close(); err != nil {
		s.log.Error("the store did not close cleanly; what was acknowledged is on disk", "error", err)
	}
}

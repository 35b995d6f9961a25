package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/postgres"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

const (
	// compactEvery and compactKeep bound history: a watcher may be away for
	// about that long and still resume. etcd under Kubernetes keeps 5 minutes.
	compactEvery = 5 * time.Minute
	// etcdSeenFile keeps, in the data directory, the newest revision of an etcd that
	// this control plane has seen.
	etcdSeenFile = "etcd-seen.json"
	// postgresSeenFile is the same of a PostgreSQL.
	postgresSeenFile = "postgres-seen.json"
)

// openStore opens what --store names, for this process alone.
func openStore(ctx context.Context, name, dataDir string, log *slog.Logger) (store.Store, error) {
	return openStoreAs(ctx, name, dataDir, true, log)
}

// openShared opens what --store names, for one of several instances of a control plane.
func openShared(ctx context.Context, name, dataDir string, log *slog.Logger) (store.Store, error) {
	if !sharable(name) {
		return nil, &problem.Error{
			Code: problem.StoreUnsupported,
			Err:  fmt.Errorf("--store %s has one process: a control plane on it has one instance", storeName(name)),
			Hint: "leave out --cluster-key-file and --cluster-key-command, or use postgres://… or etcd://…",
		}
	}
	return openStoreAs(ctx, name, dataDir, false, log)
}

// sharable reports whether several processes can have a store open.
func sharable(name string) bool {
	engine, _, _ := strings.Cut(name, ":")
	return engine == "postgres" || engine == "postgresql" || engine == "etcd"
}

func openStoreAs(ctx context.Context, name, dataDir string, exclusive bool, log *slog.Logger) (store.Store, error) {
	engine, location, _ := strings.Cut(name, ":")
	switch engine {
	case "memory":
		return memory.New(memory.Options{}), nil
	case "sqlite":
		location = sqliteFile(location, dataDir)
		if err := os.MkdirAll(filepath.Dir(location), 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		return sqlite.Open(ctx, location, sqlite.Options{Logger: log.With("component", "store")})
	case "postgres", "postgresql":
		if err := os.MkdirAll(dataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		s, err := postgres.Open(ctx, name, postgres.Options{
			Logger: log.With("component", "store"), SeenFile: filepath.Join(dataDir, postgresSeenFile), Exclusive: exclusive, Shared: !exclusive,
		})
		var used *postgres.InUseError
		if errors.As(err, &used) {
			return nil, &problem.Error{
				Code: problem.StoreInUse,
				Err:  err,
				Hint: "stop the other control plane, start both with the same --cluster-key-file, " +
					"or keep this one's state apart by search_path=NAME in the URL",
			}
		}
		var dial *net.OpError
		if errors.As(err, &dial) {
			return nil, &problem.Error{
				Code: problem.StoreUnreachable,
				Err:  err,
				Hint: "check that the database runs, and its address in --store",
			}
		}
		return s, err
	case "etcd":
		if err := os.MkdirAll(dataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		s, err := etcd.Open(ctx, name, etcd.Options{
			Logger: log.With("component", "store"), SeenFile: filepath.Join(dataDir, etcdSeenFile), Exclusive: exclusive, Shared: !exclusive,
		})
		var used *etcd.InUseError
		if errors.As(err, &used) {
			return nil, &problem.Error{
				Code: problem.StoreInUse,
				Err:  err,
				Hint: "stop the other control plane, start both with the same --cluster-key-file, " +
					"or keep this one's state apart by prefix=NAME in the URL",
			}
		}
		if err != nil {
			return nil, err // not s, which would be a store that is not nil
		}
		return s, nil
	case "kubernetes":
		return nil, fmt.Errorf("--store %s: not in this version; use sqlite:FILE, postgres://…, etcd://… or memory", engine)
	case "remote":
		return nil, &problem.Error{
			Code: problem.StoreUnsupported,
			Err:  errors.New("--store remote: a control plane keeps its state itself; another one's API is for clients and agents"),
			Hint: "use sqlite:FILE, postgres://… or etcd://…, and --server for what works with that API",
		}
	}
	return nil, fmt.Errorf("--store %q: use sqlite:FILE, postgres://…, etcd://… or memory", engine)
}

// storeName is what people are shown of --store: a URL may hold a password.
func storeName(name string) string {
	engine, location, _ := strings.Cut(name, ":")
	if engine == "sqlite" && location != "" {
		return name
	}
	return engine
}

// sqliteFile is the path of the state; location is the value of --store, or empty.
func sqliteFile(location, dataDir string) string {
	if location == "" {
		return filepath.Join(dataDir, "store.db")
	}
	return location
}

// compact forgets, from time to time, what was superseded before the last time, up to compactable.
func compact(ctx context.Context, s store.Store, compactable func() store.Revision, log *slog.Logger) error {
	ticker := time.NewTicker(compactEvery)
	defer ticker.Stop()
	var before store.Revision
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := s.Revision(ctx)
		if err == nil && before > 0 {
			err = s.Compact(ctx, min(before, compactable()))
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("compaction failed, history grows until the next one", "error", err)
			continue
		}
		before = now
	}
}

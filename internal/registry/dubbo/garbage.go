package dubbo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
)

const (
	// Keep is how long the metadata of a revision stay that no instance and no Service names.
	Keep = time.Hour
	// sweepInterval is the time between searches for them.
	sweepInterval = 10 * time.Minute
)

// garbage are the entries of metadata that nothing names.
type garbage struct {
	// since is when an entry was first seen to be named by nothing.
	since map[registry.ConfigKey]time.Time
}

// sweep returns the entries that nothing has named for Keep. Entries that others wrote are theirs.
func (g *garbage) sweep(s *catalog.Snapshot, now time.Time) (out []registry.ConfigKey) {
	named := map[registry.ConfigKey]struct{}{}
	for key, d := range s.Dataplanes.All() {
		if !registry.Registered(d) {
			continue
		}
		if in, err := registry.Parse(d); err == nil {
			named[registry.ConfigKey{Namespace: key.Namespace, Group: in.Metadata[registry.KeyRevision], DataID: in.Service.Name}] = struct{}{}
		}
	}
	for key, service := range s.Services.All() {
		if m, err := registry.MetadataOf(service); err == nil && m != nil {
			named[registry.ConfigKey{Namespace: key.Namespace, Group: m.Revision, DataID: m.Application}] = struct{}{}
		}
	}
	for _, e := range s.ServiceExports.All() {
		if key, ok := offeredBy(e); ok {
			named[key] = struct{}{}
		}
	}
	next := map[registry.ConfigKey]time.Time{}
	for _, o := range s.RegistryConfigs.All() {
		key := registry.ConfigKey{Namespace: o.Namespace, Group: o.Spec.Group, DataID: o.Spec.DataID}
		if _, ok := named[key]; ok || !slices.Contains(o.Spec.Tags, registry.TagMetadata) {
			continue
		}
		since, ok := g.since[key]
		if !ok {
			since = now
		}
		next[key] = since
		if now.Sub(since) >= Keep {
			out = append(out, key)
		}
	}
	g.since = next
	slices.SortFunc(out, registry.ConfigKey.Compare)
	return out
}

// collect deletes what nothing names, until ctx ends.
func (c *Controller) collect(ctx context.Context) {
	g := &garbage{}
	ticker := c.Clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if !c.Catalog.Listed(catalog.ServiceExports, catalog.RegistryConfigs) {
			continue // what names an entry may not be known yet
		}
		for _, key := range g.sweep(c.Catalog.Snapshot(), c.Clock.Now()) {
			if err := c.configs.Delete(ctx, registry.User{Admin: true}, key); err != nil && !errors.Is(err, registry.ErrNotFound) && ctx.Err() == nil {
				c.Logger.Warn("delete metadata that no instance names", "entry", key.String(), "error", err)
			}
		}
	}
}

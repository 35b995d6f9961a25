package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/redact"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/feed/sink/pulsarsink"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// fedObjects are the objects of a change feed, and where what its readers remember is kept.
type fedObjects struct {
	objects feedObjects
	kept    func(*resource.Descriptor) bool
	records feedRecords
	// memory is a directory for what is remembered of files.
	memory string
	// instance names this one where several share a store; empty: it is alone.
	instance string
}

// feedObjects tells what keys and values of a feed stand for, and makes values anew.
type feedObjects interface {
	history.Objects
	redact.Objects
}

// openFeedReaders makes history, sinks and redactions of the feed of s, if it has one.
func (a *api) openFeedReaders(cfg ControlPlaneConfig, s *storage, of fedObjects, log *slog.Logger) (err error) {
	if s.feed == nil {
		return nil
	}
	sealed := sealedGroups()
	a.history = history.New(history.Config{
		Feed: s.feed, Objects: of.objects, Kept: of.kept,
		Sealed: func(k *resource.Descriptor) bool { return slices.Contains(sealed, k.GroupResource()) },
	})
	a.sinks, err = sink.New(sink.Config{
		History: a.history, Cursors: s.cursors, Records: of.records,
		Source: fmt.Sprintf("//proxima/%s/%s", cfg.role(), cfg.site()), Known: a.knownToFeed, Logger: log.With("component", "sinks"), Metrics: s.metrics,
		Kinds: map[string]sink.Kind{pulsarsink.Name: pulsarsink.New(pulsarsink.Config{Objects: of.objects, Epoch: s.feed.Epoch(), Topic: cfg.topic()})},
	})
	if err != nil {
		return err
	}
	a.redactions, err = redact.New(redact.Config{
		Instance: of.instance, Feed: s.feed, Store: s.feed.Store(), Objects: of.objects, Records: of.records, Kind: a.fedKind,
		Memory: filepath.Join(of.memory, "feed-redactions.json"), Logger: log.With("component", "redactions"), Metrics: s.metrics,
	})
	return err
}

// fedObjects of a store that the API writes.
func (a *api) fedObjects(s *storage) (of fedObjects, err error) {
	stored, err := a.server.Stored()
	if err != nil {
		return of, err
	}
	kept := func(k *resource.Descriptor) bool {
		prefix := stored.Prefix(k, resource.Key{})
		return prefix != "" && !skipFromFeed(prefix)
	}
	of = fedObjects{objects: stored, kept: kept, records: feedRecords{sealed.NewRecords(s.store, s.keys)}, memory: s.dataDir}
	if s.shared() {
		of.instance = instanceName(a.address)
	}
	return of, nil
}

// topic of Pulsar that the feed is published to if no other is named: one per zone.
func (c *ControlPlaneConfig) topic() string {
	if c.role() == RoleZone {
		return "proxima-" + c.Zone
	}
	return "proxima"
}

// knownToFeed reports whether the feed has a resource, which is named as in "dataplanes.mesh.proxima.dev".
func (a *api) knownToFeed(name string) bool {
	return slices.ContainsFunc(kind.All(), func(d *resource.Descriptor) bool { return d.GroupResource().String() == name && a.history.Kept(d) })
}

// fedKind is the kind of a resource, if the feed has it.
func (a *api) fedKind(group, name string) *resource.Descriptor {
	for _, d := range kind.All() {
		if d.GVK.Group == group && d.Resource == name && a.history.Kept(d) {
			return d
		}
	}
	return nil
}

// adminRedactions are those of the API; nil, and not a nil *redact.Redactions, if there is none.
func (a *api) adminRedactions() admin.FeedRedactions {
	if a.redactions == nil {
		return nil
	}
	return a.redactions
}

// adminSinks are those of the API; nil, and not a nil *sink.Sinks, if there is none.
func (a *api) adminSinks() admin.FeedSinks {
	if a.sinks == nil {
		return nil
	}
	return a.sinks
}

// feedRecords are sinks and redactions, encrypted, as they have the keys of signatures and hashes.
type feedRecords struct{ *sealed.Records }

// Load implements sink.Records and redact.Records.
func (r feedRecords) Load(ctx context.Context, name string) ([]byte, error) {
	return r.Record(name).Simple().Load(ctx)
}

// Create implements sink.Records and redact.Records.
func (r feedRecords) Create(ctx context.Context, name string, data []byte) error {
	_, err := r.Record(name).Save(ctx, data, 0)
	return err
}

// Delete implements sink.Records.
func (r feedRecords) Delete(ctx context.Context, name string) error {
	return r.Record(name).Delete(ctx)
}

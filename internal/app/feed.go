package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/offload"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// FeedConfig configures the change feed of a control plane.
type FeedConfig struct {
	// Off: there is none. A store in memory has none either.
	Off bool
	// Roots are directories for segments; none: "feed" in the data directory. Copies of each segment, as there are roots.
	Roots  []string
	Copies int
	// Retention in bytes, 0: feed.DefaultRetention; MaxAge, 0: no bound.
	Retention int64
	MaxAge    time.Duration
	// Offload is a location of blob.Open for sealed segments; empty: there is none. OffloadAfter and OffloadRetention as in
	// feed.Config.
	Offload          string
	OffloadAfter     time.Duration
	OffloadRetention time.Duration

	lag time.Duration // tests; 0: replicaLag
}

// feedPrefix is that of the keys of objects.
const feedPrefix = "/registry/"

// unfed are the folders of objects that tell that somebody is alive, or what happened; they change without a change of state.
var unfed = []string{"/registry/leases/", "/registry/coordination.k8s.io/leases/", "/registry/events/", "/registry/events.k8s.io/events/"}

// roots are the directories for segments.
func (c *FeedConfig) roots(dataDir string) []string {
	if len(c.Roots) == 0 {
		return []string{filepath.Join(dataDir, "feed")}
	}
	return c.Roots
}

// openFeed opens the change feed of a store. actors tells who makes changes; nil: it is not known. offloader as in feed.Config.
func openFeed(ctx context.Context, cfg ControlPlaneConfig, s *storage, of store.Store, offloader *offload.Offloader, actors *feed.Actors) (*feed.Feed, error) {
	return feed.Open(ctx, feed.Config{
		Store: of, Prefix: feedPrefix, Skip: skipFromFeed, Actors: actors, ResourceOf: resourceOf(), Roots: cfg.Feed.roots(cfg.DataDir), Copies: cfg.Feed.Copies,
		Retention: cfg.Feed.Retention, MaxAge: cfg.Feed.MaxAge,
		Offload: offloader, OffloadAfter: cfg.Feed.OffloadAfter, OffloadRetention: cfg.Feed.OffloadRetention,
		Logger: s.log.With("component", "feed"), Metrics: s.metrics,
	})
}

// openOffload opens the place of offloaded segments; nil: there is none.
func openOffload(location, dataDir string, log *slog.Logger) (*offload.Offloader, error) {
	if location == "" {
		return nil, nil //nolint:nilnil // see above
	}
	target, err := blob.Open(location)
	if err != nil {
		return nil, fmt.Errorf("--feed-offload: %w", err)
	}
	return offload.New(offload.Config{Target: target, Cache: filepath.Join(dataDir, "feed-cache"), Logger: log.With("component", "feed")})
}

func skipFromFeed(key string) bool {
	for _, folder := range unfed {
		if strings.HasPrefix(key, folder) {
			return true
		}
	}
	return false
}

// resourceOf returns what tells the resource of a key: its plural, or "other" for what is no object of a kind.
func resourceOf() func(key string) string {
	folders := map[string]string{}
	for _, d := range kind.All() {
		folder := d.Resource
		if d.GVK.Group != "" {
			folder = d.GVK.Group + "/" + d.Resource
		}
		folders[folder] = d.Resource
	}
	return func(key string) string {
		first, rest, _ := strings.Cut(strings.TrimPrefix(key, feedPrefix), "/")
		second, _, _ := strings.Cut(rest, "/")
		return cmp.Or(folders[first], folders[first+"/"+second], "other")
	}
}

// actorOf a request is its user.
func actorOf(ctx context.Context) string {
	if who, ok := request.UserFrom(ctx); ok {
		return who.GetName()
	}
	return ""
}

// compactable is the revision up to which the history of the store is not needed.
func (s *storage) compactable() store.Revision {
	if s.feed == nil {
		return 1 << 62
	}
	return s.feed.Compactable()
}

// segments of the feed; nil: there is none.
func (s *storage) segments() admin.Segments {
	if s.feed == nil {
		return nil
	}
	return s.feed
}

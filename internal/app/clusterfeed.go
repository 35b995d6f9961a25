package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/mirror"
	"github.com/proxima-mesh/proxima/internal/feed/offload"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	secretstore "github.com/proxima-mesh/proxima/internal/store/secret"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

const (
	// mirrorFile has, in the first root of the feed, the copy of the cluster's objects that the feed follows.
	mirrorFile = "mirror.db"
	// feedObject is the Secret of what the feeds of all replicas share: sinks, how far they are, and redactions.
	feedObject = "proxima-feed"
	// sharedCursorEvery is the interval of writes to that Secret.
	sharedCursorEvery = 10 * time.Second
	// replicaLag is the default of clusterFeed.lag.
	replicaLag = 10 * time.Second
)

// clusterFeed is the change feed of a replica in a cluster. A nil one is none:
//
//	API of the cluster ──► mirror ──► copy (SQLite) ──► feed ──► history, sinks
//
// A cluster has no revision of all kinds, so positions are those of the copy, and of this replica alone. What replicas share
// is in a Secret; planner-only has no permission for that, and keeps it beside the copy.
type clusterFeed struct {
	*storage
	log     *slog.Logger
	objects *clusterObjects
	copy    store.Store
	mirror  *mirror.Mirror
	// shared is the Secret; nil: there is none.
	shared *secretstore.Store
	api    *api

	// lag is how much later than another replica one may see a change, at most, if it follows the cluster.
	lag time.Duration

	mu sync.Mutex
	// began is when the feed began to follow; complete is a time up to which it has all changes.
	began, complete time.Time
}

// openClusterFeed opens the feed of a replica that follows some kinds, for s and a; nil: there is none.
func openClusterFeed(ctx context.Context, cfg ControlPlaneConfig, s *storage, a *api, kinds []*resource.Descriptor, log *slog.Logger) (f *clusterFeed, err error) {
	if cfg.Feed.Off {
		return nil, nil //nolint:nilnil // see above
	}
	kinds = fedFromCluster(kinds)
	f = &clusterFeed{storage: s, api: a, log: log.With("component", "feed"), objects: &clusterObjects{mirror.NewObjects(kinds)}, lag: cmp.Or(cfg.Feed.lag, replicaLag)}
	defer func() {
		if err != nil {
			f.close()
			f = nil
		}
	}()
	client, err := kubeclient.New(clusterREST(cfg.Cluster), kinds)
	if err != nil {
		return f, err
	}
	offloader, err := openOffload(cfg.Feed.Offload, cfg.DataDir, s.log)
	if err != nil {
		return f, err
	}
	if f.copy, err = openMirror(ctx, cfg.Feed.roots(cfg.DataDir), offloader, f.log); err != nil {
		return f, err
	}
	f.mirror = mirror.New(mirror.Config{
		Client: kubeclient.NewStreamed(client, func(resource.Object) {}), Objects: f.objects.Objects, Store: f.copy, Logger: f.log,
	})
	if s.feed, err = openFeed(ctx, cfg, s, f.copy, offloader, nil); err != nil {
		return f, err
	}
	return f, f.openReaders(ctx, cfg)
}

// fedFromCluster are the kinds of which the feed has changes: never secrets, nor what tells only that somebody is alive.
func fedFromCluster(kinds []*resource.Descriptor) []*resource.Descriptor {
	var out []*resource.Descriptor
	for _, d := range kinds {
		if !slices.Contains([]*resource.Descriptor{kind.Secret, kind.GlobalSecret, kind.Lease, kind.Event, kind.ConfigMap}, d) && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// openReaders makes what reads the feed.
func (f *clusterFeed) openReaders(ctx context.Context, cfg ControlPlaneConfig) (err error) {
	var records store.Store = f.copy
	if cfg.Preset != PresetPlannerOnly {
		secrets, err := kubeclient.New(clusterREST(cfg.Cluster), []*resource.Descriptor{kind.Secret})
		if err != nil {
			return err
		}
		f.shared, err = secretstore.Open(ctx, secretstore.Config{
			Client: secrets, Key: resource.Key{Namespace: cfg.Namespace, Name: feedObject}, Logger: f.log,
		})
		if err != nil {
			return explainCluster(cfg.Cluster, err)
		}
		records = f.shared
	}
	f.cursors, err = cursor.New(ctx, cursor.Config{
		Store: records, Feed: f.feed, WriteEvery: sharedCursorEvery, Through: f.through, Elsewhere: f.elsewhere, Logger: f.log,
	})
	if err != nil {
		return err
	}
	of := fedObjects{objects: f.objects, kept: f.kept, records: feedRecords{sealed.NewRecords(records, unsealed{})}, memory: cfg.Feed.roots(cfg.DataDir)[0]}
	return f.api.openFeedReaders(cfg, f.storage, of, f.log)
}

func (f *clusterFeed) kept(d *resource.Descriptor) bool {
	return f.objects.Prefix(d, resource.Key{}) != ""
}

// openMirror opens the copy. One that is damaged is put aside: the cluster has what it had. A new one goes on above the positions that
// segments have already.
func openMirror(ctx context.Context, roots []string, tier *offload.Offloader, log *slog.Logger) (store.Store, error) {
	path := filepath.Join(roots[0], mirrorFile)
	if err := os.MkdirAll(roots[0], 0o700); err != nil {
		return nil, fmt.Errorf("--feed-root: %w", err)
	}
	opts := sqlite.Options{Logger: log, Recent: watch.Limits{Events: 4096, Bytes: 16 << 20}} // the feed is not behind for long
	s, err := sqlite.Open(ctx, path, opts)
	if errors.Is(err, store.ErrDamaged) {
		kept, replacing := sqlite.Replace(ctx, path, sqlite.Replacement{Force: true, Logger: log},
			func(context.Context, *sqlite.Store, store.Revision) error { return nil })
		if replacing != nil {
			return nil, errors.Join(err, replacing)
		}
		log.Warn("the copy of the cluster's objects that the change feed follows is damaged, and is made again", "kept", kept, "error", err)
		s, err = sqlite.Open(ctx, path, opts)
	}
	if err != nil {
		return nil, err
	}
	if now, err := s.Revision(ctx); err != nil || now > 0 {
		return s, err
	}
	o := seglog.Options{Roots: roots, Epoch: s.Epoch(), Logger: slog.New(slog.DiscardHandler)}
	if tier != nil {
		o.Tier = tier
	}
	segments, err := seglog.Open(o)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	_, end := segments.End()
	err = segments.Close()
	if err == nil && end > 0 {
		err = s.Restore(ctx, store.Revision(end), func(func(store.Record, error) bool) {})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// components that follow the cluster, and what the feed is read by.
func (f *clusterFeed) components() []component {
	if f == nil {
		return nil
	}
	out := []component{
		{Name: "copy of the cluster", Run: f.mirror.Run},
		{Name: "change feed", Run: f.run},
		{Name: "cursors", Run: f.cursors.Run},
		{Name: "compaction of the copy", Run: func(ctx context.Context) error { return compact(ctx, f.copy, f.compactable, f.log) }},
	}
	if f.shared != nil {
		out = append(out, component{Name: "records of the change feed", Run: f.shared.Run})
	}
	return append(out, f.api.followers()...)
}

// filledKey of the copy is there when the copy has had all that the cluster had.
const filledKey = "/proxima/mirror/filled"

// run the feed. What a new copy is filled with is no change.
func (f *clusterFeed) run(ctx context.Context) error {
	if err := f.fill(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	f.mu.Lock()
	f.began = time.Now()
	f.mu.Unlock()
	return f.feed.Run(ctx)
}

// fill waits until a new copy has all that the cluster has, and has the feed begin there.
func (f *clusterFeed) fill(ctx context.Context) error {
	if _, filled, _, err := f.copy.Get(ctx, filledKey, 0); err == nil && filled {
		return nil
	}
	select {
	case <-f.mirror.Listed():
	case <-ctx.Done():
		return nil
	}
	retry := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second}}
	for ctx.Err() == nil {
		now, err := f.copy.Revision(ctx)
		if err == nil {
			err = f.copy.Compact(ctx, now)
		}
		if err == nil {
			_, err = f.copy.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: filledKey, Value: []byte("{}")}}})
		}
		if err == nil {
			return nil
		}
		f.log.Warn("the change feed does not begin: its copy of the cluster is not written; it is tried again", "error", err)
		backoff.Sleep(ctx, retry.Next())
	}
	return nil
}

// through is a time up to which somebody who is at a position knows all changes.
func (f *clusterFeed) through(at seglog.Position) time.Time {
	known := f.upTo()
	if entries, err := f.feed.Log.Read(at).Poll(); err == nil && len(entries) > 0 && entries[0].Time.Before(known) {
		return entries[0].Time
	}
	return known
}

// upTo is a time up to which the feed has all changes of the cluster. It waits for the feed to come to what the copy has, for a second.
func (f *clusterFeed) upTo() time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	now := f.mirror.Complete()
	revision, err := f.copy.Revision(ctx)
	if err == nil {
		err = f.feed.Reach(ctx, seglog.Position(revision))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && now.After(f.complete) {
		f.complete = now
	}
	return f.complete
}

// elsewhere is where a cursor of another replica goes on here: where this feed was some seconds before the time up to which it has
// acknowledged all. What lies between is delivered again. 0: this feed does not reach so far.
func (f *clusterFeed) elsewhere(s *cursor.State) seglog.Position {
	f.mu.Lock()
	began := f.began
	f.mu.Unlock()
	if s.Through.IsZero() || began.IsZero() {
		return 0
	}
	at := f.feed.At
	t := s.Through.Add(-f.lag)
	if !t.Before(began) {
		at = f.feed.Log.Since // the feed is complete since then, also if nothing happened
	}
	position, err := at(t)
	if err != nil {
		return 0
	}
	return position
}

// serve adds the feed to what a control plane answers.
func (f *clusterFeed) serve(c *admin.Config) {
	if f == nil {
		return
	}
	c.History, c.Sinks, c.Redactions = f.api.history, f.api.adminSinks(), f.api.adminRedactions()
	c.Cursors, c.Segments, c.UnfollowedKinds = f.cursors, f.segments(), f.mirror.Texts
}

func (f *clusterFeed) close() {
	if f == nil {
		return
	}
	if f.feed != nil {
		_ = f.feed.Log.Close() // where it never ran
	}
	for _, s := range []store.Store{f.copy, f.secret()} {
		if s == nil {
			continue
		}
		if err := s.Close(); err != nil {
			f.log.Warn("the change feed did not close cleanly; what is missing is read from the cluster again", "error", err)
		}
	}
}

// secret is the shared store; nil, and not a nil *secretstore.Store, if there is none.
func (f *clusterFeed) secret() store.Store {
	if f.shared == nil {
		return nil
	}
	return f.shared
}

// clusterObjects are the objects of the copy, with the tables that our API makes of them.
type clusterObjects struct{ *mirror.Objects }

// Table implements history.Objects.
func (*clusterObjects) Table(ctx context.Context, kind *resource.Descriptor, objects []resource.Object) (*metav1.Table, error) {
	return apiserver.Table(ctx, kind, objects)
}

// feedPaths are those of the feed that the aggregated API has. Who follows the feed goes on at a position, which is of one replica; the
// API server asks any of them.
func feedPaths() []string {
	var out []string
	for _, path := range []string{admin.FeedStatusPath, admin.FeedHistoryPath, admin.FeedStatePath} {
		out = append(out, strings.TrimPrefix(path, "/proxima/v1/"))
	}
	return out
}

// clusterAccess decides who may read which objects in the change feed: what the cluster says of its users, and the kind of the
// credential for others. Answers of the cluster hold for accessTTL.
type clusterAccess struct {
	own      authorizer.UnconditionalAuthorizer
	reviewer extension.Reviewer
	known    *cache.LRUExpireCache
}

const (
	accessTTL = 10 * time.Second
	maxAccess = 4096
)

func newClusterAccess(own authorizer.UnconditionalAuthorizer, reviewer extension.Reviewer) *clusterAccess {
	return &clusterAccess{own: own, reviewer: reviewer, known: cache.NewLRUExpireCache(maxAccess)}
}

// Authorize implements authorizer.UnconditionalAuthorizer. Who may get all objects of a namespace is not asked for each.
func (a *clusterAccess) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if !fromCluster(ctx) {
		return a.own.Authorize(ctx, attrs)
	}
	names := []string{""}
	if attrs.GetName() != "" {
		names = append(names, attrs.GetName())
	}
	var reason string
	for _, name := range names {
		status, err := a.review(ctx, attrs, name)
		if err != nil {
			return authorizer.DecisionDeny, "the cluster could not be asked", err
		}
		if status.Allowed {
			return authorizer.DecisionAllow, status.Reason, nil
		}
		reason = cmp.Or(status.Reason, "no role of the cluster allows it")
	}
	return authorizer.DecisionDeny, reason, nil
}

func (a *clusterAccess) review(ctx context.Context, attrs authorizer.Attributes, name string) (status authorizationv1.SubjectAccessReviewStatus, err error) {
	who := attrs.GetUser()
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: attrs.GetVerb(), Group: attrs.GetAPIGroup(), Version: attrs.GetAPIVersion(), Resource: attrs.GetResource(),
			Namespace: attrs.GetNamespace(), Name: name,
		},
	}
	for k, values := range who.GetExtra() {
		spec.Extra[k] = values
	}
	key, err := json.Marshal(spec)
	if err != nil {
		return status, err
	}
	if known, ok := a.known.Get(string(key)); ok {
		return known.(authorizationv1.SubjectAccessReviewStatus), nil
	}
	if status, err = a.reviewer.ReviewAccess(ctx, spec); err == nil {
		a.known.Add(string(key), status, accessTTL)
	}
	return status, err
}

var _ history.Objects = (*clusterObjects)(nil)

package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

const (
	// defaultProgressInterval is etcd's --watch-progress-notify-interval as
	// kubeadm sets it: how old a quiet kind's bookmark may be.
	defaultProgressInterval = 5 * time.Second
	// sizeSample bounds how many values one Stats call reads for the average size.
	sizeSample = 500
	// primeKey is outside every path prefix that starts with a letter.
	primeKey = "/.origin"
)

// Config describes one resource. Store, Codec, NewFunc and ResourcePrefix are
// required.
type Config struct {
	Store store.Store
	Codec runtime.Codec
	// Transformer encrypts values; nil: stored as encoded.
	Transformer value.Transformer
	// NewFunc makes an empty object, for bookmarks.
	NewFunc func() runtime.Object
	// ResourcePrefix starts every key that callers pass: "/services/specs".
	ResourcePrefix string
	GroupResource  schema.GroupResource
	// PathPrefix is put before every key in the store: "/registry".
	PathPrefix string
	// Compact as in RESTConfig; nil: objects stay as they were decoded.
	Compact func(runtime.Object)
	// Tracer as in RESTConfig.
	Tracer *tracing.Recorder
	// ProgressInterval between bookmarks of watches that ask for progress; 0: 5 s.
	ProgressInterval time.Duration
}

// Storage implements storage.Interface for one resource. It has no goroutines of
// its own besides those of open watches, and nothing to close. Writes return
// when the store holds them durably; reads go to the store every time.
type Storage struct {
	*Resource
	store            store.Store
	newFunc          func() runtime.Object
	compact          func(runtime.Object)
	tracer           *tracing.Recorder
	kind             string // for tracer
	progressInterval time.Duration
	sampleSizes      atomic.Bool
	unreadable       atomic.Pointer[error] // of the last list of the resource; see Unreadable

	// kept is what the watch cache has, began when the clock of its events begins.
	kept    kept
	began   time.Time
	written written

	mu sync.Mutex
	// followers are the watches that want progress; guarded by mu.
	followers map[*watcher]struct{}
}

var _ storage.Interface = (*Storage)(nil)

// New makes the storage of one resource. It does no I/O.
func New(cfg Config) (*Storage, error) {
	r, err := newResource(cfg.GroupResource, cfg.PathPrefix, cfg.ResourcePrefix, cfg.Codec, cfg.Transformer)
	if err != nil {
		return nil, err
	}
	if cfg.Store == nil || cfg.NewFunc == nil {
		return nil, fmt.Errorf("resource %s: Store and NewFunc are required", cfg.GroupResource)
	}
	if cfg.Compact == nil {
		cfg.Compact = func(runtime.Object) {}
	}
	if cfg.ProgressInterval == 0 {
		cfg.ProgressInterval = defaultProgressInterval
	}
	r.corruptible = utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	kind := ""
	if cfg.Tracer.On() {
		kind = reflect.TypeOf(cfg.NewFunc()).Elem().Name()
	}
	return &Storage{
		tracer: cfg.Tracer, kind: kind,
		Resource:         r,
		store:            cfg.Store,
		newFunc:          cfg.NewFunc,
		compact:          cfg.Compact,
		progressInterval: cfg.ProgressInterval,
		followers:        map[*watcher]struct{}{},
		kept:             kept{objects: map[types.UID]runtime.Object{}},
		began:            time.Now(),
	}, nil
}

// Prime makes sure that the store has a revision. An empty store is at revision
// 0, but to API clients resource version 0 means "any", so lists of an empty
// store could not be watched from. Idempotent; safe with several instances.
func Prime(ctx context.Context, s store.Store) error {
	rev, err := s.Revision(ctx)
	if err != nil {
		return fmt.Errorf("prime store: %w", err)
	}
	if rev > 0 {
		return nil
	}
	_, err = s.Commit(ctx, store.Txn{
		Conditions: []store.Condition{{Key: primeKey}},
		Ops:        []store.Op{{Kind: store.Put, Key: primeKey, Value: []byte(s.Epoch())}},
	})
	var conflict *store.ConflictError
	if err != nil && !errors.As(err, &conflict) {
		return fmt.Errorf("prime store: %w", err)
	}
	return nil
}

// Versioner implements storage.Interface.
func (s *Storage) Versioner() storage.Versioner { return s.versioner }

// fullKey checks a caller's key and puts the path prefix before it.
func (s *Storage) fullKey(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(s.prefix, key, recursive)
	if err != nil {
		return "", err
	}
	return s.pathPrefix + key[1:], nil
}

// Get implements storage.Interface. It always reads the newest state.
func (s *Storage) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	key, err := s.fullKey(key, false)
	if err != nil {
		return err
	}
	rec, ok, at, err := s.store.Get(ctx, key, 0)
	if err != nil {
		return storageError("get", key, err)
	}
	if err := s.notOlder(opts.ResourceVersion, at); err != nil {
		return err
	}
	if !ok {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	err = s.Decode(ctx, rec, out)
	var corrupt *CorruptError
	if s.corruptible && errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(key, corrupt)
	}
	return err
}

// Unreadable is why objects of the resource could not be listed when they were last: stored
// data is damaged. nil: they could, or it failed for another reason.
func (s *Storage) Unreadable() error {
	if err := s.unreadable.Load(); err != nil {
		return *err
	}
	return nil
}

// noteList remembers what a list found. One of a part of the resource proves nothing of the rest.
func (s *Storage) noteList(prefix string, more, broken bool, err error) {
	switch {
	case broken, errors.Is(err, store.ErrDamaged):
		s.unreadable.Store(&err)
	case err == nil && !more && prefix == s.pathPrefix+s.prefix[1:]:
		s.unreadable.Store(nil)
	}
}

// notOlder checks a read at a revision against the oldest that the caller takes.
func (s *Storage) notOlder(minimum string, at store.Revision) error {
	if minimum == "" {
		return nil
	}
	rv, err := s.versioner.ParseResourceVersion(minimum)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if rv > uint64(at) {
		return storage.NewTooLargeResourceVersionError(rv, uint64(at), 0)
	}
	return nil
}

// Stats implements storage.Interface. The count is exact. The average size, if
// enabled, is that of the first 500 objects in key order: it steers the cost
// estimate of lists and need not be exact.
func (s *Storage) Stats(ctx context.Context) (storage.Stats, error) {
	prefix := s.pathPrefix + s.prefix[1:]
	if !s.sampleSizes.Load() {
		n, err := s.store.Count(ctx, prefix)
		return storage.Stats{ObjectCount: n}, storageError("count", prefix, err)
	}
	page, err := s.store.List(ctx, store.ListOptions{Prefix: prefix, Limit: sizeSample})
	if err != nil {
		return storage.Stats{}, storageError("count", prefix, err)
	}
	stats := storage.Stats{ObjectCount: int64(len(page.Records)) + page.Remaining}
	for _, rec := range page.Records {
		stats.EstimatedAverageObjectSizeBytes += int64(len(rec.Value))
	}
	if n := int64(len(page.Records)); n > 0 {
		stats.EstimatedAverageObjectSizeBytes /= n
	}
	return stats, nil
}

// EnableResourceSizeEstimation implements storage.Interface. The function is not
// called: counting keys in the store is cheaper than listing them in the cache.
func (s *Storage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("resource size estimation: no function to list keys")
	}
	if !s.sampleSizes.CompareAndSwap(false, true) {
		return errors.New("resource size estimation: enabled twice")
	}
	return nil
}

// ReadinessCheck implements storage.Interface. It blocks for at most upstream's
// timeout of a readiness probe.
func (s *Storage) ReadinessCheck() error {
	ctx, cancel := context.WithTimeout(context.Background(), storagebackend.DefaultReadinessTimeout)
	defer cancel()
	return s.store.Ready(ctx)
}

// GetCurrentResourceVersion implements storage.Interface. The watch cache calls
// it to serve a consistent list and then waits until it has seen that revision.
// If the last change was of another resource, the cache reaches the revision only by
// a progress marker, which it requests every 100 ms; requesting one here saves that wait.
func (s *Storage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rev, err := s.store.Revision(ctx)
	if err != nil {
		return 0, storageError("read the revision of", s.prefix, err)
	}
	if rev == 0 {
		return 0, storage.NewInternalError(errors.New("the store has no revision yet: it was not primed"))
	}
	s.requestProgress()
	return uint64(rev), nil
}

// RequestWatchProgress implements storage.Interface: every open watch with progress
// notifications gets a bookmark at the store's global revision. Does not block.
func (s *Storage) RequestWatchProgress(context.Context) error {
	s.requestProgress()
	return nil
}

func (s *Storage) requestProgress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.followers {
		w.requestProgress()
	}
}

// CompactRevision implements storage.Interface.
func (s *Storage) CompactRevision() int64 { return int64(s.store.Compacted()) }

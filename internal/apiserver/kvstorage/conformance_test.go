package kvstorage_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/postgres"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// backends are the stores that the suite runs on.
var backends = map[string]func(testing.TB) store.Store{
	"memory": func(t testing.TB) store.Store {
		s := memory.New(memory.Options{})
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"sqlite": func(t testing.TB) store.Store {
		s, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"postgres": func(t testing.TB) store.Store {
		s, err := postgres.Open(context.Background(), testkit.Postgres(t), postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
}

// check is one function of upstream's suite.
type check struct {
	name string
	run  func(*testing.T, *bed)
	opts bedOptions
	// gates are set for the check, which then runs in parallel only with itself on
	// other stores. nil: it runs in parallel with all others.
	gates map[featuregate.Feature]bool
	// alone: it does not run in parallel, not even with itself on another store: it
	// sets gates itself, or is sensitive to timing.
	alone bool
	// notCached is why the check does not apply to a cached storage.
	notCached string
	// notBare is why the check does not apply to a bare storage.
	notBare string
}

var (
	unsafeDelete = map[featuregate.Feature]bool{features.AllowUnsafeMalformedObjectDeletion: true}
	safeDelete   = map[featuregate.Feature]bool{features.AllowUnsafeMalformedObjectDeletion: false}
	noSnapshots  = map[featuregate.Feature]bool{features.ListFromCacheSnapshot: false}
	errCorrupt   = &kvstorage.CorruptError{Err: errors.New("bits flipped")}
)

const (
	ownReads      = "it makes reads of the store fail; the cache goes on with what it read before"
	ownSuggestion = "it suggests an outdated object; the cache puts its own in place of a caller's suggestion"
	wholeList     = "it expects a page for resource version 0; the cache answers that with the whole list"
)

var checks = []check{
	{name: "Create", run: func(t *testing.T, b *bed) { storagetesting.RunTestCreate(b.ctx, t, b, b.stored) }},
	{name: "CreateWithTTL", run: func(t *testing.T, b *bed) { storagetesting.RunTestCreateWithTTL(b.ctx, t, b) }},
	{name: "CreateWithKeyExist", run: func(t *testing.T, b *bed) { storagetesting.RunTestCreateWithKeyExist(b.ctx, t, b) }},
	// Get's object lives for a second, too short to run in parallel with the rest.
	{name: "Get", gates: map[featuregate.Feature]bool{}, run: func(t *testing.T, b *bed) { storagetesting.RunTestGet(b.ctx, t, b) }},
	{name: "UnconditionalDelete", run: func(t *testing.T, b *bed) { storagetesting.RunTestUnconditionalDelete(b.ctx, t, b) }},
	{name: "ConditionalDelete", run: func(t *testing.T, b *bed) { storagetesting.RunTestConditionalDelete(b.ctx, t, b) }},
	{name: "DeleteWithSuggestion", run: func(t *testing.T, b *bed) { storagetesting.RunTestDeleteWithSuggestion(b.ctx, t, b) }},
	{name: "DeleteWithSuggestionAndConflict", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteWithSuggestionAndConflict(b.ctx, t, b)
	}},
	{name: "DeleteWithConflict", run: func(t *testing.T, b *bed) { storagetesting.RunTestDeleteWithConflict(b.ctx, t, b) }},
	{name: "DeleteWithSuggestionOfDeletedObject", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteWithSuggestionOfDeletedObject(b.ctx, t, b)
	}},
	{name: "ValidateDeletionWithSuggestion", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestValidateDeletionWithSuggestion(b.ctx, t, b)
	}},
	{name: "ValidateDeletionWithOnlySuggestionValid", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestValidateDeletionWithOnlySuggestionValid(b.ctx, t, b)
	}},
	{name: "PreconditionalDeleteWithSuggestion", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestPreconditionalDeleteWithSuggestion(b.ctx, t, b)
	}},
	{name: "PreconditionalDeleteWithOnlySuggestionPass", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass(b.ctx, t, b)
	}},
	{name: "DeleteWithConflictAndMissingExpectedTransformError", gates: unsafeDelete, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(b.ctx, t, b, b.failTransform)
	}},
	{name: "DeleteWithConflictAndMissingExpectedDecodeError", gates: unsafeDelete, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(b.ctx, t, b, b.fail.fail.Store)
	}},
	{name: "DeleteExpectedTransformError", gates: unsafeDelete, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(b.ctx, t, b, b.failTransform)
	}},
	{name: "DeleteExpectedDecodeError", gates: unsafeDelete, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(b.ctx, t, b, b.fail.fail.Store)
	}},
	{name: "DeleteWithSuggestionAndMissingExpectedError", gates: unsafeDelete, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(b.ctx, t, b)
	}},
	{name: "GuaranteedUpdate", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGuaranteedUpdate(b.ctx, t, b, b.stored)
	}},
	{name: "GuaranteedUpdateWithTTL", run: func(t *testing.T, b *bed) { storagetesting.RunTestGuaranteedUpdateWithTTL(b.ctx, t, b) }},
	{name: "GuaranteedUpdateChecksStoredData", notCached: ownSuggestion, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(b.ctx, t, b)
	}},
	{name: "GuaranteedUpdateWithConflict", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGuaranteedUpdateWithConflict(b.ctx, t, b)
	}},
	{name: "GuaranteedUpdateWithSuggestionAndConflict", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict(b.ctx, t, b)
	}},
	{name: "TransformationFailure", notCached: ownReads, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestTransformationFailure(b.ctx, t, b)
	}},
	{name: "List", run: runList},
	{name: "ListWithoutSnapshots", gates: noSnapshots, run: runList},
	{name: "ConsistentList", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestConsistentList(b.ctx, t, b, b.increaseRV, b.cached, true, b.cached)
	}},
	{name: "ConsistentListWithoutSnapshots", gates: noSnapshots, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestConsistentList(b.ctx, t, b, b.increaseRV, b.cached, true, false)
	}},
	{name: "ListPaging", run: func(t *testing.T, b *bed) { storagetesting.RunTestListPaging(b.ctx, t, b) }},
	{name: "GetListNonRecursive", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGetListNonRecursive(b.ctx, t, b.increaseRV, b)
	}},
	{name: "GetListRecursivePrefix", run: func(t *testing.T, b *bed) { storagetesting.RunTestGetListRecursivePrefix(b.ctx, t, b) }},
	{name: "GetListWithErrorAggregation", gates: unsafeDelete, notCached: ownReads, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGetListWithErrorAggregation(b.ctx, t, b, errCorrupt)
	}},
	{name: "GetListWithoutErrorAggregation", gates: safeDelete, notCached: ownReads, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestGetListWithoutErrorAggregation(b.ctx, t, b, errCorrupt)
	}},
	{name: "ListContinuation", run: func(t *testing.T, b *bed) { storagetesting.RunTestListContinuation(b.ctx, t, b, b.calls) }},
	{name: "ListPaginationRareObject", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestListPaginationRareObject(b.ctx, t, b, b.calls)
	}},
	{name: "ListContinuationWithFilter", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestListContinuationWithFilter(b.ctx, t, b, b.calls)
	}},
	{name: "ListInconsistentContinuation", notCached: wholeList, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestListInconsistentContinuation(b.ctx, t, b, b.compact)
	}},
	{name: "ListResourceVersionMatch", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestListResourceVersionMatch(b.ctx, t, b)
	}},
	{name: "NamespaceScopedList", opts: bedOptions{indexed: true}, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestNamespaceScopedList(b.ctx, t, b)
	}},
	{name: "CompactRevision", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestCompactRevision(b.ctx, t, b, b.increaseRV, b.compact)
	}},
	{name: "KeySchema", run: func(t *testing.T, b *bed) { storagetesting.RunTestKeySchema(b.ctx, t, b) }},
	{name: "Stats", gates: map[featuregate.Feature]bool{features.SizeBasedListCostEstimate: false}, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestStats(b.ctx, t, b, b.codec, b.prefix, false)
	}},
	{name: "StatsWithSize", run: func(t *testing.T, b *bed) {
		if !b.cached { // the cache does it
			if err := b.bare.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
		}
		storagetesting.RunTestStats(b.ctx, t, b, b.codec, b.prefix, true)
	}},
	{name: "Watch", run: func(t *testing.T, b *bed) { storagetesting.RunTestWatch(b.ctx, t, b) }},
	{name: "WatchFromZero", run: func(t *testing.T, b *bed) {
		compact := b.compact
		if b.cached {
			// The cache's history can be compacted through its unexported fields
			// only. Without a function the check skips its second half.
			compact = nil
		}
		storagetesting.RunTestWatchFromZero(b.ctx, t, b, compact)
	}},
	{name: "DeleteTriggerWatch", run: func(t *testing.T, b *bed) { storagetesting.RunTestDeleteTriggerWatch(b.ctx, t, b) }},
	{name: "WatchFromNonZero", run: func(t *testing.T, b *bed) { storagetesting.RunTestWatchFromNonZero(b.ctx, t, b) }},
	{name: "DelayedWatchDelivery", alone: true,
		run: func(t *testing.T, b *bed) { storagetesting.RunTestDelayedWatchDelivery(b.ctx, t, b.paced(t)) }},
	{name: "WatchError", notCached: ownReads, run: func(t *testing.T, b *bed) { storagetesting.RunTestWatchError(b.ctx, t, b) }},
	{name: "WatchWithUnsafeDelete", gates: unsafeDelete, notCached: ownReads, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestWatchWithUnsafeDelete(b.ctx, t, b, errCorrupt)
	}},
	{name: "WatchErrorIsBlockingFurtherEvents", notCached: ownReads, run: func(t *testing.T, b *bed) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(b.ctx, t, b)
	}},
	{name: "WatchContextCancel", run: func(t *testing.T, b *bed) { storagetesting.RunTestWatchContextCancel(b.ctx, t, b) }},
	{name: "WatcherTimeout", run: func(t *testing.T, b *bed) { storagetesting.RunTestWatcherTimeout(b.ctx, t, b) }},
	{name: "WatchDeleteEventObjectHaveLatestRV", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(b.ctx, t, b)
	}},
	{name: "WatchInitializationSignal", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestWatchInitializationSignal(b.ctx, t, b)
	}},
	{
		name: "ProgressNotify", opts: bedOptions{progress: 50 * time.Millisecond},
		notCached: "the option is for the cache itself, which takes no notice of it from its own callers",
		run:       func(t *testing.T, b *bed) { storagetesting.RunOptionalTestProgressNotify(b.ctx, t, b, b.increaseRV) },
	},
	{name: "WatchDispatchBookmarkEvents", run: func(t *testing.T, b *bed) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(b.ctx, t, b, b.cached)
	}},
	{
		name: "OptionalWatchBookmarksWithCorrectResourceVersion", notBare: "periodic bookmarks are the cache's, not the storage's",
		run: func(t *testing.T, b *bed) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(b.ctx, t, b)
		},
	},
	{name: "ClusterScopedWatch", opts: bedOptions{clusterScoped: true, indexed: true}, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestClusterScopedWatch(b.ctx, t, b)
	}},
	{name: "NamespaceScopedWatch", opts: bedOptions{indexed: true}, run: func(t *testing.T, b *bed) {
		storagetesting.RunTestNamespaceScopedWatch(b.ctx, t, b)
	}},
	{name: "SendInitialEventsBackwardCompatibility", run: func(t *testing.T, b *bed) {
		storagetesting.RunSendInitialEventsBackwardCompatibility(b.ctx, t, b)
	}},
	{name: "WatchSemantics", alone: true, run: func(t *testing.T, b *bed) {
		storagetesting.RunWatchSemantics(b.ctx, t, b.seen())
	}},
	{name: "WatchSemanticInitialEventsExtended", alone: true, run: func(t *testing.T, b *bed) {
		storagetesting.RunWatchSemanticInitialEventsExtended(b.ctx, t, b.seen())
	}},
	{name: "WatchListMatchSingle", alone: true, run: func(t *testing.T, b *bed) {
		storagetesting.RunWatchListMatchSingle(b.ctx, t, b.seen())
	}},
}

func runList(t *testing.T, b *bed) {
	if b.cached {
		t.Log("upstream leaves a case out without a word: " + wholeList)
	}
	storagetesting.RunTestList(b.ctx, t, b, b.compact, b.cached, b.store.lists)
}

// TestConformance runs upstream's suite on the bare storage and through the watch
// cache. Feature gates are global, so checks that set any run one after the other,
// before the rest. Most of them wait more than they compute.
func TestConformance(t *testing.T) {
	for _, global := range []bool{true, false} {
		t.Run(fmt.Sprintf("global=%v", global), func(t *testing.T) {
			for _, c := range checks {
				if global == (c.alone || c.gates != nil) {
					t.Run(c.name, func(t *testing.T) { c.test(t, global) })
				}
			}
		})
	}
}

func (c check) test(t *testing.T, global bool) {
	if !global {
		t.Parallel()
	}
	for gate, on := range c.gates {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
	}
	for backend, open := range backends {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cached=%v", backend, cached), func(t *testing.T) {
				if reason := c.skipped(cached); reason != "" {
					t.Skip(reason)
				}
				if !c.alone {
					t.Parallel()
				}
				opts := c.opts
				opts.cached = cached
				c.run(t, newBed(t, open, opts))
			})
		}
	}
}

func (c check) skipped(cached bool) string {
	if cached {
		return c.notCached
	}
	return c.notBare
}

// calls checks how many reads of the store a list took: pages double while a
// selector drops objects.
func (b *bed) calls(t *testing.T, pageSize, processed uint64) {
	if b.cached {
		return // the cache answers most of them
	}
	if got := b.prefix.GetReadsAndReset(); got != processed {
		t.Errorf("%d values were read, want %d", got, processed)
	}
	want := uint64(1)
	for size, sum := pageSize, uint64(1); pageSize != 0 && sum < processed; want++ {
		size = min(2*size, 10000)
		sum += size
	}
	if got := b.store.reads.Swap(0); got != want {
		t.Errorf("%d lists of the store, want %d", got, want)
	}
}

// seen returns a storage whose Create returns when the cache shows the object.
func (b *bed) seen() storage.Interface {
	if !b.cached {
		return b
	}
	return seenCreate{b}
}

type seenCreate struct{ *bed }

func (s seenCreate) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.bed.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, wait.ForeverTestTimeout, true, func(ctx context.Context) (bool, error) {
		cached := &example.Pod{}
		err := s.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, cached)
		if storage.IsNotFound(err) {
			return false, nil
		}
		return err == nil && equality.Semantic.DeepEqual(cached, out), err
	})
}

// paced returns a storage whose updates wait until the cache has delivered as many
// events as the watch can buffer. The check fills the buffers of a watch without a
// reader, and the cache closes a watch whose goroutine was not scheduled in time once
// they are full.
func (b *bed) paced(t *testing.T) storage.Interface {
	if !b.cached {
		return b
	}
	return &pacedUpdates{bed: b, t: t}
}

type pacedUpdates struct {
	*bed
	t       *testing.T
	watcher watch.Interface
	updates int
}

func (p *pacedUpdates) Watch(ctx context.Context, key string, opts storage.ListOptions) (w watch.Interface, err error) {
	p.watcher, err = p.bed.Watch(ctx, key, opts)
	return p.watcher, err
}

func (p *pacedUpdates) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	pre *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if err := p.bed.GuaranteedUpdate(ctx, key, out, ignoreNotFound, pre, update, cached); err != nil {
		return err
	}
	p.updates++
	// Events come by way of an input buffer and the hands of the watch's goroutine
	// into the buffer of results.
	results := p.watcher.ResultChan()
	input := reflect.ValueOf(p.watcher).Elem().FieldByName("input")
	if !input.IsValid() {
		p.t.Fatalf("%T is not the watch of upstream's cache any more", p.watcher)
	}
	return wait.PollUntilContextTimeout(ctx, time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
		return len(results) >= min(p.updates, cap(results)) && input.Len() <= max(0, p.updates-cap(results)-1), nil
	})
}

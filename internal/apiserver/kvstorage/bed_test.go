package kvstorage_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/store"
)

// valuePrefix marks every stored value, so that a value that went past the
// transformer is seen.
const valuePrefix = "sealed!"

var pods = schema.GroupResource{Resource: "pods"}

func newPod() runtime.Object     { return &example.Pod{} }
func newPodList() runtime.Object { return &example.PodList{} }

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	return scheme
}

// jsonCodec and protoCodec are the two ways in which objects are stored.
func jsonCodec() runtime.Codec {
	return serializer.NewCodecFactory(newScheme()).LegacyCodec(examplev1.SchemeGroupVersion)
}

func protoCodec() runtime.Codec {
	scheme := newScheme()
	pb := protobuf.NewSerializer(scheme, scheme)
	return serializer.NewCodecFactory(scheme).CodecForVersions(pb, pb, schema.GroupVersions{examplev1.SchemeGroupVersion}, nil)
}

// bed is a storage to test with everything below and around it.
type bed struct {
	storage.Interface // bare or cached

	ctx    context.Context
	store  *recordingStore
	bare   *kvstorage.Storage
	codec  runtime.Codec
	sealer *swapTransformer
	prefix *storagetesting.PrefixTransformer
	fail   *failingCodec
	cached bool
	timer  *compactorClock
}

type bedOptions struct {
	cached        bool
	clusterScoped bool
	indexed       bool
	wrap          func(store.Store) store.Store
	progress      time.Duration
}

// newBed builds a storage on a store, which it closes with the test.
func newBed(t *testing.T, open func(testing.TB) store.Store, opts bedOptions) *bed {
	t.Helper()
	kvstorage.DeclareWatchProgress()
	inner := open(t)
	if opts.wrap != nil {
		inner = opts.wrap(inner)
	}
	b := &bed{
		ctx:    t.Context(),
		store:  &recordingStore{Store: inner, lists: storagetesting.NewKubernetesRecorder(noEtcd{})},
		prefix: storagetesting.NewPrefixTransformer([]byte(valuePrefix), false),
		sealer: &swapTransformer{},
		cached: opts.cached,
	}
	b.sealer.set(b.prefix)
	if err := kvstorage.Prime(b.ctx, b.store); err != nil {
		t.Fatal(err)
	}
	pathPrefix := ""
	b.fail = &failingCodec{Codec: jsonCodec()}
	if opts.cached { // as upstream's suite has it
		pathPrefix = "/registry"
		b.fail.Codec = protoCodec()
	}
	b.codec = b.fail
	var err error
	b.bare, err = kvstorage.New(kvstorage.Config{
		Store: b.store, Codec: b.codec, Transformer: b.sealer, NewFunc: newPod,
		ResourcePrefix: "/pods/", GroupResource: pods, PathPrefix: pathPrefix,
		ProgressInterval: opts.progress,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Interface = b.bare
	if opts.cached {
		b.Interface = b.newCache(t, opts)
	}
	return b
}

// newCache puts the watch cache in front and waits until it is filled. As
// upstream's suite does, it lets the first list fail.
func (b *bed) newCache(t *testing.T, opts bedOptions) *cacher.CacheDelegator {
	t.Helper()
	flaky := &storagetesting.StorageInjectingListErrors{Interface: b.bare, Errors: 1}
	if clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) {
		flaky.Errors = 0 // the cache starts with a watch and never lists
	}
	b.timer = &compactorClock{fire: make(chan time.Time)}
	cfg := cacher.Config{
		Storage: flaky, Versioner: storage.APIObjectVersioner{}, GroupResource: pods,
		EventsHistoryWindow: cacher.DefaultEventFreshDuration, ResourcePrefix: "/pods/",
		KeyFunc:      func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", obj) },
		GetAttrsFunc: podAttrs, NewFunc: newPod, NewListFunc: newPodList,
		Indexers: &cache.Indexers{}, Codec: b.codec, Clock: b.timer,
	}
	if opts.clusterScoped {
		cfg.KeyFunc = func(obj runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc("/pods/", obj) }
	}
	if opts.indexed {
		cfg.IndexerFuncs = storage.IndexerFuncs{
			"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName },
		}
		cfg.Indexers = &cache.Indexers{
			"f:spec.nodeName":      func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Spec.NodeName}, nil },
			"f:metadata.namespace": func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Namespace}, nil },
		}
	}
	front, err := cacher.NewCacherFromConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	delegator := cacher.NewCacheDelegator(front, flaky)
	t.Cleanup(func() {
		delegator.Stop()
		front.Stop()
	})
	if err := wait.PollUntilContextTimeout(b.ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return flaky.ErrorsConsumed()
	}); err != nil {
		t.Fatalf("first list of the cache: %v", err)
	}
	if err := front.Wait(b.ctx); err != nil {
		t.Fatal(err)
	}
	return delegator
}

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy), "status.phase": string(pod.Status.Phase),
	}, nil
}

// increaseRV makes a change outside the resource.
func (b *bed) increaseRV(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	rev, err := b.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/elsewhere", Value: []byte("x")}}})
	if err != nil {
		t.Fatal(err)
	}
	return int64(rev)
}

// compact compacts the store and, like etcd's compactor, writes a marker that takes
// one revision. It returns when the cache has seen it.
func (b *bed) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rev, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.store.Compact(ctx, store.Revision(rev)); err != nil {
		t.Fatal(err)
	}
	b.increaseRV(ctx, t)
	for b.CompactRevision() != rev {
		b.timer.fire <- time.Now()
	}
}

// stored checks the value in the store under a key.
func (b *bed) stored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	if b.cached {
		key = "/registry" + key
	}
	rec, ok, _, err := b.store.Get(ctx, key, 0)
	if err != nil || !ok {
		t.Fatalf("get %s: found %v, error %v", key, ok, err)
	}
	obj, err := runtime.Decode(b.codec, rec.Value[len(valuePrefix):])
	if err != nil {
		t.Fatalf("%s holds %q: %v", key, rec.Value, err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("%s holds resourceVersion %q and selfLink %q, want neither", key, pod.ResourceVersion, pod.SelfLink)
	}
}

// UpdatePrefixTransformer and UpdateTransformer let upstream's tests change how
// values are read while the storage runs.
func (b *bed) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	return b.UpdateTransformer(func(value.Transformer) value.Transformer {
		return modify(storagetesting.NewPrefixTransformer([]byte(valuePrefix), false))
	})
}

func (b *bed) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	before := b.sealer.get()
	b.sealer.set(modify(before))
	return func() { b.sealer.set(before) }
}

type swapTransformer struct{ current atomic.Value }

type transformerBox struct{ value.Transformer }

func (s *swapTransformer) get() value.Transformer {
	return s.current.Load().(transformerBox).Transformer
}
func (s *swapTransformer) set(t value.Transformer) { s.current.Store(transformerBox{t}) }

func (s *swapTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, dataCtx)
}

func (s *swapTransformer) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, dataCtx)
}

// failing makes reads through the transformer fail.
func (b *bed) failTransform(fail bool) {
	if fail {
		b.sealer.set(brokenReads{b.prefix})
	} else {
		b.sealer.set(b.prefix)
	}
}

type brokenReads struct{ value.Transformer }

func (brokenReads) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, fmt.Errorf("synthetic error")
}

type failingCodec struct {
	runtime.Codec
	fail      atomic.Bool
	decodings atomic.Int64
}

func (c *failingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decodings.Add(1)
	if c.fail.Load() {
		return nil, nil, fmt.Errorf("synthetic error")
	}
	return c.Codec.Decode(data, defaults, into)
}

// recordingStore counts reads and reports each list to upstream's recorder.
type recordingStore struct {
	store.Store
	reads atomic.Uint64
	lists *storagetesting.KubernetesRecorder
}

func (s *recordingStore) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	s.reads.Add(1)
	_, _ = s.lists.List(ctx, opts.Prefix, kubernetes.ListOptions{Revision: int64(opts.At), Limit: int64(opts.Limit), Continue: opts.From})
	return s.Store.List(ctx, opts)
}

// noEtcd answers the recorder, which passes calls on.
type noEtcd struct{ kubernetes.Interface }

func (noEtcd) List(context.Context, string, kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	return kubernetes.ListResponse{}, nil
}

// compactorClock is the real clock, except that the watch cache's compactor,
// recognised by its period, runs only when triggered by the test.
type compactorClock struct {
	clock.RealClock
	fire chan time.Time
}

// compactorPeriod is compactorPollPeriod of k8s.io/apiserver/pkg/storage/cacher.
const compactorPeriod = 15 * time.Second

func (c *compactorClock) NewTimer(d time.Duration) clock.Timer {
	if d == compactorPeriod {
		return manualTimer{c.fire}
	}
	return c.RealClock.NewTimer(d)
}

type manualTimer struct{ fire chan time.Time }

func (m manualTimer) C() <-chan time.Time    { return m.fire }
func (manualTimer) Stop() bool               { return true }
func (manualTimer) Reset(time.Duration) bool { return true }

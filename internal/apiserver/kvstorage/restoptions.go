package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// RESTConfig defines how all resources of one server are stored. Store and Codec
// are required. The functions are called once per resource and must be pure.
type RESTConfig struct {
	// Store is owned by the caller, who closes it after every registry was
	// destroyed. It is never closed here.
	Store store.Store
	// Codec to store a resource with.
	Codec func(schema.GroupResource) (runtime.Codec, error)
	// Transformer encrypts a resource; nil, or a nil result: stored as encoded.
	Transformer func(schema.GroupResource) value.Transformer
	// ResourcePrefix is the folder of a resource, starting with "/"; nil: the
	// group (none for core) and the resource. Two resources with one folder share
	// their objects.
	ResourcePrefix func(schema.GroupResource) string
	// PathPrefix comes before all folders; empty: "/registry".
	PathPrefix string
	// Uncached resources are read from the store at every request. For those that
	// are written often and seldom read, such as events.
	Uncached func(schema.GroupResource) bool
	// Compact makes an object small that was just decoded for a list or a watch, and that
	// nobody else has; the watch cache keeps it. May be nil.
	Compact func(runtime.Object)
	// Tracer is told of each change of an object; nil: tracing is off.
	Tracer *tracing.Recorder
	// DeleteCollectionWorkers at most delete one collection; 0: 1.
	DeleteCollectionWorkers int
	// CountPeriod is how often objects are counted, for metrics and for the cost
	// estimates of lists; 0: never.
	CountPeriod time.Duration
	// Counts receives what was counted; may be nil.
	Counts flowcontrolrequest.StorageObjectCountTracker
}

// RESTOptions implements generic.RESTOptionsGetter on a store.Store, with
// upstream's watch cache in front of each resource.
type RESTOptions struct {
	cfg RESTConfig

	mu     sync.Mutex
	stores map[schema.GroupResource]*Storage // guarded by mu
}

var _ generic.RESTOptionsGetter = (*RESTOptions)(nil)

// NewRESTOptions primes the store (see [Prime]) and declares to upstream that
// watch progress is supported (see [DeclareWatchProgress]). Call it before the
// first registry is made.
func NewRESTOptions(ctx context.Context, cfg RESTConfig) (*RESTOptions, error) {
	if cfg.Store == nil || cfg.Codec == nil {
		return nil, errors.New("rest options: Store and Codec are required")
	}
	if cfg.PathPrefix == "" {
		cfg.PathPrefix = "/registry"
	}
	if cfg.ResourcePrefix == nil {
		cfg.ResourcePrefix = defaultPrefix
	}
	if cfg.DeleteCollectionWorkers == 0 {
		cfg.DeleteCollectionWorkers = 1
	}
	if err := Prime(ctx, cfg.Store); err != nil {
		return nil, fmt.Errorf("rest options: %w", err)
	}
	DeclareWatchProgress()
	return &RESTOptions{cfg: cfg, stores: map[schema.GroupResource]*Storage{}}, nil
}

// Unreadable returns why objects of a resource cannot be listed, as stored data is damaged; nil:
// they can, as far as is known.
func (o *RESTOptions) Unreadable(group schema.GroupResource) error {
	if s := o.Storage(group); s != nil {
		return s.Unreadable()
	}
	return nil
}

// Storage of a resource that a registry was made of; nil: there is none.
func (o *RESTOptions) Storage(group schema.GroupResource) *Storage {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stores[group]
}

func defaultPrefix(group schema.GroupResource) string {
	if group.Group == "" {
		return "/" + group.Resource
	}
	return "/" + group.Group + "/" + group.Resource
}

// Resource returns the handle by which objects of a resource are written as
// companions. Registries and handles of one RESTOptions agree on keys and values.
func (o *RESTOptions) Resource(group schema.GroupResource) (*Resource, error) {
	codec, err := o.cfg.Codec(group)
	if err != nil {
		return nil, fmt.Errorf("codec of %s: %w", group, err)
	}
	return newResource(group, o.cfg.PathPrefix, o.cfg.ResourcePrefix(group), codec, o.transformer(group))
}

func (o *RESTOptions) transformer(group schema.GroupResource) value.Transformer {
	if o.cfg.Transformer == nil {
		return nil
	}
	return o.cfg.Transformer(group)
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *RESTOptions) GetRESTOptions(group schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, err := o.cfg.Codec(group)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("codec of %s: %w", group, err)
	}
	backend := storagebackend.NewDefaultConfig(o.cfg.PathPrefix, codec)
	backend.Transformer = o.transformer(group)
	return generic.RESTOptions{
		StorageConfig:             backend.ForResource(group),
		Decorator:                 o.decorate,
		DeleteCollectionWorkers:   o.cfg.DeleteCollectionWorkers,
		ResourcePrefix:            o.cfg.ResourcePrefix(group),
		CountMetricPollPeriod:     o.cfg.CountPeriod,
		StorageObjectCountTracker: o.cfg.Counts,
	}, nil
}

// decorate is a generic.StorageDecorator. The function it returns stops the
// cache; it blocks until the cache is down and may be called more than once.
func (o *RESTOptions) decorate(
	backend *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object,
	attrs storage.AttrFunc,
	triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	bare, err := New(Config{
		Store:          o.cfg.Store,
		Codec:          backend.Codec,
		Transformer:    backend.Transformer,
		NewFunc:        newFunc,
		ResourcePrefix: resourcePrefix,
		GroupResource:  backend.GroupResource,
		PathPrefix:     backend.Prefix,
		Compact:        o.cfg.Compact,
		Tracer:         o.cfg.Tracer,
	})
	if err != nil {
		return nil, nil, err
	}
	o.mu.Lock()
	o.stores[backend.GroupResource] = bare
	o.mu.Unlock()
	if o.cfg.Uncached != nil && o.cfg.Uncached(backend.GroupResource) {
		return bare, func() {}, nil
	}
	front, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             bare,
		Versioner:           bare.versioner,
		GroupResource:       backend.GroupResource,
		EventsHistoryWindow: backend.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attrs,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               backend.Codec,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch cache of %s: %w", backend.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(front, bare)
	return &withHistory{Interface: delegator, bare: bare}, sync.OnceFunc(func() {
		delegator.Stop()
		front.Stop()
	}), nil
}

// declare guards upstream's variable, which is read without a lock.
var declare sync.Once

// DeclareWatchProgress declares to upstream's watch cache that our storage supports
// RequestWatchProgress. Upstream checks a process-wide variable,
// feature.DefaultFeatureSupportChecker, whose default is true only after contact with
// an etcd; until then every consistent list bypasses the cache and reads the store,
// and watch lists are refused. This is the one place that replaces it. Idempotent;
// NewRESTOptions calls it, before any cache exists.
func DeclareWatchProgress() {
	declare.Do(func() {
		feature.DefaultFeatureSupportChecker = supportedFeatures{feature.DefaultFeatureSupportChecker}
	})
}

// supportedFeatures embeds the interface because one of its methods has a
// parameter of an unexported type.
type supportedFeatures struct{ feature.FeatureSupportChecker }

func (supportedFeatures) Supports(f storage.Feature) bool {
	return f == storage.RequestWatchProgress
}

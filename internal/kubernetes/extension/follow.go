package extension

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// follower of one object.
type follower struct{ controller cache.Controller }

// follow one object by a watch until ctx ends. changed gets it, or nil where it is gone, and must
// not block.
func follow(
	ctx context.Context, running *sync.WaitGroup, api dynamic.Interface, kind schema.GroupVersionResource, namespace, name string,
	changed func(*unstructured.Unstructured),
) *follower {
	var client dynamic.ResourceInterface = api.Resource(kind)
	if namespace != "" {
		client = api.Resource(kind).Namespace(namespace)
	}
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	is := func(obj any) {
		if o, ok := obj.(*unstructured.Unstructured); ok && o.GetName() == name {
			changed(o)
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return client.Watch(ctx, o)
			},
		}, api),
		ObjectType: &unstructured.Unstructured{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: is, UpdateFunc: func(_, obj any) { is(obj) }, DeleteFunc: func(any) { changed(nil) },
		},
	})
	running.Go(func() { controller.RunWithContext(ctx) })
	return &follower{controller}
}

// wait until the object is known, or that there is none. It returns false where ctx ends before.
func (f *follower) wait(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), f.controller.HasSynced)
}

// errNoCertificate yet: the leader makes the authority.
var errNoCertificate = errors.New("there is no certificate for the API server yet")

// Certificates of a replica for the API server of the cluster, by the authorities that the leader
// keeps. The key is in memory alone. Make it with NewCertificates.
type Certificates struct {
	client    dynamic.Interface
	namespace string
	name      string
	clock     clock.WithTicker
	log       *slog.Logger
	changed   chan struct{}
	current   atomic.Pointer[tls.Certificate]

	mu  sync.Mutex
	all Authorities
}

// NewCertificates for a name. A nil clock is the real one.
func NewCertificates(client dynamic.Interface, namespace, name string, c clock.WithTicker, log *slog.Logger) *Certificates {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Certificates{client: client, namespace: namespace, name: name, clock: c, log: log, changed: make(chan struct{}, 1)}
}

// GetCertificate is that of tls.Config: none of ours for other names. It does not block.
func (c *Certificates) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if hello.ServerName != c.name {
		return nil, nil //nolint:nilnil // as the field of tls.Config has it
	}
	if leaf := c.current.Load(); leaf != nil {
		return leaf, nil
	}
	return nil, errNoCertificate
}

// Run until ctx ends, and return nil then. It must be called once.
func (c *Certificates) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow(ctx, &following, c.client, secrets, c.namespace, SecretName, c.learn)
	for {
		timer := c.clock.NewTimer(c.renew().Sub(c.clock.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// learn the record. One that cannot be read changes nothing: the leader tells it.
func (c *Certificates) learn(secret *unstructured.Unstructured) {
	if secret == nil {
		return
	}
	all, err := recordOf(secret)
	if err != nil {
		c.log.Warn("the record of the authority that the API server trusts cannot be used; the last one stays", "error", err)
		return
	}
	c.mu.Lock()
	c.all = all
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// renew the certificate where that is due, and say when it is again.
func (c *Certificates) renew() time.Time {
	now := c.clock.Now()
	c.mu.Lock()
	all := c.all
	c.mu.Unlock()
	if len(all) == 0 {
		return now.Add(time.Hour) // a change of the record comes before
	}
	leaf, due, err := all.Leaf(c.name, now)
	if err != nil {
		c.log.Warn("no certificate for the API server", "error", err)
		return now.Add(retryAfter)
	}
	c.current.Store(leaf)
	return due
}

// Package pulsartest has a server of the change feed for tests, on a store in memory. Enter at New.
package pulsartest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/claim"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// Tokens that the server knows: who has Reader may read the namespace "shop" but no Secrets, who has Admin all.
const (
	Reader = "reader"
	Admin  = "admin"
)

// Plane is a store with a feed and its server. Namespace "shop" is of mesh "blue", and "default" of mesh "default".
type Plane struct {
	t     testing.TB
	Store store.Store
	dir   string
	// Address of the server. It stays over Restart.
	Address string
	Feed    *feed.Feed
	Cursors *cursor.Cursors
	Server  *pulsar.Server
	stop    func()
	// lease of the instance's claims; 0: there are no other instances.
	lease time.Duration

	mu      sync.Mutex
	refused bool
	cut     bool
}

// New starts a server, which ends with the test.
func New(t testing.TB) *Plane {
	t.Helper()
	return Instances(t, 1, 0)[0]
}

// Instances starts servers on one store, as instances of a control plane whose claims of topics have a lease, 0: which claim nothing.
func Instances(t testing.TB, n int, lease time.Duration) []*Plane {
	t.Helper()
	s := memory.New(memory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	var all []*Plane
	for range n {
		p := &Plane{t: t, Store: s, dir: t.TempDir(), Address: "127.0.0.1:0", lease: lease}
		p.start()
		t.Cleanup(func() { p.stop() })
		all = append(all, p)
	}
	return all
}

// Cut has the store refuse all that the server asks for, or not any more. What is committed still comes to its feed.
func (p *Plane) Cut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
}

// cuttable is the store of a server.
type cuttable struct {
	store.Store
	p *Plane
}

var errCut = errors.New("the store cannot be reached")

func (c cuttable) refused() error {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.cut {
		return errCut
	}
	return nil
}

// Commit implements store.Store.
func (c cuttable) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := c.refused(); err != nil {
		return 0, err
	}
	return c.Store.Commit(ctx, txn)
}

// Get implements store.Store.
func (c cuttable) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if err := c.refused(); err != nil {
		return store.Record{}, false, 0, err
	}
	return c.Store.Get(ctx, key, at)
}

// Restart ends the server and starts another on the same store, at the same address.
func (p *Plane) Restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

// Stop ends the server, which gives up its claims. Idempotent.
func (p *Plane) Stop() { p.stop() }

func (p *Plane) start() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	if p.Feed, err = feed.Open(ctx, feed.Config{Store: p.Store, Prefix: "/registry/", Roots: []string{p.dir}}); err != nil {
		p.t.Fatal(err)
	}
	own := cuttable{p.Store, p}
	if p.Cursors, err = cursor.New(ctx, cursor.Config{Store: own, Feed: p.Feed}); err != nil {
		p.t.Fatal(err)
	}
	l, err := net.Listen("tcp", p.Address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Address = l.Addr().String()
	var claims *claim.Claims
	if p.lease > 0 {
		claims = claim.New(claim.Config{Store: own, Self: claim.Owner{Name: p.Address, Address: p.Address}, Duration: p.lease})
	}
	p.Server, err = pulsar.New(pulsar.Config{
		Claims: claims, Feed: p.Feed, Cursors: p.Cursors, Store: own, Objects: objects{}, Kinds: kinds, Access: p, Version: "test",
		Mesh: func(namespace string) (string, bool) {
			mesh, ok := map[string]string{"shop": "blue", "default": "default"}[namespace]
			return mesh, ok
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var running sync.WaitGroup
	feedCtx, endFeed := context.WithCancel(context.Background())
	running.Go(func() { _ = p.Feed.Run(feedCtx) })
	running.Go(func() { _ = p.Cursors.Run(feedCtx) })
	served := make(chan struct{})
	go func() { defer close(served); _ = p.Server.Serve(ctx, l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		<-served
		endFeed()
		running.Wait()
	})
}

// Put writes a Service of namespace shop with an IP, and returns the position of the change.
func (p *Plane) Put(name, ip string) int64 {
	p.t.Helper()
	return p.PutObject("/registry/services/shop/"+name, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1-2-3", CreationTimestamp: metav1.Unix(1_700_000_000, 0)},
		Spec:       corev1.ServiceSpec{ClusterIP: ip},
	})
}

// PutObject writes any object at a key.
func (p *Plane) PutObject(key string, o resource.Object) int64 {
	p.t.Helper()
	value, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.commit(store.Op{Kind: store.Put, Key: key, Value: value})
}

// Delete removes a Service of namespace shop.
func (p *Plane) Delete(name string) int64 {
	p.t.Helper()
	return p.commit(store.Op{Kind: store.Delete, Key: "/registry/services/shop/" + name})
}

func (p *Plane) commit(op store.Op) int64 {
	p.t.Helper()
	at, err := p.Store.Commit(context.Background(), store.Txn{Ops: []store.Op{op}})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Feed.Reach(ctx, seglog.Position(at)); err != nil {
		p.t.Fatal(err)
	}
	return int64(at)
}

// Refuse makes the server know no token any more.
func (p *Plane) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = true
}

// Authenticate implements pulsar.Access.
func (p *Plane) Authenticate(_ context.Context, c pulsar.Credentials) (pulsar.Rights, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused || c.Token != Reader && c.Token != Admin {
		return nil, errors.New("credentials are required")
	}
	return rights(c.Token), nil
}

type rights string

// User implements pulsar.Rights.
func (r rights) User() string { return string(r) }

// MayRead implements pulsar.Rights.
func (r rights) MayRead(_ context.Context, k *resource.Descriptor, namespace string) error {
	if r == Admin || namespace == "shop" && k.GVK != kind.Secret.GVK {
		return nil
	}
	return fmt.Errorf("%s may not list %s of namespace %q", r, k.Resource, namespace)
}

var kinds = []*resource.Descriptor{kind.Service, kind.Secret, kind.Node, kind.Dataplane}

// Objects reads keys and values as they are in the store of a Plane.
func Objects() pulsar.Objects { return objects{} }

// objects are stored as JSON.
type objects struct{}

func (objects) ObjectOf(key string) (*resource.Descriptor, resource.Key, bool) {
	for _, k := range kinds {
		if rest, ok := strings.CutPrefix(key, (objects{}).Prefix(k, resource.Key{})); ok {
			namespace, name, found := strings.Cut(rest, "/")
			if !found {
				namespace, name = "", rest
			}
			return k, resource.Key{Namespace: namespace, Name: name}, true
		}
	}
	return nil, resource.Key{}, false
}

func (objects) Prefix(k *resource.Descriptor, name resource.Key) string {
	prefix := "/registry/" + k.GVK.Group + "/" + k.Resource + "/"
	if k.GVK.Group == "" {
		prefix = "/registry/" + k.Resource + "/"
	}
	if name.Namespace != "" {
		prefix += name.Namespace + "/"
	}
	return prefix + name.Name
}

func (o objects) Decode(_ context.Context, key string, value []byte, at store.Revision) (resource.Object, error) {
	k, _, ok := o.ObjectOf(key)
	if !ok {
		return nil, fmt.Errorf("%s is not the key of an object", key)
	}
	obj := k.New()
	if err := json.Unmarshal(value, obj); err != nil {
		return nil, err
	}
	obj.SetResourceVersion(strconv.FormatInt(int64(at), 10))
	return obj, nil
}

// Package registrytest runs the core of registries on a store in memory, for tests of protocols.
package registrytest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/dubbo"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// Token is the token of an administrator, ShopToken that of workloads in namespace "shop".
const (
	Token     = "administrator"
	ShopToken = "shop"
)

// machineID of the machine of a Plane.
const machineID = "m-1"

// Plane is the part of a control plane that registries need.
type Plane struct {
	*registry.Core
	Client *resourcetest.Client
	owner  string
	peers  *peers
	dubbo  *dubbo.Controller
	t      *testing.T
	stop   func()
}

// New starts one. Namespaces "default" and "shop" exist; clients on this machine need no credentials.
func New(t *testing.T) *Plane { return NewNamed(t, "cp-1") }

// NewNamed starts one that is an instance of a name. Planes share nothing but what they are given.
func NewNamed(t *testing.T, name string) *Plane {
	client := resourcetest.New(kind.All()...)
	for _, name := range []string{"default", "shop"} {
		client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return newPlane(t, client, name, &peers{})
}

// NewBeside starts another instance of the control plane of p, on the same store.
func NewBeside(t *testing.T, p *Plane, name string) *Plane {
	return newPlane(t, p.Client, name, p.peers)
}

func newPlane(t *testing.T, client *resourcetest.Client, name string, all *peers) *Plane {
	p := &Plane{Client: client, owner: name, peers: all, t: t}
	p.start()
	t.Cleanup(func() { p.stop() })
	return p
}

// peers are the instances of a control plane that run.
type peers struct {
	mu      sync.Mutex
	running map[string]bool
}

func (p *peers) set(name string, runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := maps.Clone(p.running)
	if next == nil {
		next = map[string]bool{}
	}
	next[name] = runs
	p.running = next
}

func (p *peers) get() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// Restart ends the control plane, and starts it again on what is stored.
func (p *Plane) Restart() {
	p.stop()
	p.start()
}

func (p *Plane) start() {
	log := slog.New(slog.DiscardHandler)
	tables := catalog.New(catalog.Config{Client: p.Client, Descriptors: kind.All()})
	p.Core = &registry.Core{
		Registrar: registry.NewRegistrar(registry.RegistrarConfig{Client: p.Client, Catalog: tables, Owner: p.owner, MachineID: machineID, Running: p.peers.get, Grace: time.Minute}),
		Index:     registry.NewIndex(registry.IndexConfig{Catalog: tables}),
		Configs:   registry.NewConfigs(p.Client, tables, log),
		Gate: &registry.Gate{Anonymous: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Check: func(_ context.Context, token string) (registry.User, error) {
			switch token {
			case Token:
				return registry.User{Name: "admin", Admin: true}, nil
			case ShopToken:
				return registry.User{Name: "shop", Namespaces: []string{"shop"}}, nil
			}
			return registry.User{}, errors.New("the token is not valid")
		}},
		Meters: registry.NewMeters(nil), Client: p.Client, Namespaces: registry.Namespaces{}, Logger: log,
	}
	p.dubbo = dubbo.New(dubbo.Config{Client: p.Client, Catalog: tables, MachineID: machineID, Meters: p.Meters, Logger: log})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{tables.Run, p.Registrar.Run, p.Index.Run, p.Configs.Run, p.dubbo.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	p.peers.set(p.owner, true)
	p.stop = sync.OnceFunc(func() { cancel(); running.Wait(); p.peers.set(p.owner, false) })
	<-p.Index.Ready()
	<-p.Configs.Ready()
}

// Serve runs a server on a free port of this machine until the test ends, and returns its address.
func (p *Plane) Serve(serve func(context.Context, net.Listener) error) string {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	return p.ServeOn(l, serve)
}

// ServeOn is Serve on a listener.
func (p *Plane) ServeOn(l net.Listener, serve func(context.Context, net.Listener) error) string {
	p.ServeUntil(l, serve)
	return l.Addr().String()
}

// ServeUntil is Serve on a listener, until stop is called, or the test ends.
func (p *Plane) ServeUntil(l net.Listener, serve func(context.Context, net.Listener) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serve(ctx, l); err != nil {
			p.t.Errorf("serve: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	p.t.Cleanup(stop)
	return stop
}

// Dataplanes are those that are stored.
func (p *Plane) Dataplanes() []*meshv1alpha1.Dataplane {
	p.t.Helper()
	list, _, err := p.Client.List(context.Background(), kind.Dataplane, resource.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	var out []*meshv1alpha1.Dataplane
	for _, o := range list {
		out = append(out, o.(*meshv1alpha1.Dataplane))
	}
	return out
}

// Eventually waits until f is true, for at most 10 s.
func (p *Plane) Eventually(what string, f func() bool) {
	p.t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity"
	certificates "github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/view/wire"
	"github.com/proxima-mesh/proxima/internal/witness"
	"github.com/proxima-mesh/proxima/internal/workload"
)

const zoneName = "zone-a"

// agent does towards the control plane what an agent does: its view, heartbeat and
// certificates over one gRPC connection; its Node, Lease and watches over one HTTPS connection.
// It keeps no objects, and has no data path.
type agent struct {
	name  string
	fleet *fleet

	mu        sync.Mutex
	positions map[string]string // by type
	probe     string            // version of the slice that is changed
	// fresh are the types that the present stream has brought up to date.
	fresh map[string]bool
}

// viewTypes are what an agent's feed follows.
var viewTypes = []string{
	wire.ServiceType, wire.SliceType, wire.NameType, wire.NameSliceType, wire.SuspectType, wire.RemoteType, wire.OfferType,
}

// fleet is the agents of one control plane. What all of them have is stored once.
type fleet struct {
	server, probe string // HOST:PORT; name of the slice that is changed
	dir           string
	log           *slog.Logger
	agents        []*agent
	stop          context.CancelFunc
	running       sync.WaitGroup
	failed        chan error

	mu       sync.Mutex
	versions map[string]map[string]string // of resources, by type and name

	complete, changed atomic.Int64  // agents that are up to date; that have the newest change
	moved             chan struct{} // a token after each change of both
}

func newFleet(ctx context.Context, server, dir, probe string) (*fleet, context.Context) {
	ctx, stop := context.WithCancel(ctx)
	return &fleet{
		server: server, dir: dir, probe: probe, stop: stop, log: slog.New(slog.DiscardHandler),
		failed: make(chan error, 1), versions: map[string]map[string]string{}, moved: make(chan struct{}, 1),
	}, ctx
}

// end stops all agents, and waits for them.
func (f *fleet) end() {
	f.stop()
	f.running.Wait()
}

// wait until a count has reached n.
func (f *fleet) wait(ctx context.Context, count *atomic.Int64, n int, limit time.Duration) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for count.Load() < int64(n) {
		select {
		case <-f.moved:
		case err := <-f.failed:
			return err
		case <-late.C:
			return errors.New("not every agent within " + limit.String())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (f *fleet) move() {
	select {
	case f.moved <- struct{}{}:
	default:
	}
}

// add joins an agent by its token, and starts it.
func (f *fleet) add(ctx context.Context, name, token string) error {
	renewer := identity.NewRenewer(identity.RenewerConfig{
		Dir: filepath.Join(f.dir, name), Server: f.server, Token: func() (string, error) { return token, nil }, Logger: f.log,
	})
	if err := join(ctx, renewer); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(f.server)
	if err != nil {
		return err
	}
	a := &agent{name: name, fleet: f, positions: map[string]string{}, fresh: map[string]bool{}}
	conn, err := a.dial(host, renewer)
	if err != nil {
		return err
	}
	runs, err := a.parts(conn, host, renewer)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	f.mu.Lock()
	f.agents = append(f.agents, a)
	f.mu.Unlock()
	f.running.Go(func() {
		<-ctx.Done()
		_ = conn.Close()
	})
	for _, run := range runs {
		f.running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				select {
				case f.failed <- err:
				default:
				}
			}
		})
	}
	return nil
}

// join, with the retries of an agent whose service manager starts it again.
func join(ctx context.Context, renewer *identity.Renewer) (err error) {
	const attempts = 5
	for range attempts {
		if _, err = renewer.Join(ctx); err == nil {
			return nil
		}
		if pause(ctx, time.Second) != nil {
			return err
		}
	}
	return err
}

// dial as an agent does.
func (a *agent) dial(host string, renewer *identity.Renewer) (*grpc.ClientConn, error) {
	_, port, err := net.SplitHostPort(renewer.Credentials().GRPCAddress)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(host, port), append(stream.DialOptions(),
		grpc.WithTransportCredentials(credentials.NewTLS(renewer.TLSConfig(host))),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
	)...)
}

// parts of an agent that talk to the control plane.
func (a *agent) parts(conn *grpc.ClientConn, host string, renewer *identity.Renewer) ([]func(context.Context) error, error) {
	client, err := kubeclient.New(&rest.Config{Host: "https://" + a.fleet.server, QPS: -1, Transport: &http.Transport{
		TLSClientConfig: renewer.TLSConfig(host), ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}}, kind.All())
	if err != nil {
		return nil, err
	}
	log := a.fleet.log
	view := stream.NewClient(stream.ClientConfig{
		Conn: conn, Method: "/" + wire.GRPCService + "/" + wire.Method, Types: viewTypes,
		Node: &core.Node{Id: a.name, Locality: &core.Locality{Zone: zoneName}}, Follower: a, Log: log,
	})
	manager := certificates.New(certificates.Config{
		Dir: filepath.Join(a.fleet.dir, a.name, "identities"), Client: identityv1.NewIdentityClient(conn), Node: a.name, Logger: log,
	})
	member := membership.New(membership.Config{
		Client: client, Name: a.name, Zone: zoneName, MachineID: a.name, Logger: log, Clock: clock.RealClock{},
	})
	checks := workload.NewChecks(workload.ChecksConfig{Client: client, Node: a.name, Logger: log, Clock: clock.RealClock{}})
	own := resource.ListOptions{Fields: fields.OneTermEqualSelector("spec.nodeName", a.name)}
	return []func(context.Context) error{
		view.Run, manager.Run, member.Run, checks.Run,
		witness.NewClient(witness.ClientConfig{Conn: conn, Node: a.name, Logger: log}).Run,
		a.watch(client, kind.Dataplane, own),
		a.watch(client, kind.Namespace, resource.ListOptions{}),
		a.watch(client, kind.ServiceCIDR, resource.ListOptions{}),
	}, nil
}

// watch a kind, and drop what comes.
func (a *agent) watch(client resource.Client, k *resource.Descriptor, which resource.ListOptions) func(context.Context) error {
	return func(ctx context.Context) error {
		return reflector.Run(ctx, reflector.Config{
			Client: client, Kind: k, Select: which, AlwaysRelist: k == kind.Dataplane,
			Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second},
			Clock:   clock.RealClock{}, Logger: a.fleet.log, Level: slog.LevelDebug,
		}, func(reflector.Event) error { return nil })
	}
}

// Have implements stream.Follower.
func (a *agent) Have(typ string, cursor bool) map[string]string {
	a.mu.Lock()
	position := a.positions[typ]
	a.mu.Unlock()
	switch {
	case position == "":
		return nil
	}
	a.fleet.mu.Lock()
	versions := maps.Clone(a.fleet.versions[typ])
	a.fleet.mu.Unlock()
	if cursor {
		return map[string]string{"": delta.Cursor(position, versions)}
	}
	return versions
}

// Connected implements stream.Follower.
func (a *agent) Connected(metadata.MD) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.fresh) == len(viewTypes) {
		a.fleet.complete.Add(-1)
	}
	clear(a.fresh)
}

// Receive implements stream.Follower.
func (a *agent) Receive(r *stream.Response) {
	f := a.fleet
	f.mu.Lock()
	versions := f.versions[r.Type]
	if versions == nil {
		versions = map[string]string{}
		f.versions[r.Type] = versions
	}
	for _, name := range r.Removed {
		delete(versions, name)
	}
	for _, one := range r.Resources {
		versions[one.GetName()] = one.GetVersion()
	}
	f.mu.Unlock()
	a.mu.Lock()
	for _, one := range r.Resources {
		if r.Type == wire.SliceType && one.GetName() == f.probe && one.GetVersion() != a.probe {
			a.probe = one.GetVersion()
			f.changed.Add(1)
		}
	}
	if r.Position != "" {
		a.positions[r.Type] = r.Position
		if !a.fresh[r.Type] {
			if a.fresh[r.Type] = true; len(a.fresh) == len(viewTypes) {
				f.complete.Add(1)
			}
		}
	}
	a.mu.Unlock()
	r.Accept()
	f.move()
}

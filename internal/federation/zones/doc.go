// Package zones is the zones of a global control plane.
//
// It owns who may connect (Zone objects decide, by the zone that a credential names), the
// two ends of each zone's synchronisation, what is recorded of a zone (ZoneInsight), and
// the life of Zones: what a disabled zone offers is withheld from the others, and with a
// deleted Zone go the copies of its objects and its tokens. Enter at New: every instance
// registers and runs it, the leader runs Lead too.
//
// It opens no port, and knows no kinds but Zone and ZoneInsight: what is synchronised, and
// how the caller of a stream is known, comes with the Config.
package zones

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Config of Zones. Client, Kinds, Namespace, StoreEpoch and Caller are required.
type Config struct {
	Client resource.Client
	// Kinds that are synchronised, of both directions.
	Kinds []local.Kind
	// Namespace in which the namespaced objects of zones and the checkpoints are kept.
	Namespace string
	// StoreEpoch identifies the history of the store.
	StoreEpoch string
	// Run, if not empty: revisions of the store do not tell its content; see
	// local.OutletConfig and local.InletConfig.
	Run string
	// Instance is the name of this instance of the control plane, Version that of its
	// program.
	Instance, Version string
	// Timeout after which a silent zone is offline; 0: stream.DefaultZoneTimeout.
	Timeout time.Duration
	// Caller is the zone that the verified credential in the context of a call names. Its
	// errors should be gRPC statuses.
	Caller func(ctx context.Context) (string, error)
	// CheckVersion refuses the version that a zone announces; nil: all are admitted.
	CheckVersion func(zone, version string) error
	// Instances of this control plane, which zones learn; nil: this one is alone.
	Instances func() []stream.Instance
	// Registerer of the metrics; nil: none.
	Registerer prometheus.Registerer
	Logger     *slog.Logger // nil: silence
}

// Zones are the zones, as this instance serves them. Safe for concurrent use.
type Zones struct {
	config Config
	log    *slog.Logger
	outlet *local.Outlet
	global *stream.Global

	mu    sync.Mutex
	ctx   context.Context // of Run; nil before it
	known map[string]*meshv1alpha1.Zone
	peers map[string]*peer
	// running are the inlets.
	running sync.WaitGroup
	kicks   chan struct{}
}

// peer is what this instance has of one zone.
type peer struct {
	inlet *local.Inlet
	// stop ends the inlet.
	stop context.CancelFunc
	// end is closed when the zone may not go on.
	end chan struct{}
	// streams that are open, and the subscription that they are; see insight.go.
	streams      int
	subscription *meshv1alpha1.Subscription
	// ended: drop has recorded the end of the subscription.
	ended bool
}

// New makes the zones. Register comes next, then Run.
func New(c Config) (*Zones, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Timeout == 0 {
		c.Timeout = stream.DefaultZoneTimeout
	}
	z := &Zones{
		config: c, log: c.Logger, known: map[string]*meshv1alpha1.Zone{}, peers: map[string]*peer{}, kicks: make(chan struct{}, 1),
	}
	var err error
	z.outlet, err = local.NewOutlet(local.OutletConfig{
		Client: c.Client, Kinds: c.Kinds, Side: federation.AtGlobal, StoreEpoch: c.StoreEpoch, Run: c.Run, Log: c.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("what zones are sent: %w", err)
	}
	z.global = stream.NewGlobal(stream.GlobalConfig{
		Admit: z.admit, Timeout: c.Timeout, Observe: func(string, bool) { z.kick() }, Instances: c.Instances, Log: c.Logger,
	})
	if c.Registerer != nil {
		if err := c.Registerer.Register(z); err != nil {
			return nil, err
		}
	}
	return z, nil
}

// Register adds the services to a gRPC server.
func (z *Zones) Register(r grpc.ServiceRegistrar) { z.global.Register(r) }

// Run serves zones until ctx ends, and returns nil then. Call it once.
func (z *Zones) Run(ctx context.Context) error {
	z.mu.Lock()
	z.ctx = ctx
	z.mu.Unlock()
	var running sync.WaitGroup
	running.Go(func() { _ = z.outlet.Run(ctx) })
	running.Go(func() { z.record(ctx) })
	_ = reflector.Run(ctx, reflector.Config{
		Client: z.config.Client, Kind: kind.Zone, Backoff: retryPolicy, Clock: clock.RealClock{}, Logger: z.log, Level: slog.LevelDebug,
	}, func(e reflector.Event) error {
		z.follow(e)
		return nil
	})
	z.global.Close()
	z.dropAll()
	running.Wait()
	z.running.Wait()
	return nil
}

// dropAll ends all zones after ctx of Run has ended. Streams that end later start nothing.
func (z *Zones) dropAll() {
	z.mu.Lock()
	defer z.mu.Unlock()
	for name, p := range z.peers {
		z.drop(name, p)
	}
}

var retryPolicy = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second}

// follow keeps the Zone objects.
func (z *Zones) follow(e reflector.Event) {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch e.Type {
	case reflector.Replace:
		clear(z.known)
		fallthrough
	case reflector.Set:
		for _, obj := range e.Objects {
			if zone, ok := obj.(*meshv1alpha1.Zone); ok {
				z.known[zone.Name] = zone
			}
		}
	case reflector.Delete:
		delete(z.known, e.Object().GetName())
	default:
		return
	}
	for name, p := range z.peers {
		if mayConnect(name, z.known[name]) != nil {
			z.drop(name, p)
		}
	}
}

// drop ends the streams and the inlet of a zone. z.mu is held.
func (z *Zones) drop(name string, p *peer) {
	close(p.end)
	p.stop()
	delete(z.peers, name)
	p.ended = true
	if s := p.subscription; s != nil {
		z.running.Go(func() { z.recordEnd(name, s) })
	}
}

// newInlet makes the receiving end of one zone. z.mu is held.
func (z *Zones) newPeer(zone string) (*peer, error) {
	inlet, err := local.NewInlet(local.InletConfig{
		Client: z.config.Client, Kinds: z.config.Kinds, Side: federation.AtGlobal, Zone: zone, Namespace: z.config.Namespace,
		Node:        &core.Node{Id: z.config.Instance, UserAgentName: "proxima"},
		Checkpoints: z.checkpoints(zone), ByVersions: z.config.Run != "", Log: z.log,
	})
	if err != nil {
		return nil, fmt.Errorf("what zone %s sends: %w", zone, err)
	}
	ctx, stop := context.WithCancel(z.ctx)
	z.running.Go(func() { _ = inlet.Run(ctx, kind.Namespace) })
	return &peer{inlet: inlet, stop: stop, end: make(chan struct{})}, nil
}

func (z *Zones) checkpoints(zone string) *local.ConfigMapCheckpoints {
	return &local.ConfigMapCheckpoints{Client: z.config.Client, Kind: kind.ConfigMap, Key: z.checkpointKey(zone)}
}

func (z *Zones) checkpointKey(zone string) resource.Key {
	return resource.Key{Namespace: z.config.Namespace, Name: "federation-of-zone-" + zone}
}

// kick makes the insights be compared now.
func (z *Zones) kick() {
	select {
	case z.kicks <- struct{}{}:
	default:
	}
}

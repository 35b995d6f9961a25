package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
)

// zoneLink is the connection of a zone's control plane to global. Each instance keeps a
// certificate of its own; the leader alone dials.
//
//	global ◄── gRPC (mTLS) ── stream.Zone ── local.Outlet ◄── objects of this zone
//	                              └───────── local.Inlet ──► copies
type zoneLink struct {
	cfg     ControlPlaneConfig
	log     *slog.Logger
	storage *storage
	client  resource.Client
	// kinds that are exchanged with global, and where what is sent is read; client, but for kinds
	// that are derived.
	kinds []local.Kind
	sends resource.Client
	// derived calls again when all Dataplanes are to be derived anew, until ctx ends; nil: they are objects.
	derived func(ctx context.Context, again func())
	// epoch of the objects, and run, if their revisions do not tell their content; see
	// local.OutletConfig.
	epoch, run string
	// instance of this control plane, as global shows it.
	instance string
	renewer  *identity.Renewer
	// globals are where the instances of global are.
	globals *globalInstances
	// calls of agents, which global asks for; set before it runs.
	calls   *agentCalls
	checker *local.Checker
	// current is the link of the present term; nil: this instance does not lead.
	current atomic.Pointer[openLink]
}

// openLink is the link of one term.
type openLink struct {
	zone  *stream.Zone
	plane *planeLink
	inlet *local.Inlet
	since time.Time
}

// firstJoin bounds how long the start waits for global. The zone serves without it.
const firstJoin = 5 * time.Second

// newZoneLink is that of a control plane with a store; see join.
func newZoneLink(
	ctx context.Context, cfg ControlPlaneConfig, s *storage, a *api, i *instance, client resource.Client, log *slog.Logger,
) (*zoneLink, error) {
	l := &zoneLink{
		cfg: cfg, log: log.With("component", "federation"), storage: s, client: client, sends: client, kinds: federated(),
		epoch: s.store.Epoch(), instance: instanceName(a.address),
	}
	l.checker = &local.Checker{Zone: cfg.Zone, Client: a.direct, Kinds: l.kinds, Try: a.direct.Try, Uses: policyUses{i.catalog, cfg.DefaultTopologyMode}.of}
	return l, l.join(ctx)
}

// join finds the credentials of the zone. That global does not answer is no error: a zone serves
// without it. It fails if the token is for something else.
func (l *zoneLink) join(ctx context.Context) error {
	cfg := l.cfg
	if err := os.MkdirAll(l.dir(), 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	l.globals = openGlobalInstances(append([]string{cfg.Global}, cfg.OtherGlobals...), l.dir(), l.log)
	l.renewer = identity.NewRenewer(identity.RenewerConfig{
		Dir: l.dir(), Server: cfg.Global, Others: l.globals.apis, Accept: l.accept, Token: l.token, Logger: l.log,
	})
	ctx, cancel := context.WithTimeout(ctx, firstJoin)
	defer cancel()
	_, err := l.renewer.Join(ctx)
	var wrong *identity.SubjectError
	var other *identity.OtherCredentialsError
	switch {
	case errors.As(err, &wrong), errors.As(err, &other):
		return &problem.Error{
			Code: problem.CredentialsMismatch, Err: err,
			Hint: "give the token of this zone, which \"proxima zone create " + cfg.Zone + "\" prints at global, in --token-file",
		}
	case err != nil:
		l.log.Warn("this zone has no credentials for global yet, and serves without it until it has joined", "global", cfg.Global, "error", err)
	}
	return l.storage.metrics.Register(l)
}

// dir keeps the credentials for global.
func (l *zoneLink) dir() string { return filepath.Join(l.cfg.DataDir, "global") }

// accept refuses credentials that are not this zone's.
func (l *zoneLink) accept(s identity.Subject) error {
	name, ok := identity.ZoneName(s.User, s.Groups)
	switch {
	case !ok:
		return fmt.Errorf("the credentials are for %s, which is not a zone", s.User)
	case name != l.cfg.Zone:
		return fmt.Errorf("the credentials are for zone %s, and this is zone %s", name, l.cfg.Zone)
	}
	return nil
}

// token is that of the file; "": it is gone, as it may be once the zone has joined.
func (l *zoneLink) token() (string, error) {
	data, err := os.ReadFile(l.cfg.ZoneTokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (l *zoneLink) components() []component {
	if l == nil {
		return nil
	}
	return []component{
		{Name: "certificate for global", Run: l.renewer.Run},
		{Name: "connection to global", Scope: leader, Run: l.lead},
	}
}

// lead keeps the streams to global open, and the objects in step.
func (l *zoneLink) lead(ctx context.Context) error {
	outlet, err := local.NewOutlet(local.OutletConfig{
		Client: l.sends, Kinds: l.kinds, Side: federation.AtZone, Zone: l.cfg.Zone, StoreEpoch: l.epoch, Run: l.run, Log: l.log,
	})
	if err != nil {
		return err
	}
	inlet, err := local.NewInlet(local.InletConfig{
		Client: l.client, Kinds: l.kinds, Side: federation.AtZone, Zone: l.cfg.Zone, Namespace: access.SystemNamespace, ByVersions: l.run != "",
		Node: &core.Node{Id: l.instance, UserAgentName: "proxima"}, Log: l.log,
		Checkpoints: &local.ConfigMapCheckpoints{
			Client: l.client, Kind: kind.ConfigMap, Key: resource.Key{Namespace: access.SystemNamespace, Name: "federation-of-global"},
		},
	})
	if err != nil {
		return err
	}
	plane := l.plane()
	conn, err := plane.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	reporter := l.newReporter(conn)
	zone, err := stream.NewZone(stream.ZoneConfig{
		Conn: conn, Zone: l.cfg.Zone, Instance: l.instance, Version: version.Get().Version, Protocol: l.cfg.FederationProtocol,
		Outlet: outlet, Inlet: inlet, Calls: l.answer, Connected: reporter.Again,
		Instances: l.globals.learn, Silent: plane.leave, Log: l.log,
	})
	if err != nil {
		return err
	}
	l.current.Store(&openLink{zone: zone, plane: plane, inlet: inlet, since: time.Now()})
	defer l.current.Store(nil)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = outlet.Run(ctx) })
	if l.derived != nil {
		running.Go(func() { l.derived(ctx, func() { outlet.Again(kind.Dataplane) }) })
	}
	running.Go(func() { _ = inlet.Run(ctx, kind.Namespace) })
	running.Go(func() { _ = reporter.Run(ctx) })
	running.Go(func() { l.suspect(ctx, zone) })
	return zone.Run(ctx)
}

// plane is how the gRPC port of global is reached.
func (l *zoneLink) plane() *planeLink {
	return &planeLink{renewer: l.renewer, server: l.cfg.Global, serves: "zones", others: l.globals.ports}
}

// suspectPeriod is how often a connection that is cut makes the certificate be checked.
const suspectPeriod = 10 * time.Second

// suspect has the certificate renewed while there is no connection: a connection with one
// that was revoked is cut without a reason, and the answer to a renewal has it.
func (l *zoneLink) suspect(ctx context.Context, zone *stream.Zone) {
	ticker := time.NewTicker(suspectPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if s := zone.Status(); !s.Receiving && status.Code(s.LastError) == codes.Unavailable {
			l.renewer.Suspect()
		}
	}
}

var (
	globalConnectedDesc = prometheus.NewDesc("proxima_global_connected",
		"Whether objects of global reach this zone right now, as its leader sees it.", nil, nil)
	globalHeldDesc = prometheus.NewDesc("proxima_global_held_deletions",
		"Deletions by global that wait for a confirmation in this zone, by type.", []string{"type"}, nil)
	globalRefusedDesc = prometheus.NewDesc("proxima_global_refused_objects",
		"Objects of global that this zone refused or cannot apply yet, by type.", []string{"type"}, nil)
	globalLagDesc = prometheus.NewDesc("proxima_global_sync_lag_seconds",
		"Time from when this zone had a change for global until global confirmed that its store has it; not of what a connection begins with.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *zoneLink) Describe(to chan<- *prometheus.Desc) {
	to <- globalConnectedDesc
	to <- globalHeldDesc
	to <- globalRefusedDesc
	to <- globalLagDesc
}

// Collect implements prometheus.Collector. An instance that does not lead has none.
func (l *zoneLink) Collect(to chan<- prometheus.Metric) {
	link := l.current.Load()
	if link == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	connected, status := 0, link.zone.Status()
	if status.Receiving {
		connected = 1
	}
	gauge(globalConnectedDesc, connected)
	to <- prometheus.MustNewConstHistogram(globalLagDesc, status.Link.Count, status.Link.Sum, status.Link.Buckets)
	for _, t := range link.inlet.Status() {
		held := 0
		for _, h := range t.Held {
			held += h.Count
		}
		gauge(globalHeldDesc, held, t.Type)
		gauge(globalRefusedDesc, len(t.Refused)+len(t.Waiting), t.Type)
	}
}

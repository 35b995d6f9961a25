package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/healthcheck"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/node/ranges"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// newAgent joins, and opens all that the agent needs. Nothing runs yet.
func newAgent(ctx context.Context, cfg NodeConfig) (a *agent, err error) {
	a = &agent{cfg: cfg, log: orDiscard(cfg.Logger), registry: prometheus.NewRegistry(), names: records.New()}
	if a.cfg.MachineID == "" && cfg.Cluster == nil {
		if a.cfg.MachineID, err = machine.ID(); err != nil {
			return nil, err
		}
	}
	opened := a // a return of nil sets a
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	if cfg.Gateway != nil {
		a.gateway = a.newGateway()
	}
	a.registry.MustRegister(goMetrics(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := makeDataDir(cfg.DataDir, a.log); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(a.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if cfg.inCluster() { // kubelet makes the folders of volumes readable by all users
		if err := os.Chmod(cfg.DataDir, 0o700); err != nil {
			a.log.Warn("the data directory is not private", "error", err)
		}
	}
	if a.unlock, err = local.Lock(a.dir()); err != nil {
		return nil, err
	}
	a.ranges = ranges.New(ranges.Config{Dir: a.dir(), Saved: a.unsaved.note, Logger: a.log})
	if cfg.joins() {
		err = a.join(ctx)
	}
	if err == nil && cfg.Cluster != nil {
		err = a.learnNode(ctx)
	}
	if err != nil {
		return nil, err
	}
	if !cfg.objectsElsewhere() {
		if a.cfg.ServiceCIDRs, err = a.ranges.Learn(ctx, a.rangesClient, cfg.ServiceCIDRs); err != nil {
			return nil, err
		}
	}
	if a.mode, err = a.newMode(ctx); err != nil {
		return nil, err
	}
	a.openConntrack()
	a.openIsolation()
	a.openPermissions()
	a.accounting, a.unanswered = a.newAccounting(), a.newUnanswered()
	a.facts = node.Facts{Name: cfg.Name, Zone: locality.Zone(cfg.Zone), Machine: cmp.Or(a.cfg.MachineID, choose.UnknownMachine)}
	if a.traces, err = newTraces(cfg.Traces, agentService, cfg.Name, tracing.Config{}, a.registry, a.log); err != nil {
		return nil, err
	}
	a.agent, err = node.New(node.Options{
		Tracer: a.traces.tracer(),
		Mode:   a.mode, Facts: a.facts, OwnPortsOnly: a.ownPortsOnly(),
		Applied: func(changes []proxy.Change) {
			if a.gateway == nil { // the health check node ports are those of the machine's agent
				a.checks.Update(changes)
			}
			a.accounting.update(changes)
		},
		Left:   a.unanswered.callback(),
		Logger: a.log.With("component", "agent"), Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	a.checks, err = healthcheck.New(healthcheck.Options{
		Healthy: a.agent.Healthy, Addresses: modes.LocalAddresses(a.cfg.NodePortAddresses),
		Logger: a.log.With("component", "health check node ports"), Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	if cfg.joins() {
		if a.conn, err = a.connect(); err != nil {
			return nil, err
		}
	}
	if cfg.meshed() {
		a.credentials = a.keepCredentials()
		if err = a.openIdentity(); err != nil {
			return nil, err
		}
		a.openCgroups()
		a.openTunnel()
	}
	if a.gateway != nil {
		if err = a.openGateway(); err != nil {
			return nil, err
		}
	}
	if err := a.listenHTTP(); err != nil {
		return nil, err
	}
	if a.gateway != nil {
		return a, a.openUpstream()
	}
	if a.local, err = a.listenLocal(); err != nil {
		return nil, err
	}
	if err := a.listenNames(); err != nil {
		return nil, err
	}
	return a, a.openUpstream()
}

// apply gives an update to what serves traffic, and to what resolves names.
func (a *agent) apply(u node.Update) {
	u.KeepLoopback(a.cfg.MachineID)
	a.names.Apply(u.Records())
	a.wantCredentials(u)
	a.tunnel.apply(u)
	a.gateway.apply(u)
	a.isolate(u)
	a.permit(u)
	a.nameClients(u)
	a.learnLeaving(u)
	if u.Proxied() {
		a.agent.Apply(u.Update)
	}
}

// learn takes the facts of this machine from its Node. Its zone label counts
// where no --zone was given.
func (a *agent) learn(n *corev1.Node) {
	if a.cfg.Cluster != nil {
		a.followAddresses(n)
	}
	a.setFacts(func(f *node.Facts) {
		f.Zone = cmp.Or(locality.Zone(a.cfg.Zone), locality.ZoneOf(n.Labels))
		f.Leaving = kube.Leaving(n)
	})
}

// learnLeaving takes from a view whether this node is about to be removed.
func (a *agent) learnLeaving(u node.Update) {
	leaves, known := u.Leaves(a.cfg.Name)
	a.factsMu.Lock()
	was := a.facts.Leaving
	a.factsMu.Unlock()
	if known && leaves != was {
		a.log.Info("whether this node is about to be removed has changed: load balancers learn it from /healthz", "leaving", leaves)
		a.setFacts(func(f *node.Facts) { f.Leaving = leaves })
	}
}

// setFacts changes what the agent knows of its node. The addresses of the tunnel are
// those that the machine has now.
func (a *agent) setFacts(change func(*node.Facts)) {
	a.factsMu.Lock()
	defer a.factsMu.Unlock()
	change(&a.facts)
	a.facts.Tunnel = a.tunnel.addresses(a.cfg.Server)
	a.agent.SetFacts(a.facts)
}

// useRanges applies ranges to what works by them.
func (a *agent) useRanges(ranges []netip.Prefix) error {
	if mode, ok := a.mode.(proxy.Ranged); ok {
		if err := mode.SetRanges(ranges); err != nil {
			return err
		}
	}
	if a.dns.server != nil {
		a.dns.server.SetServiceCIDRs(ranges)
	}
	return nil
}

// rangesComponents follow the service ranges. In a cluster with a control plane of ours those
// of the flags hold: agents with a view ask nothing of the cluster's API.
func (a *agent) rangesComponents() ([]component, error) {
	if a.cfg.objectsElsewhere() {
		return nil, nil
	}
	client, err := kubeclient.New(a.watchConfig(), kind.All())
	if err != nil {
		return nil, err
	}
	return []component{{Name: "service ranges", Run: func(ctx context.Context) error { return a.ranges.Run(ctx, client, a.useRanges) }}}, nil
}

// rangesClient reads the service ranges.
func (a *agent) rangesClient() (resource.Client, error) {
	return kubeclient.New(a.restConfig(), []*resource.Descriptor{kind.ServiceCIDR})
}

// restConfig is the API as this node: the certificate is renewed underneath.
func (a *agent) restConfig() *rest.Config {
	if a.cfg.Cluster != nil {
		cfg := rest.CopyConfig(a.cfg.Cluster.REST)
		cfg.QPS, cfg.Timeout = -1, 10*time.Second
		return cfg
	}
	return &rest.Config{Host: "https://" + a.cfg.Server, QPS: -1, Timeout: 10 * time.Second, Transport: a.apiTransport()}
}

// apiTransport is what all clients of the API share. A peer that vanished is noticed by pings.
func (a *agent) apiTransport() *apiTransport {
	a.apiOnce.Do(func() {
		dial := DialServers(a.cfg.servers(), a.renewer.TLSConfig)
		a.apiLink = &apiTransport{newest: a.renewer.Credentials, suspect: a.renewer.Suspect, open: func() *http.Transport {
			t := &http.Transport{
				TLSClientConfig: a.renewer.TLSConfig(HostOf(a.cfg.Server)), ForceAttemptHTTP2: true,
				TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
				HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
			}
			if len(a.cfg.OtherServers) > 0 {
				t.DialTLSContext = dial
			}
			return t
		}}
	})
	return a.apiLink
}

// watchConfig is the API as this node, for requests that last: no timeout ends them.
func (a *agent) watchConfig() *rest.Config {
	cfg := a.restConfig()
	cfg.Timeout = 0
	return cfg
}

func (a *agent) close() {
	a.gateway.close()
	a.dns.close()
	a.identity.close()
	if a.conn != nil {
		_ = a.conn.Close()
	}
	if a.probes != nil {
		a.probes.Close()
	}
	for _, l := range []net.Listener{a.health, a.metrics, a.local} {
		if l != nil {
			l.Close()
		}
	}
	if a.unlock != nil {
		a.unlock() // last: the next agent finds no socket
	}
}

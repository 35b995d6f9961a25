package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/node/healthcheck"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/witness"
	"github.com/proxima-mesh/proxima/internal/workload"
)

// NodeConfig is what an agent is told.
type NodeConfig struct {
	// Server (HOST:PORT) is the API that the node joins.
	Server string
	// Token to join with; not needed once the node has joined. TokenFile has it
	// instead, and is read whenever it may help.
	Token, TokenFile string
	// NewToken makes a token when nothing else helps; nil: nothing can.
	NewToken func(context.Context) (string, error)
	// Cluster: follow this Kubernetes API; Server and Token are not used then.
	Cluster *ClusterConfig
	// Name of the Node, and its topology zone (may be empty).
	Name, Zone string
	// Mode as --mode names it.
	Mode string
	// ServiceCIDRs to make local, where the mode listens on virtual addresses, until
	// the control plane has told its own for the first time.
	ServiceCIDRs []netip.Prefix
	// NodePortAddresses are ranges; node ports answer on this machine's addresses in
	// them. Nil: on all of them.
	NodePortAddresses []netip.Prefix
	// WorkloadCIDRs are the addresses of workloads: in kernel modes traffic to
	// cluster addresses from elsewhere is masqueraded. Empty: never, unless
	// MasqueradeAll.
	WorkloadCIDRs []netip.Prefix
	MasqueradeAll bool
	// MasqueradeMark is the bit of the packet mark that kernel modes use; 0: their
	// default.
	MasqueradeMark uint32
	// DataDir keeps the credentials and the last state.
	DataDir string
	// Host that health and metrics listen on, and their ports; 0: off.
	Host                    string
	HealthPort, MetricsPort int
	// HealthHost and MetricsHost, where they differ from Host; empty: they do not.
	HealthHost, MetricsHost string
	// ProbePort (UDP, on all addresses) at which the agent answers probes of other agents;
	// if it is taken, any free one; 0: off.
	ProbePort int
	// Lease is how long the node is taken to live after a renewal; 0: 40 s.
	Lease time.Duration
	// DNSPort on the same host, for UDP and TCP; 0: off, or DNSPortAuto.
	DNSPort int
	// Resolver of this machine, which the agent leaves as it found it.
	Resolver resolvconf.System
	// MachineID tells this machine from others of the same node name; empty: that of
	// package machine.
	MachineID string
	// ControlPlane labels the node as one, so that it stays out of zone ratios.
	ControlPlane bool
	Logger       *slog.Logger
}

// agent is a node's agent while it runs.
type agent struct {
	cfg      NodeConfig
	log      *slog.Logger
	renewer  *identity.Renewer
	registry *prometheus.Registry
	mode     modes.Mode
	agent    *node.Agent
	conn     *grpc.ClientConn
	feed     *fromview.Feed // of a control plane, or …
	cluster  *fromkube.Feed // … of a Kubernetes API
	checks   *healthcheck.Servers
	member   *membership.Member
	demand   *wire.Client // nil: the mode cannot count
	probes   *witness.Responder
	names    *records.Zone
	dns      nameServer
	health   net.Listener
	metrics  net.Listener
	local    net.Listener // Unix socket; nil: none could be made
	unlock   func()       // releases the data directory; nil: not locked yet
	unsaved  unsavedFiles
}

// RunNode joins a control plane, or goes on where the last run ended, and
// carries traffic until ctx ends. It calls ready when the first complete state
// is in place, which may come from disk while no control plane answers.
func RunNode(ctx context.Context, cfg NodeConfig, ready func(Serving)) error {
	a, err := newAgent(ctx, cfg)
	if err != nil {
		return err
	}
	defer a.close()
	parts := newParts(ctx)
	parts.run("memory", giveBack(agentWorth))
	if err := a.start(parts); err != nil {
		parts.end()
		return err
	}
	select {
	case <-a.agent.Ready():
		ready(Serving{API: a.restConfig().Host, Node: cfg.Name, Mode: a.mode.Name(), DNS: a.dns.address()})
	case <-parts.ctx.Done():
	}
	return parts.wait(ctx)
}

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
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := os.MkdirAll(a.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if a.unlock, err = local.Lock(a.dir()); err != nil {
		return nil, err
	}
	if cfg.Cluster != nil {
		err = a.learnNode(ctx)
	} else {
		err = a.join(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := a.learnRanges(ctx); err != nil {
		return nil, err
	}
	if a.mode, err = a.newMode(ctx); err != nil {
		return nil, err
	}
	a.agent, err = node.New(node.Options{
		Mode: a.mode, Facts: node.Facts{Name: cfg.Name, Zone: cfg.Zone, Machine: cmp.Or(a.cfg.MachineID, choose.UnknownMachine)},
		Applied: func(changes []proxy.Change) { a.checks.Update(changes) },
		Logger:  a.log.With("part", "agent"), Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	a.checks, err = healthcheck.New(healthcheck.Options{
		Healthy: a.agent.Healthy, Addresses: modes.LocalAddresses(a.cfg.NodePortAddresses),
		Logger: a.log.With("part", "health check node ports"), Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Cluster == nil {
		if a.conn, err = a.connect(); err != nil {
			return nil, err
		}
	}
	if cfg.HealthPort != 0 {
		address := net.JoinHostPort(cmp.Or(cfg.HealthHost, cfg.Host), strconv.Itoa(cfg.HealthPort))
		if a.health, err = listen("health", "--health-port", address, maxProbeConnections, a.log); err != nil {
			return nil, err
		}
	}
	if cfg.MetricsPort != 0 {
		address := net.JoinHostPort(cmp.Or(cfg.MetricsHost, cfg.Host), strconv.Itoa(cfg.MetricsPort))
		if a.metrics, err = listen("metrics", "--metrics-port", address, maxProbeConnections, a.log); err != nil {
			return nil, err
		}
	}
	if err := a.listenLocal(); err != nil {
		return nil, err
	}
	return a, a.listenNames()
}

// dir keeps everything of this agent.
func (a *agent) dir() string { return filepath.Join(a.cfg.DataDir, "node") }

func (a *agent) start(parts *parts) error {
	parts.run("agent", a.agent.Run)
	parts.run("health check node ports", a.checks.Run)
	parts.run("other modes", a.cleanOthers)
	follow := a.followPlane
	if a.cfg.Cluster != nil {
		follow = a.followCluster
	}
	if err := follow(parts); err != nil {
		return err
	}
	watching, err := kubeclient.New(a.watchConfig(), kind.All())
	if err != nil {
		return err
	}
	parts.run("service ranges", a.followRanges(watching))
	parts.run("mode", func(ctx context.Context) error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), modeGrace)
		defer cancel()
		return a.mode.Close(grace)
	})
	a.serveHTTP(parts)
	if err := a.serveLocal(parts); err != nil {
		return err
	}
	a.serveNames(parts)
	return nil
}

// followPlane runs what ties the agent to its control plane: the view, reports of
// demand, membership and the probes of workloads.
func (a *agent) followPlane(parts *parts) error {
	parts.run("certificate renewal", a.renewer.Run)
	a.feed = fromview.NewFeed(fromview.FeedConfig{
		Conn: a.conn, Node: a.cfg.Name, Zone: a.cfg.Zone, StateFile: a.viewFile(),
		Update: a.apply, Logger: a.log.With("part", "view"),
	})
	registerFeed(a.registry, a.feed)
	parts.run("view", a.feed.Run)
	a.reportDemand(parts)
	if err := a.attend(parts); err != nil {
		return err
	}
	client, err := kubeclient.New(a.restConfig(), kind.All())
	if err != nil {
		return err
	}
	a.member = membership.New(membership.Config{
		Client: client, Name: a.cfg.Name, Zone: a.cfg.Zone, ControlPlane: a.cfg.ControlPlane,
		Lease: a.cfg.Lease, MachineID: a.cfg.MachineID, OnNode: a.learn,
		Addresses: func() []netip.Addr { return machineAddresses(a.cfg.Server) },
		Logger:    a.log.With("part", "membership"), Clock: clock.RealClock{},
	})
	parts.run("membership", a.member.Run)
	watching, err := kubeclient.New(a.watchConfig(), kind.All())
	if err != nil {
		return err
	}
	checks := workload.NewChecks(workload.ChecksConfig{
		Client: watching, Node: a.cfg.Name, Logger: a.log.With("part", "readiness"), Clock: clock.RealClock{},
	})
	parts.run("readiness probes", checks.Run)
	return nil
}

// reportDemand tells the control plane what traffic starts here, once the whole
// state is in place.
func (a *agent) reportDemand(parts *parts) {
	counter, ok := a.mode.(proxy.Counter)
	if !ok {
		a.log.Info("demand is not measured here: the mode cannot count", "mode", a.mode.Name())
		return
	}
	a.demand = wire.NewClient(wire.ClientConfig{
		Conn: a.conn, Node: a.cfg.Name, Zone: func() string { return a.feed.Status().Zone },
		Counter: counter, Start: a.agent.Ready(), Log: a.log.With("part", "demand"),
	})
	a.registry.MustRegister(a.demand)
	parts.run("demand", a.demand.Run)
}

// apply hands what the view says to those who carry traffic, and to those who
// resolve names.
func (a *agent) apply(u node.Update) {
	u.KeepLoopback(a.cfg.MachineID)
	a.names.Apply(u.Records())
	if u.Proxied() {
		a.agent.Apply(u.Update)
	}
}

// learn takes what the Node object says of this machine. Its zone label counts
// where no --zone was given.
func (a *agent) learn(n *corev1.Node) {
	facts := node.Facts{Name: a.cfg.Name, Zone: a.cfg.Zone, Machine: cmp.Or(a.cfg.MachineID, choose.UnknownMachine)}
	if facts.Zone == "" {
		facts.Zone = n.Labels[corev1.LabelTopologyZone]
	}
	facts.Leaving = n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taintToBeDeleted
	})
	a.agent.SetFacts(facts)
}

// taintToBeDeleted is set by the cluster autoscaler on a node that it will
// remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// modeGrace is what connections get to finish in when the agent ends.
const modeGrace = 5 * time.Second

// restConfig is the API as this node: the certificate is renewed underneath.
func (a *agent) restConfig() *rest.Config {
	if a.cfg.Cluster != nil {
		cfg := rest.CopyConfig(a.cfg.Cluster.REST)
		cfg.QPS, cfg.Timeout = -1, 10*time.Second
		return cfg
	}
	return &rest.Config{Host: "https://" + a.cfg.Server, QPS: -1, Timeout: 10 * time.Second, Transport: &reconnecting{renewer: a.renewer, Transport: &http.Transport{
		TLSClientConfig: a.renewer.TLSConfig(HostOf(a.cfg.Server)), ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}}}
}

// watchConfig is the API as this node, for requests that last: no timeout ends
// them, and a peer that vanished is noticed by pings.
func (a *agent) watchConfig() *rest.Config {
	cfg := a.restConfig()
	cfg.Timeout = 0
	if a.cfg.Cluster != nil {
		return cfg
	}
	cfg.Transport.(*reconnecting).HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second}
	return cfg
}

func (a *agent) serveHTTP(parts *parts) {
	if a.health != nil {
		parts.run("health", serve(a.health, a.agent.HealthHandler()))
	}
	if a.metrics != nil {
		parts.run("metrics", serve(a.metrics, a.agent.MetricsHandler(a.registry)))
	}
}

// serve HTTP on a listener until the context ends.
func serve(l net.Listener, handler http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := listener.HTTPServer(handler)
		stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// NodeStatus is what an agent says of itself, as JSON at /status of its socket.
type NodeStatus struct {
	Version version.Info `json:"version"`
	Agent   node.Status  `json:"agent"`
	// PID of the agent's process.
	PID int `json:"pid"`
	// API (URL) that the agent uses.
	API string `json:"api"`
	// Unsaved are files that the agent could not write.
	Unsaved []UnsavedFile `json:"unsaved,omitempty"`
	// View of a control plane, or the Kubernetes API, that the agent follows: one of
	// the two.
	View    *ViewStatus      `json:"view,omitempty"`
	Cluster *fromkube.Status `json:"cluster,omitempty"`
	// HealthCheckNodePorts that are not served, each with the reason.
	HealthCheckNodePorts []string `json:"healthCheckNodePorts,omitempty"`
	// DNS (host:port) of names; empty: off.
	DNS string `json:"dns,omitempty"`
	// Certificate by which the control plane recognises this node; nil: it follows a
	// Kubernetes API.
	Certificate *identity.CertificateStatus `json:"certificate,omitempty"`
	// Membership is how the Node and its Lease are kept; nil as above.
	Membership *membership.Status `json:"membership,omitempty"`
}

func (a *agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	status := NodeStatus{
		Version: version.Get(), Agent: a.agent.Status(), DNS: a.dns.address(),
		PID: os.Getpid(), API: a.api(), Unsaved: a.unsavedFiles(),
	}
	if a.cluster != nil {
		followed := a.cluster.Status()
		status.Cluster = &followed
	} else {
		followed := viewStatus(a.feed.Status())
		status.View = &followed
		certificate, member := a.renewer.Status(), a.member.Status()
		status.Certificate, status.Membership = &certificate, &member
	}
	for _, f := range a.checks.Failures() {
		status.HealthCheckNodePorts = append(status.HealthCheckNodePorts, fmt.Sprintf("%d of service %s is not served: %v", f.Port, f.Service, f.Err))
	}
	_ = json.NewEncoder(w).Encode(status)
}

// registerFeed publishes how the view is followed.
func registerFeed(reg prometheus.Registerer, feed *fromview.Feed) {
	metric := func(name, help string, value func(fromview.FeedStatus) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "proxima", Subsystem: "view", Name: name, Help: help},
			func() float64 { return value(feed.Status()) }))
	}
	metric("connected", "1 while a stream to the control plane is open.", func(s fromview.FeedStatus) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	metric("unsaved", "1 while the state on disk lacks the newest changes.", func(s fromview.FeedStatus) float64 {
		if s.Unsaved {
			return 1
		}
		return 0
	})
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "proxima", Subsystem: "view", Name: "streams_total", Help: "Streams to the control plane that were admitted.",
	}, func() float64 { return float64(feed.Status().Streams) }))
	metric("received_bytes", "Payload received on the present stream, or on the last one.", func(s fromview.FeedStatus) float64 { return float64(s.BytesReceived) })
	metric("sent_bytes", "Payload sent on the present stream, or on the last one.", func(s fromview.FeedStatus) float64 { return float64(s.BytesSent) })
	metric("rejected_resources", "Resources of the view that this agent could not read.", func(s fromview.FeedStatus) float64 { return float64(len(s.Rejected)) })
}

func (a *agent) close() {
	a.dns.close()
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

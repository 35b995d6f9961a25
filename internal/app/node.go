package app

import (
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
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/dns/zone"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/node/view"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
)

// NodeConfig is what an agent is told.
type NodeConfig struct {
	// Server (HOST:PORT) is the API that the node joins.
	Server string
	// Token to join with; not needed once the node has joined.
	Token string
	// Name of the Node, and its topology zone (may be empty).
	Name, Zone string
	// Mode as --mode names it.
	Mode string
	// ServiceCIDRs to make local, where the mode listens on virtual addresses, until
	// the control plane has told its own for the first time.
	ServiceCIDRs []netip.Prefix
	// NodePortAddresses: nil: all of this machine.
	NodePortAddresses []netip.Addr
	// DataDir keeps the credentials and the last state.
	DataDir string
	// Host that health and metrics listen on, and their ports; 0: off.
	Host                    string
	HealthPort, MetricsPort int
	// DNSPort on the same host, for UDP and TCP; 0: off, or DNSPortAuto.
	DNSPort int
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
	mode     proxy.Mode
	agent    *node.Agent
	views    string // address
	feed     *view.Feed
	names    *zone.Zone
	dns      nameServer
	health   net.Listener
	metrics  net.Listener
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
	if err := a.start(parts); err != nil {
		parts.end()
		return err
	}
	select {
	case <-a.agent.Ready():
		ready(Serving{API: "https://" + cfg.Server, Node: cfg.Name, Mode: a.mode.Name(), DNS: a.dns.address()})
	case <-parts.ctx.Done():
	}
	return parts.wait(ctx)
}

func newAgent(ctx context.Context, cfg NodeConfig) (a *agent, err error) {
	a = &agent{cfg: cfg, log: orDiscard(cfg.Logger), registry: prometheus.NewRegistry(), names: zone.New()}
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
	if a.renewer, err = a.join(ctx); err != nil {
		return nil, err
	}
	if err := a.learnRanges(ctx); err != nil {
		return nil, err
	}
	if a.mode, err = newMode(a.cfg, a.registry, a.log); err != nil {
		return nil, err
	}
	a.agent, err = node.New(node.Options{
		Mode: a.mode, Facts: node.Facts{Name: cfg.Name, Zone: cfg.Zone},
		Logger: a.log.With("part", "agent"), Registerer: a.registry,
	})
	if err != nil {
		return nil, err
	}
	if a.views, err = a.viewAddress(); err != nil {
		return nil, err
	}
	if cfg.HealthPort != 0 {
		if a.health, err = listen("health", "--health-port", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.HealthPort))); err != nil {
			return nil, err
		}
	}
	if cfg.MetricsPort != 0 {
		if a.metrics, err = listen("metrics", "--metrics-port", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.MetricsPort))); err != nil {
			return nil, err
		}
	}
	return a, a.listenNames()
}

// dir keeps everything of this agent.
func (a *agent) dir() string { return filepath.Join(a.cfg.DataDir, "node") }

// join uses the credentials of an earlier run for the same node and server, or
// spends the token.
func (a *agent) join(ctx context.Context) (*identity.Renewer, error) {
	log := a.log.With("part", "identity")
	renewer, err := identity.NewRenewer(a.dir(), log)
	if err == nil {
		c := renewer.Credentials()
		name, _ := identity.NodeName(c.Subject.User, c.Subject.Groups)
		if name == a.cfg.Name && c.Server == a.cfg.Server {
			return renewer, nil
		}
		err = fmt.Errorf("%s holds the credentials of node %s at %s", a.dir(), name, c.Server)
	}
	if a.cfg.Token == "" {
		return nil, &HintError{Err: err, Text: "join with --token-file; make a token with \"proxima token create --kind node --name " + a.cfg.Name + "\""}
	}
	if _, err := identity.Enroll(ctx, a.cfg.Server, a.cfg.Token, a.dir()); err != nil {
		return nil, err
	}
	return identity.NewRenewer(a.dir(), log)
}

// viewAddress is where this node's view is served.
func (a *agent) viewAddress() (string, error) {
	c := a.renewer.Credentials()
	if c.GRPCAddress == "" {
		return "", fmt.Errorf("control plane %s serves no node views: it runs with --grpc-port 0", c.Server)
	}
	host, port, err := net.SplitHostPort(c.GRPCAddress)
	if err != nil {
		return "", fmt.Errorf("address of the node views: %w", err)
	}
	if host == "" { // the same as the API's
		if host, _, err = net.SplitHostPort(c.Server); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}

func (a *agent) start(parts *parts) error {
	parts.run("certificate renewal", a.renewer.Run)
	parts.run("agent", a.agent.Run)
	a.feed = view.NewFeed(view.FeedConfig{
		Target: "passthrough:///" + a.views, Credentials: credentials.NewTLS(a.renewer.TLSConfig(HostOf(a.views))),
		DialOptions: []grpc.DialOption{grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true,
		})},
		Node: a.cfg.Name, Zone: a.cfg.Zone, StateFile: filepath.Join(a.dir(), "view"),
		Update: a.apply, Log: a.log.With("part", "view"),
	})
	registerFeed(a.registry, a.feed)
	parts.run("view", a.feed.Run)
	client, err := kubeclient.New(a.restConfig(), kind.All())
	if err != nil {
		return err
	}
	member := membership.New(membership.Config{
		Client: client, Name: a.cfg.Name, Zone: a.cfg.Zone, ControlPlane: a.cfg.ControlPlane,
		OnNode: a.learn, Logger: a.log.With("part", "membership"), Clock: clock.RealClock{},
	})
	parts.run("membership", member.Run)
	parts.run("mode", func(ctx context.Context) error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), modeGrace)
		defer cancel()
		return a.mode.Close(grace)
	})
	a.serveHTTP(parts)
	a.serveNames(parts)
	return nil
}

// apply hands what the view says to those who carry traffic, and to those who
// resolve names.
func (a *agent) apply(u view.Update) {
	a.names.Apply(u.Zone())
	if u.Carried() {
		a.agent.Apply(u.Update)
	}
}

// learn takes what the Node object says of this machine. Its zone label counts
// where no --zone was given.
func (a *agent) learn(n *corev1.Node) {
	facts := node.Facts{Name: a.cfg.Name, Zone: a.cfg.Zone}
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
	return &rest.Config{Host: "https://" + a.cfg.Server, QPS: -1, Timeout: 10 * time.Second, Transport: reconnecting{&http.Transport{
		TLSClientConfig: a.renewer.TLSConfig(HostOf(a.cfg.Server)), ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}}}
}

// reconnecting drops its connections when a request is refused for its
// credentials: they were made with a certificate that has been renewed since.
type reconnecting struct{ *http.Transport }

func (r reconnecting) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.Transport.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		r.CloseIdleConnections()
	}
	return resp, err
}

func (a *agent) serveHTTP(parts *parts) {
	if a.health != nil {
		parts.run("health", serve(a.health, a.agent.HealthHandler()))
	}
	if a.metrics != nil {
		mux := http.NewServeMux()
		mux.Handle("/", a.agent.MetricsHandler(a.registry))
		mux.HandleFunc("GET /status", a.serveStatus)
		parts.run("metrics", serve(a.metrics, mux))
	}
}

// serve HTTP on a listener until the context ends.
func serve(l net.Listener, handler http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
		stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// NodeStatus is what an agent tells of itself, as JSON at /status of its metrics
// port.
type NodeStatus struct {
	Version version.Info `json:"version"`
	Agent   node.Status  `json:"agent"`
	View    ViewStatus   `json:"view"`
}

func (a *agent) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(NodeStatus{Version: version.Get(), Agent: a.agent.Status(), View: viewStatus(a.feed.Status())})
}

// registerFeed publishes how the view is followed.
func registerFeed(reg prometheus.Registerer, feed *view.Feed) {
	metric := func(name, help string, value func(view.FeedStatus) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "proxima", Subsystem: "view", Name: name, Help: help},
			func() float64 { return value(feed.Status()) }))
	}
	metric("connected", "1 while a stream to the control plane is open.", func(s view.FeedStatus) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	metric("unsaved", "1 while the state on disk lacks the newest changes.", func(s view.FeedStatus) float64 {
		if s.Unsaved {
			return 1
		}
		return 0
	})
	metric("streams_total", "Streams to the control plane that were admitted.", func(s view.FeedStatus) float64 { return float64(s.Streams) })
	metric("received_bytes", "Payload received on the present stream, or on the last one.", func(s view.FeedStatus) float64 { return float64(s.BytesReceived) })
	metric("sent_bytes", "Payload sent on the present stream, or on the last one.", func(s view.FeedStatus) float64 { return float64(s.BytesSent) })
	metric("rejected_resources", "Resources of the view that this agent could not read.", func(s view.FeedStatus) float64 { return float64(len(s.Rejected)) })
}

func (a *agent) close() {
	a.dns.close()
	for _, l := range []net.Listener{a.health, a.metrics} {
		if l != nil {
			l.Close()
		}
	}
}

// newMode makes the data path that --mode names.
func newMode(cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	switch cfg.Mode {
	case "auto", "userspace":
		if cfg.Mode == "auto" {
			log.Info("mode chosen", "mode", "userspace", "why", "it works anywhere, and is the only one in this version")
		}
		opts := userspace.Options{Logger: log.With("part", "userspace"), Registerer: reg, NodePortAddresses: cfg.NodePortAddresses}
		for _, p := range cfg.ServiceCIDRs {
			if !p.Addr().IsLoopback() {
				opts.LocalRanges = append(opts.LocalRanges, p)
			}
		}
		return userspace.New(opts)
	case "nftables", "iptables", "ipvs", "ebpf":
		return nil, fmt.Errorf("--mode %s: not in this version; use userspace", cfg.Mode)
	}
	return nil, fmt.Errorf("--mode %q: use auto or userspace", cfg.Mode)
}

// ReadToken reads a file that holds a token alone.
func ReadToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

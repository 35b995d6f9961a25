package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/credential"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/cgroups"
	"github.com/proxima-mesh/proxima/internal/node/fallback"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/node/healthcheck"
	"github.com/proxima-mesh/proxima/internal/node/isolation"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/node/ranges"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
	"github.com/proxima-mesh/proxima/internal/scavenge"
	"github.com/proxima-mesh/proxima/internal/witness"
)

// NodeConfig configures an agent.
type NodeConfig struct {
	// Server (HOST:PORT) is the API that the node joins.
	Server string
	// OtherServers are the APIs of further instances of its control plane.
	OtherServers []string
	// Token to join with; not needed once the node has joined. TokenFile has it
	// instead, and is read whenever it may help.
	Token, TokenFile string
	// ServerCAFile has the certificates (PEM) of the authorities of the control plane. It is
	// needed for tokens of ServiceAccounts, and read when one is used.
	ServerCAFile string
	// ByAggregatedAPI, with Cluster: the node joins and renews at the API server of the cluster, where
	// the roles of the cluster decide; no token of the fields above is used.
	ByAggregatedAPI bool
	// NewToken makes a token when nothing else helps; nil: nothing does.
	NewToken func(context.Context) (string, error)
	// Cluster is the Kubernetes API of the cluster that the node is of. Without a Server the
	// agent follows it; with one, it follows the view of that control plane, and the API in
	// its place only: see package fallback. The Node object and its Lease are the kubelet's.
	Cluster *ClusterConfig
	// DirectAfter is how long an agent with a Server and a Cluster goes on with its last view
	// when there is no control plane and something has changed; 0: 60 s.
	DirectAfter time.Duration
	// Name of the Node, and its topology zone (may be empty).
	Name, Zone string
	// Mode as --mode names it.
	Mode string
	// Cgroup is the directory of the cgroup whose sockets the ebpf mode translates; empty: the root.
	Cgroup string
	// PeerIsVIP and HostOnly are options of the ebpf mode, see ebpf.Options.
	PeerIsVIP, HostOnly bool
	// SelfTest is this program with its first arguments, by which it measures what the ebpf mode would save (see
	// modes.EstimateLayer); nil: nothing is measured.
	SelfTest []string
	// IPVS is what the ipvs mode is told in addition.
	IPVS modes.IPVS
	// ServiceCIDRs to make local, where the mode listens on virtual addresses, until
	// those of the control plane are known.
	ServiceCIDRs []netip.Prefix
	// NodePortAddresses are ranges; node ports answer on this machine's addresses in
	// them. Nil: the default of the mode, see modes.Config; all of them with AllNodePorts.
	NodePortAddresses []netip.Prefix
	AllNodePorts      bool
	// WorkloadCIDRs are the addresses of workloads: in kernel modes traffic to
	// cluster addresses from elsewhere is masqueraded. Empty: never, unless
	// MasqueradeAll.
	WorkloadCIDRs []netip.Prefix
	// WorkloadInterfaces are those by which workloads of this machine send, as cni0 or cali*: what
	// arrives by them counts as if it came from WorkloadCIDRs.
	WorkloadInterfaces proxy.Interfaces
	MasqueradeAll      bool
	// MasqueradeMark is the bit of the packet mark that kernel modes use; 0: their
	// default.
	MasqueradeMark uint32
	// Windows are settings of the mode kernelspace.
	Windows modes.Windows
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
	// TunnelPort of the way to other sites; if it is taken, any free one; 0: off. It is
	// opened when another site offers something.
	TunnelPort int
	// AccountingOff leaves the kernel's counting of bytes as it is.
	AccountingOff bool
	// Lease is how long the node is taken to live after a renewal; 0: 40 s.
	Lease time.Duration
	// SpiffeSocket is the path of the SPIFFE Workload API's socket, SpiffeSocketAuto, or
	// empty: off.
	SpiffeSocket string
	// PodNamespaces is the folder of the network namespaces of the node's Pods, a file each: connections
	// of those that have a sidecar are led to it. Empty: they are not. It needs CAP_SYS_ADMIN.
	PodNamespaces string
	// Traces of changes; its Ratio is not used, as the control plane samples.
	Traces TracesConfig
	// version that is announced; empty: that of the program.
	version string
	// certificateSpread, and now, by which certificates are judged, as in workload.Config.
	certificateSpread time.Duration
	now               func() time.Time
	// DNSPort on the same host, for UDP and TCP; 0: off, or DNSPortAuto.
	DNSPort int
	// DNSCapture: questions of port 53 of this machine, and of those that pass through it from
	// WorkloadCIDRs (empty: all), are led to the agent.
	DNSCapture bool
	// DNSUpstreams (ADDRESS:PORT) are asked for names of others; empty: the resolvers that
	// the machine has.
	DNSUpstreams []string
	// Resolver of this machine, which the agent leaves as it found it.
	Resolver resolvconf.System
	// Gateway: serve streams between sites, in the place of this machine's traffic; nil:
	// do not. The agent has no data path, no tunnel and no socket for local programs then.
	Gateway *GatewayConfig
	// MachineID distinguishes this machine from others of the same node name; empty: that of
	// package machine.
	MachineID string
	// ControlPlane labels the node as one, so that it stays out of zone ratios.
	ControlPlane bool
	Logger       *slog.Logger
}

// agent is a node's agent. What it follows is a control plane of ours or any Kubernetes
// API, or the one in place of the other (inClusterComponents); both end in the same model, from which the mode, DNS and health checks work:
//
//	control plane                          Kubernetes API
//	 view   demand  heartbeat  Node,Lease   Services, slices, Nodes
//	  │       ▲        ▲          ▲            │
//	  ▼       │        │          │            ▼
//	feed    counter  witness  membership     cluster
//	  │       │                                │
//	  └───────┼────────────► apply ◄───────────┘
//	          │          ┌─────┴─────┐
//	        mode ◄───── agent      names ──► DNS
//	                     │
//	              health check node ports
type agent struct {
	cfg      NodeConfig
	log      *slog.Logger
	renewer  *identity.Renewer
	apiLink  *apiTransport // of all clients of the API; made when it is first needed
	apiOnce  sync.Once
	registry *prometheus.Registry
	traces   *traces // nil: off
	mode     modes.Mode
	// estimate of what mode ebpf would save, once it was measured.
	estimate atomic.Pointer[ebpf.Estimate]
	agent    *node.Agent
	conn     *grpc.ClientConn
	feed     *fromview.Feed   // of a control plane, or …
	cluster  *fromkube.Feed   // … of a Kubernetes API
	direct   *fallback.Switch // … or of the first, and of the second in its place
	checks   *healthcheck.Servers
	member   *membership.Member
	demand   *wire.Client // nil: the mode cannot count
	// accounting of bytes; nil: the mode counts them, or nothing does.
	accounting *nodeAccounting
	unanswered *unanswered
	probes     *witness.Responder
	ranges     *ranges.Keeper
	identity   *nodeIdentity // nil: see NodeConfig.meshed
	tunnel     *nodeTunnel   // nil: off
	// credentials out of Secrets, for external services; nil: as identity.
	credentials *credential.Keeper
	// isolation keeps meshes apart on this node; nil: as identity, or this is a gateway.
	isolation *isolation.Keeper
	// permissions of workloads without a sidecar; nil: this is a gateway.
	permissions *permit.Keeper
	clients     clientNamespaces
	// cgroups of workloads; nil: there are none here.
	cgroups  *cgroups.Table
	gateway  *gateway // nil: the agent is none
	names    *records.Zone
	dns      nameServer
	upstream *net.Resolver // of the agent itself; nil: that of the machine
	health   net.Listener
	metrics  net.Listener
	local    net.Listener // Unix socket; nil: none could be made
	unlock   func()       // releases the data directory; nil: not locked yet
	unsaved  unsavedFiles

	factsMu sync.Mutex
	facts   node.Facts
	// ofNode are the internal addresses of the Node that the kubelet writes, once it is known.
	// The mode asks for them in the middle of a change, so no lock guards them.
	ofNode atomic.Pointer[[]netip.Addr]
}

// RunNode joins a control plane, or goes on where the last run ended, and serves until ctx
// ends. It calls ready when the first complete state is in place, which may come from disk
// while no control plane answers.
func RunNode(ctx context.Context, cfg NodeConfig, ready func(Serving)) error {
	a, err := newAgent(ctx, cfg)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // it was ended while it waited for its Node
	}
	if err != nil {
		return err
	}
	defer a.close()
	components, err := a.components()
	if err != nil {
		return err
	}
	serving := Serving{API: a.restConfig().Host, Node: cfg.Name, Mode: a.mode.Name(), DNS: a.dns.address()}
	if s := modes.IPVSOf(a.mode); s != nil && s.Instead != "" {
		serving.Instead, serving.Missing = ipvsMode, s.Missing
	}
	if a.gateway != nil {
		serving.Gateway = a.gateway.object().address()
	}
	return run(ctx, unopposed{}, append(components, announce(ready, serving)))
}

// minReclaimNode is the least memory (bytes) that an agent collects for.
const minReclaimNode = 12 << 20

// dir keeps everything of this agent.
func (a *agent) dir() string { return filepath.Join(a.cfg.DataDir, "node") }

// components of the agent. They end at the same time.
func (a *agent) components() ([]component, error) {
	source := a.planeComponents
	switch {
	case a.cfg.inCluster():
		source = a.inClusterComponents
	case a.cfg.objectsElsewhere():
		source = a.clusterGatewayComponents
	case a.cfg.Cluster != nil:
		source = a.clusterComponents
	}
	following, err := source()
	if err != nil {
		return nil, err
	}
	serviceRanges, err := a.rangesComponents()
	if err != nil {
		return nil, err
	}
	programs, err := a.localComponents()
	if err != nil {
		return nil, err
	}
	identities, err := a.identityComponents()
	if err != nil {
		return nil, err
	}
	gateways, err := a.gatewayComponents()
	if err != nil {
		return nil, err
	}
	all := slices.Concat(
		[]component{
			{Name: "memory", Run: func(ctx context.Context) error { return scavenge.Run(ctx, minReclaimNode) }},
			{Name: "health check node ports", Run: a.checks.Run},
			{Name: "other modes", Run: a.cleanOthers},
			{Name: "mode", Run: a.closeMode},
			{Name: "limits of the mode", Run: a.reportLimits},
			{Name: "self-test", Run: a.estimateLayer},
		},
		serviceRanges, following, identities, a.tunnelComponents(), gateways, a.httpComponents(), programs, a.dnsComponents(),
		a.isolationComponents(), a.permissionComponents(), a.cgroupComponents(), a.unanswered.components(),
		a.traces.components(),
		[]component{{Name: "agent", Run: a.agent.Run, Ready: a.agent.Ready()}},
	)
	return append(all, a.gateway.envoyComponents()...), nil
}

package cli

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/controller/garbage"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// Ports of CONTRACT; each has a flag.
const (
	defaultAPIAddress  = "127.0.0.1:6443"
	defaultGRPCPort    = 6444
	defaultXDSPort     = 15010
	defaultHealthPort  = 10256
	defaultMetricsPort = 10249
	// The agent answers probes by UDP, at the number of its health port.
	defaultProbePort = defaultHealthPort
	// Gateways between zones, and a node's way to them.
	defaultIngressPort = 10001
	defaultEgressPort  = 10002
	defaultTunnelPort  = 10003
)

// planeFlags are those of a control plane.
type planeFlags struct {
	apiAddress   string
	grpcPort     int
	xdsPort      int
	xdsChosen    func() bool
	serviceCIDRs []string
	onePool      bool
	onePortPool  bool
	externalIPs  []string
	meshCIDRs    []string
	maxEndpoints int
	maxMirrored  int
	maxPods      int
	limits       apiserver.Limits
	quota        []string
	renewExpired time.Duration
	signers      string
	topologyMode string
	registries   registryFlags
	feed         feedFlags
	pulsarPort   int
	console      bool
	traces       traceFlags
}

func (p *planeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.apiAddress, "api-address", defaultAPIAddress, "address that the API listens on; port 0: any free one")
	f.IntVar(&p.grpcPort, "grpc-port", defaultGRPCPort, "port of node views, on the API's host; 0: off")
	f.IntVar(&p.xdsPort, "xds-port", defaultXDSPort, "port for the proxies of workloads and for gRPC programs (xDS), on the API's host; 0: off. The default is left out where it is not free")
	p.xdsChosen = func() bool { return f.Changed("xds-port") }
	p.registries.add(f)
	p.feed.add(f)
	p.traces.addEndpoint(f)
	p.traces.addSample(f)
	f.IntVar(&p.pulsarPort, "pulsar-port", 0, "port for clients of Apache Pulsar that read the change feed, on the API's host, with TLS as --registry-tls says; 6650 is usual; 0: off")
	f.BoolVar(&p.console, "console", true, "serve the files of the web console at /console/ of the API")
	f.StringSliceVar(&p.serviceCIDRs, "service-cidr", nil, "ranges of virtual IPs, one per family, at the first start (default: 127.96.0.0/16; root: 10.96.0.0/16,fd00:96::/108)")
	f.BoolVar(&p.onePool, "service-cidr-one-pool", false, "hand out all addresses of a range alike, and not those of its static band last (its lower end, which is for addresses that you choose)")
	f.BoolVar(&p.onePortPool, "node-ports-one-pool", false, "the same for node ports")
	f.StringSliceVar(&p.externalIPs, "external-ip-ranges", nil, "ranges that spec.externalIPs of Services may be in; none: no Service may have any (default: all addresses, as in Kubernetes, so that who may write a Service can take the traffic of any address)")
	f.StringSliceVar(&p.meshCIDRs, "mesh-cidr", nil, "ranges of virtual IPs of names below .mesh, one per family, at the first start; none: there are no such names (default: 127.97.0.0/16; root: 240.0.0.0/4,fd00:240::/64; Windows: 100.96.0.0/11)")
	f.IntVar(&p.maxEndpoints, "max-endpoints-per-slice", 100, "most endpoints in an EndpointSlice, 1 to 1000")
	f.IntVar(&p.maxMirrored, "mirroring-max-endpoints-per-subset", 1000, "most addresses mirrored of a subset of an Endpoints object, 1 to 1000")
	f.IntVar(&p.maxPods, "terminated-pod-gc-threshold", garbage.DefaultTerminatedThreshold, "how many Pods that have ended are kept before the oldest are deleted; -1: all")
	f.DurationVar(&p.renewExpired, "renew-expired", identity.DefaultRenewExpired, "how long after its end the certificate of a node or zone can still be renewed by proof of its key; 0: not at all")
	f.StringVar(&p.topologyMode, "default-topology-mode", topology.Adaptive, "topology mode of Services that name none, and whose namespace and Mesh name none: "+meshv1alpha1.TopologyModes+". It has an effect where nodes are in several zones, or other sites offer the Service, too")
	f.StringVar(&p.signers, "signer-kubeconfig", "", "kubeconfig of the Kubernetes API whose signers (CertificateSigningRequests) Meshes with backends of type External name")
	f.Int64Var(&p.limits.MaxRequestBytes, "max-request-bytes", apiserver.DefaultMaxRequestBytes, "most bytes in the body of a request to the API; more is refused with 413")
	f.IntVar(&p.limits.RequestsInFlight, "max-requests-inflight", apiserver.DefaultRequestsInFlight, "most reads that the API works on at a time; more are refused with 429, but for administrators. One user has at most a quarter. Watches do not count")
	f.IntVar(&p.limits.MutatingInFlight, "max-mutating-requests-inflight", apiserver.DefaultMutatingInFlight, "the same for writes. Renewals of nodes' leases do not count, they have slots of their own")
	f.IntVar(&p.limits.WatchesPerClient, "max-watches-per-client", apiserver.DefaultWatchesPerClient, "most watches that one user has open; more are refused with 429")
	f.IntVar(&p.limits.EventsPerSecond, "max-events-per-second", apiserver.DefaultEventsPerSecond, "most Events that one user may write in a second, in bursts of 30 s; more are refused with 429, but for administrators")
	f.StringSliceVar(&p.quota, "namespace-quota", nil, "most objects in each namespace, as services=1000,services.nodeports=50,count/dataplanes.mesh.proxima.dev=5000, by the names of Kubernetes' ResourceQuota; more are refused with 403 (default: no limit)")
	f.DurationVar(&p.limits.SlowClient, "slow-client-timeout", apiserver.DefaultSlowClient, "how long a watcher may take to accept a part of the answer before it is cut off")
}

func (p *planeFlags) config(s *settings, store string) (app.ControlPlaneConfig, error) {
	var cfg app.ControlPlaneConfig
	if p.maxEndpoints < 1 || p.maxEndpoints > 1000 {
		return cfg, usagef("--max-endpoints-per-slice %d: 1 to 1000", p.maxEndpoints)
	}
	if p.maxMirrored < 1 || p.maxMirrored > 1000 {
		return cfg, usagef("--mirroring-max-endpoints-per-subset %d: 1 to 1000", p.maxMirrored)
	}
	if p.renewExpired < 0 {
		return cfg, usagef("--renew-expired %s: must not be negative", p.renewExpired)
	}
	if err := p.checkLimits(); err != nil {
		return cfg, err
	}
	if err := topology.CheckDefault(p.topologyMode); err != nil {
		return cfg, usagef("--default-topology-mode: %w", err)
	}
	quota, err := apiserver.ParseQuota(p.quota, kind.All())
	if err != nil {
		return cfg, usagef("--namespace-quota %w", err)
	}
	cidrs, err := app.ParseServiceCIDRs(p.serviceCIDRs)
	if err != nil {
		return cfg, &problem.Error{Code: problem.Usage, Err: err}
	}
	if len(cidrs) == 0 {
		cidrs = app.DefaultServiceCIDRs(os.Geteuid() == 0)
	}
	meshCIDRs, err := p.meshRanges(cidrs)
	if err != nil {
		return cfg, err
	}
	externalIPs, err := p.externalRanges()
	if err != nil {
		return cfg, err
	}
	registries, err := p.registries.config()
	if err != nil {
		return cfg, err
	}
	feed, err := p.feed.config(store)
	if err != nil {
		return cfg, err
	}
	traces, err := p.traces.config()
	if err != nil {
		return cfg, err
	}
	log, err := s.logger()
	return app.ControlPlaneConfig{
		Traces:     traces,
		Registries: registries, Feed: feed, Pulsar: app.PulsarConfig{Port: p.pulsarPort, TLS: registries.TLS},
		Store: store, DataDir: s.dataDir, APIAddress: p.apiAddress, GRPCPort: p.grpcPort,
		XDSPort: p.xdsPort, XDSPortChosen: p.xdsChosen(),
		ServiceCIDRs: cidrs, OneAddressPool: p.onePool, OneNodePortPool: p.onePortPool, ExternalIPRanges: externalIPs,
		MeshCIDRs: meshCIDRs, MaxEndpointsPerSlice: p.maxEndpoints, MaxMirroredPerSubset: p.maxMirrored, Logger: log,
		MaxTerminatedPods: p.maxPods, Limits: p.limits, Quota: quota, RenewExpired: p.renewExpired, SignerKubeconfig: p.signers,
		DefaultTopologyMode: p.topologyMode, NoConsole: !p.console,
		Heuristics: s.heuristics,
	}, err
}

// externalRanges are those of --external-ip-ranges; nil: all, empty: none.
func (p *planeFlags) externalRanges() ([]netip.Prefix, error) {
	if slices.Equal(p.externalIPs, []string{"none"}) {
		return []netip.Prefix{}, nil
	}
	return prefixes("external-ip-ranges", p.externalIPs)
}

// meshRanges are those of --mesh-cidr; nil: there are to be no names below ".mesh".
func (p *planeFlags) meshRanges(services []netip.Prefix) ([]netip.Prefix, error) {
	if slices.Equal(p.meshCIDRs, []string{"none"}) {
		return nil, nil
	}
	ranges, err := app.ParseMeshCIDRs(p.meshCIDRs)
	if err != nil {
		return nil, &problem.Error{Code: problem.Usage, Err: err}
	}
	for _, r := range ranges {
		for _, s := range services {
			if r.Overlaps(s) {
				return nil, usagef("--mesh-cidr %s overlaps --service-cidr %s", r, s)
			}
		}
	}
	if len(ranges) == 0 {
		ranges = app.DefaultMeshCIDRs(os.Geteuid() == 0, services)
	}
	return ranges, nil
}

// minRequestBytes: less would refuse a Secret of ordinary size.
const minRequestBytes = 64 << 10

func (p *planeFlags) checkLimits() error {
	switch l := p.limits; {
	case p.maxPods == 0 || p.maxPods < -1:
		return usagef("--terminated-pod-gc-threshold %d: 1 or more, or -1 to keep all", p.maxPods)
	case l.MaxRequestBytes < minRequestBytes:
		return usagef("--max-request-bytes %d: %d or more", l.MaxRequestBytes, minRequestBytes)
	case l.RequestsInFlight < 1:
		return usagef("--max-requests-inflight %d: 1 or more", l.RequestsInFlight)
	case l.MutatingInFlight < 1:
		return usagef("--max-mutating-requests-inflight %d: 1 or more", l.MutatingInFlight)
	case l.WatchesPerClient < 1:
		return usagef("--max-watches-per-client %d: 1 or more", l.WatchesPerClient)
	case l.EventsPerSecond < 1:
		return usagef("--max-events-per-second %d: 1 or more", l.EventsPerSecond)
	case l.SlowClient < time.Second:
		return usagef("--slow-client-timeout %s: 1s or more", l.SlowClient)
	}
	return nil
}

// agentFlags are those of a node's agent.
type agentFlags struct {
	nodeName, zone          string
	mode                    string
	healthPort, metricsPort int
	dnsPort, probePort      int
	dnsCapture              bool
	dnsUpstreams            []string
	tunnelPort              int
	lease                   time.Duration
	workloadCIDRs           []string
	workloadInterfaces      []string
	masqueradeAll           bool
	nodePortAddresses       []string
	spiffeSocket            string
	accounting              string
	podNamespaces           string
	cgroup                  string
	ebpfGetpeername         bool
	ebpfHostOnly            bool
	ipvs                    modes.IPVS
	traces                  traceFlags
}

func (a *agentFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.nodeName, "node-name", "", "name of this machine's Node (default: the host name in lower case)")
	f.StringVar(&a.zone, "zone", "", "topology zone of this machine (default: its Node's label)")
	f.StringVar(&a.mode, "mode", "auto", "how traffic is carried: "+strings.Join(modes.Names(), ", ")+"; auto is the first that works here, except ebpf and ipvs (kernelspace is of Windows, nftables, iptables, ebpf and ipvs of Linux)")
	f.StringVar(&a.cgroup, "cgroup", "", "with --mode ebpf: directory of the cgroup (version 2) whose sockets get endpoints at connect, and of all below it (default: the root of the hierarchy, for an agent in the network namespace of the host)")
	f.BoolVar(&a.ebpfGetpeername, "ebpf-getpeername", false, "with --mode ebpf: getpeername(2) of a socket that got an endpoint returns the virtual address that it connected to, not the endpoint")
	f.BoolVar(&a.ebpfHostOnly, "ebpf-host-only", false, "with --mode ebpf: only sockets of the host's network namespace get endpoints at connect, where sidecars of other meshes redirect the connections of Pods by the address that they are for")
	f.StringVar(&a.ipvs.Scheduler, "ipvs-scheduler", "", "with --mode ipvs: how an endpoint is chosen: "+strings.Join(ipvs.Schedulers(), ", ")+" (default: rr where the weights are equal, else wrr)")
	f.BoolVar(&a.ipvs.StrictARP, "ipvs-strict-arp", false, "with --mode ipvs: set arp_ignore to 1 and arp_announce to 2, so that this machine answers ARP for no virtual address")
	f.StringVar(&a.ipvs.SysctlDir, "ipvs-sysctl-dir", "/proc/sys", "with --mode ipvs: folder of the kernel parameters; in a container, which may not write its own, the one of the machine that is mounted there")
	f.DurationVar(&a.ipvs.TCPTimeout, "ipvs-tcp-timeout", 0, "with --mode ipvs: how long idle TCP connections are remembered (0: as the kernel has it)")
	f.DurationVar(&a.ipvs.TCPFinTimeout, "ipvs-tcpfin-timeout", 0, "with --mode ipvs: how long TCP connections are remembered after a FIN (0: as the kernel has it)")
	f.DurationVar(&a.ipvs.UDPTimeout, "ipvs-udp-timeout", 0, "with --mode ipvs: how long UDP flows are remembered (0: as the kernel has it)")
	a.traces.addEndpoint(f)
	f.IntVar(&a.healthPort, "health-port", defaultHealthPort, "port of /healthz and /livez; 0: off")
	f.IntVar(&a.metricsPort, "metrics-port", defaultMetricsPort, "port of /metrics; 0: off")
	f.IntVar(&a.dnsPort, "dns-port", app.DNSPortAuto, "port of names (DNS by UDP and TCP); 0: off; -1: 53 for root, else 10053, if it is free")
	f.BoolVar(&a.dnsCapture, "dns-capture", false, "lead what this machine, and the workloads behind it, ask of port 53 to the agent, whatever resolver they ask; needs Linux and CAP_NET_ADMIN, and ends with the agent")
	addUpstreamFlag(f, &a.dnsUpstreams)
	f.IntVar(&a.probePort, "probe-port", defaultProbePort, "UDP port, on all addresses, at which the agent answers the probes of others; if it is taken, any free one; 0: off")
	f.IntVar(&a.tunnelPort, "tunnel-port", defaultTunnelPort, "port of the way to other zones, opened when another zone offers a service; if it is taken, any free one; 0: off")
	f.StringVar(&a.spiffeSocket, "spiffe-socket", app.SpiffeSocketAuto, "path of the SPIFFE Workload API's socket; auto: spiffe.sock beside the agent's own socket, of root in /run/proxima; none: off")
	f.StringVar(&a.accounting, "accounting", accountingOn, "on: kernel modes turn on the kernel's counting of bytes per connection (net.netfilter.nf_conntrack_acct), and report bytes and open connections; off: they leave it as it is")
	f.StringVar(&a.podNamespaces, "pod-namespaces", "", "in a Kubernetes cluster: folder in which the container runtime keeps the network namespaces of Pods; connections of Pods that have a sidecar are led to it there. It needs CAP_SYS_ADMIN. Empty: they are not")
	addLeaseFlag(f, &a.lease)
	f.StringSliceVar(&a.workloadCIDRs, "workload-cidr", nil, "addresses of workloads: kernel modes masquerade what comes to virtual IPs from elsewhere (default: nothing)")
	f.StringSliceVar(&a.workloadInterfaces, "workload-interface", nil, "interfaces by which workloads of this machine send, as cni0 or cali*: what arrives by them counts as from --workload-cidr")
	f.BoolVar(&a.masqueradeAll, "masquerade-all", false, "kernel modes masquerade all traffic to virtual IPs, as some networks need")
	f.StringSliceVar(&a.nodePortAddresses, "node-port-addresses", nil, "ranges of this machine's addresses on which node ports answer, or all (default: in mode nftables the primary address of each family, which the Node has; in the others all)")
}

// addUpstreamFlag is of agents and gateways.
func addUpstreamFlag(f *pflag.FlagSet, upstreams *[]string) {
	f.StringSliceVar(upstreams, "dns-upstream", nil, "resolvers (ADDRESS[:PORT]) for names of others (default: those that this machine has)")
}

// upstreams reads them.
func upstreams(texts []string) ([]string, error) {
	out, err := app.ParseUpstreams(texts)
	if err != nil {
		return nil, &problem.Error{Code: problem.Usage, Err: err}
	}
	return out, nil
}

// Values of --accounting.
const accountingOn, accountingOff = "on", "off"

// addLeaseFlag is of nodes and of workloads.
func addLeaseFlag(f *pflag.FlagSet, lease *time.Duration) {
	f.DurationVar(lease, "lease-duration", membership.LeaseDuration, "without a renewal for so long it is taken for dead; it is renewed four times as often (whole seconds, 4s to 10m)")
}

func checkLease(d time.Duration) error {
	if d < 4*time.Second || d > 10*time.Minute || d%time.Second != 0 {
		return usagef("--lease-duration %s: whole seconds, 4s to 10m", d)
	}
	return nil
}

// config of an agent, but for whom it follows.
func (a *agentFlags) config(s *settings, host string) (app.NodeConfig, error) {
	if err := checkLease(a.lease); err != nil {
		return app.NodeConfig{}, err
	}
	log, err := s.logger()
	if err != nil {
		return app.NodeConfig{}, err
	}
	cfg := app.NodeConfig{
		Name: nodeName(a.nodeName), Zone: a.zone, Mode: a.mode, DataDir: s.dataDir, MasqueradeAll: a.masqueradeAll,
		Host: host, HealthPort: a.healthPort, MetricsPort: a.metricsPort, DNSPort: a.dnsPort, ProbePort: a.probePort, Lease: a.lease, Logger: log,
		TunnelPort: a.tunnelPort, SpiffeSocket: a.spiffeSocket, DNSCapture: a.dnsCapture,
	}
	if cfg.Traces, err = a.traces.config(); err != nil {
		return cfg, err
	}
	if cfg.DNSUpstreams, err = upstreams(a.dnsUpstreams); err != nil {
		return cfg, err
	}
	if a.accounting != accountingOn && a.accounting != accountingOff {
		return cfg, usagef("--accounting %q: on or off", a.accounting)
	}
	cfg.AccountingOff = a.accounting == accountingOff
	cfg.PodNamespaces = a.podNamespaces
	if a.cgroup != "" && !filepath.IsAbs(a.cgroup) {
		return cfg, usagef("--cgroup %q: an absolute path, such as /sys/fs/cgroup/system.slice", a.cgroup)
	}
	for flag, given := range map[string]bool{"ebpf-getpeername": a.ebpfGetpeername, "ebpf-host-only": a.ebpfHostOnly} {
		if given && a.mode != ebpf.Name {
			return cfg, usagef("--%s goes with --mode ebpf", flag)
		}
	}
	cfg.Cgroup, cfg.PeerIsVIP, cfg.HostOnly = a.cgroup, a.ebpfGetpeername, a.ebpfHostOnly
	if s.io.Name != "" {
		cfg.SelfTest = []string{s.io.Name, "node", selfTestCommand}
	}
	if err := a.ipvs.Check(); err != nil {
		return cfg, usagef("--ipvs-scheduler, --ipvs-…-timeout: %v", err)
	}
	cfg.IPVS = a.ipvs
	switch {
	case a.spiffeSocket == "none":
		cfg.SpiffeSocket = ""
	case a.spiffeSocket != app.SpiffeSocketAuto && !filepath.IsAbs(a.spiffeSocket):
		return cfg, usagef("--spiffe-socket %q: an absolute path, auto or none", a.spiffeSocket)
	}
	if cfg.WorkloadCIDRs, err = prefixes("workload-cidr", a.workloadCIDRs); err != nil {
		return cfg, err
	}
	cfg.WorkloadInterfaces = a.workloadInterfaces
	if err := cfg.WorkloadInterfaces.Check(); err != nil {
		return cfg, usagef("--workload-interface: %v", err)
	}
	if cfg.AllNodePorts = slices.Equal(a.nodePortAddresses, []string{"all"}); cfg.AllNodePorts {
		return cfg, nil
	}
	cfg.NodePortAddresses, err = prefixes("node-port-addresses", a.nodePortAddresses)
	return cfg, err
}

// prefixes reads what a flag lists.
func prefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, usagef("--%s %q: not a CIDR such as 10.244.0.0/16", flag, text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func newUp(s *settings) *cobra.Command {
	var p planeFlags
	var a agentFlags
	cmd := &cobra.Command{
		Use:     "up",
		GroupID: "roles",
		Short:   "Run a control plane and this machine's agent in one process",
		Long: `Up runs everything that one machine needs: the API, the controllers and the
agent that carries traffic. Its state is in SQLite in the data directory, where
it also leaves a kubeconfig. When it serves, it prints one line on standard
output: ready api=URL node=NAME mode=MODE dns=ADDRESS.`,
		Example: "  proxima up &\n  export KUBECONFIG=~/.local/share/proxima/kubeconfig\n  kubectl get services",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plane, err := p.config(s, "sqlite:")
			if err != nil {
				return err
			}
			agent, err := a.config(s, app.HostOf(p.apiAddress))
			if err != nil {
				return err
			}
			agent.ServiceCIDRs, agent.ControlPlane = plane.ServiceCIDRs, a.zone == ""
			plane.WorkloadCIDRs, agent.Traces = agent.WorkloadCIDRs, plane.Traces
			return app.RunUp(cmd.Context(), app.UpConfig{ControlPlane: plane, Node: agent}, s.printReady)
		},
	}
	p.add(cmd)
	a.add(cmd)
	return cmd
}

func newControlPlane(s *settings) *cobra.Command {
	var p planeFlags
	var store, dnsAddress string
	var workloads []string
	var k kubernetesFlags
	var c clusterFlags
	var z zoneFlags
	cmd := &cobra.Command{
		Use:     "control-plane",
		GroupID: "roles",
		Short:   "Run a control plane without an agent",
		Long: `Control-plane runs the API and the controllers. It stands alone, or is one of
several: --role global has the policies and the zones and serves no nodes; --role
zone serves the nodes of one site, and goes on doing so while global is away.

With --store kubernetes --preset planner-only it runs beside a Kubernetes cluster:
it reads Services, EndpointSlices, Nodes and Namespaces there, writes nothing, and
answers status, explain and simulate. With --preset kube-proxy-replacement it plans
for the agents of the cluster: one replica leads, by a Lease, and writes plans and
conditions; all serve agents, which join by the token of their service account.
--kubeconfig names the cluster; without it, the pod's service account is used.`,
		Example: "  proxima control-plane --role global --api-address 10.0.0.1:6443\n" +
			"  proxima control-plane --role zone --zone east --global 10.0.0.1:6443 --token-file zone-east.token\n" +
			"  proxima control-plane --store kubernetes --preset planner-only --kubeconfig cluster.kubeconfig",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := p.config(s, store)
			if err != nil {
				return err
			}
			if err := c.apply(&cfg); err != nil {
				return err
			}
			cfg.DNSAddress = dnsAddress
			if cfg.WorkloadCIDRs, err = prefixes("workload-cidr", workloads); err != nil {
				return err
			}
			if err := z.apply(&cfg); err != nil {
				return err
			}
			if err := k.apply(s, &cfg); err != nil {
				return err
			}
			return app.RunControlPlane(cmd.Context(), cfg, s.printReady)
		},
	}
	cmd.Flags().StringVar(&store, "store", "sqlite:", "where the state is kept: sqlite:FILE (default file: store.db in the data directory), postgres://… or etcd://HOST:PORT,…, each for one control plane, memory, or kubernetes, with --preset")
	cmd.Flags().StringSliceVar(&workloads, "workload-cidr", nil, "addresses of workloads, as those of a cluster's Pods: sidecars begin mutual TLS where programs connect to one of them in place of a Service (default: they leave such connections as they are)")
	k.add(cmd.Flags())
	cmd.Flags().StringVar(&dnsAddress, "dns-address", "", "ADDRESS:PORT at which names of Services are answered for machines without an agent, by the addresses of ready endpoints (default: nowhere)")
	p.add(cmd)
	c.add(cmd)
	z.add(cmd)
	return cmd
}

// clusterFlags are those of a control plane that has several instances.
type clusterFlags struct {
	keyFile    string
	keyCommand []string
	advertise  string
	names      []string
	certFile   string
	certKey    string
}

func (c *clusterFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.keyFile, "cluster-key-file", "", "key by which the instances of a control plane on postgres or etcd share their keys, the same for all; without it (and without --cluster-key-command) there is one instance")
	f.StringSliceVar(&c.keyCommand, "cluster-key-command", nil, "in its place: a program and its arguments, separated by commas, that wraps and unwraps the key, as of a key management service")
	f.StringVar(&c.advertise, "advertise-address", "", "host by which agents and other instances reach this one (default: that of --api-address, or the address on the default route)")
	f.StringSliceVar(&c.names, "tls-san", nil, "further DNS names and IP addresses by which the API and the gRPC port are reached, as of a load balancer: they are in the server's certificate")
	f.StringVar(&c.certFile, "tls-cert-file", "", "certificate, with its chain, that browsers trust: the API shows it to those who reach it by a name that is in it. Agents and kubeconfigs need another name, or an address")
	f.StringVar(&c.certKey, "tls-key-file", "", "key of --tls-cert-file")
}

func (c *clusterFlags) apply(cfg *app.ControlPlaneConfig) error {
	if (c.certFile == "") != (c.certKey == "") {
		return usagef("--tls-cert-file and --tls-key-file: give both, or none")
	}
	cfg.ClusterKeyFile, cfg.ClusterKeyCommand, cfg.AdvertiseAddress = c.keyFile, c.keyCommand, c.advertise
	cfg.TLSNames = c.names
	cfg.TLSCertFile, cfg.TLSKeyFile = c.certFile, c.certKey
	return nil
}

// printReady writes the one line on standard output that says that a role serves.
func (s *settings) printReady(serving app.Serving) {
	line := "ready api=" + serving.API
	if serving.Node != "" {
		line += " node=" + serving.Node + " mode=" + serving.Mode
		if serving.Instead != "" {
			line += " instead-of=" + serving.Instead
		}
		if len(serving.Missing) > 0 {
			line += " missing=" + strings.Join(serving.Missing, ",")
		}
	}
	dns := serving.DNS
	if dns == "" {
		dns = "off"
	}
	fmt.Fprintln(s.io.Out, line+" dns="+dns)
}

package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/app"
)

// Ports of CONTRACT; each has a flag.
const (
	defaultAPIAddress  = "127.0.0.1:6443"
	defaultGRPCPort    = 6444
	defaultHealthPort  = 10256
	defaultMetricsPort = 10249
)

// planeFlags are those of a control plane.
type planeFlags struct {
	apiAddress   string
	grpcPort     int
	serviceCIDRs []string
	maxEndpoints int
}

func (p *planeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.apiAddress, "api-address", defaultAPIAddress, "address that the API listens on; port 0: any free one")
	f.IntVar(&p.grpcPort, "grpc-port", defaultGRPCPort, "port of node views, on the API's host; 0: off")
	f.StringSliceVar(&p.serviceCIDRs, "service-cidr", nil, "ranges of virtual IPs, one per family, at the first start (default: 127.96.0.0/16; root: 10.96.0.0/16,fd00:96::/108)")
	f.IntVar(&p.maxEndpoints, "max-endpoints-per-slice", 100, "most endpoints in an EndpointSlice, 1 to 1000")
}

func (p *planeFlags) config(s *settings, store string) (app.ControlPlaneConfig, error) {
	var cfg app.ControlPlaneConfig
	if p.maxEndpoints < 1 || p.maxEndpoints > 1000 {
		return cfg, usagef("--max-endpoints-per-slice %d: 1 to 1000", p.maxEndpoints)
	}
	cidrs, err := app.ParseServiceCIDRs(p.serviceCIDRs)
	if err != nil {
		return cfg, &usageError{err: err}
	}
	if len(cidrs) == 0 {
		cidrs = app.DefaultServiceCIDRs(os.Geteuid() == 0)
	}
	log, err := s.logger()
	return app.ControlPlaneConfig{
		Store: store, DataDir: s.dataDir, APIAddress: p.apiAddress, GRPCPort: p.grpcPort,
		ServiceCIDRs: cidrs, MaxEndpointsPerSlice: p.maxEndpoints, Logger: log,
	}, err
}

// agentFlags are those of a node's agent.
type agentFlags struct {
	nodeName, zone          string
	mode                    string
	healthPort, metricsPort int
	dnsPort                 int
}

func (a *agentFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.nodeName, "node-name", "", "name of this machine's Node (default: the host name in lower case)")
	f.StringVar(&a.zone, "zone", "", "topology zone of this machine (default: its Node's label)")
	f.StringVar(&a.mode, "mode", "auto", "how traffic is carried: auto or userspace")
	f.IntVar(&a.healthPort, "health-port", defaultHealthPort, "port of /healthz and /livez; 0: off")
	f.IntVar(&a.metricsPort, "metrics-port", defaultMetricsPort, "port of /metrics and /status; 0: off")
	f.IntVar(&a.dnsPort, "dns-port", app.DNSPortAuto, "port of names (DNS by UDP and TCP); 0: off; -1: 53 for root, else 10053, if it is free")
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
			return app.RunUp(cmd.Context(), app.UpConfig{
				ControlPlane: plane,
				Node: app.NodeConfig{
					Name: nodeName(a.nodeName), Zone: a.zone, Mode: a.mode, ServiceCIDRs: plane.ServiceCIDRs, DataDir: s.dataDir,
					Host: app.HostOf(p.apiAddress), HealthPort: a.healthPort, MetricsPort: a.metricsPort, DNSPort: a.dnsPort,
					ControlPlane: a.zone == "", Logger: plane.Logger,
				},
			}, s.printReady)
		},
	}
	p.add(cmd)
	a.add(cmd)
	return cmd
}

func newControlPlane(s *settings) *cobra.Command {
	var p planeFlags
	var role, store string
	cmd := &cobra.Command{
		Use:     "control-plane",
		GroupID: "roles",
		Short:   "Run a control plane without an agent",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch role {
			case "standalone":
			case "zone", "global":
				return usagef("--role %s: not in this version; use standalone", role)
			default:
				return usagef("--role %q: use standalone", role)
			}
			cfg, err := p.config(s, store)
			if err != nil {
				return err
			}
			return app.RunControlPlane(cmd.Context(), cfg, s.printReady)
		},
	}
	cmd.Flags().StringVar(&role, "role", "standalone", "role among several control planes: standalone")
	cmd.Flags().StringVar(&store, "store", "sqlite:", "where the state is kept: sqlite:FILE (default file: store.db in the data directory), postgres://… for one control plane, or memory")
	p.add(cmd)
	return cmd
}

func newNode(s *settings) *cobra.Command {
	var a agentFlags
	var server, tokenFile, host string
	cmd := &cobra.Command{
		Use:     "node --server HOST:PORT --token-file FILE",
		GroupID: "roles",
		Short:   "Run this machine's agent",
		Long: `Node joins this machine to a control plane and carries the traffic of virtual
IPs. The token is needed the first time only: it buys a certificate that renews
itself. The last state is kept on disk, so that the agent serves at once when it
starts again, even while no control plane answers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if server == "" {
				return usagef("--server is needed: HOST:PORT of the control plane's API")
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			cfg := app.NodeConfig{
				Server: server, Name: nodeName(a.nodeName), Zone: a.zone, Mode: a.mode, DataDir: s.dataDir,
				Host: host, HealthPort: a.healthPort, MetricsPort: a.metricsPort, DNSPort: a.dnsPort, Logger: log,
			}
			if tokenFile != "" {
				if cfg.Token, err = app.ReadToken(tokenFile); err != nil {
					return err
				}
			}
			return app.RunNode(cmd.Context(), cfg, s.printReady)
		},
	}
	f := cmd.Flags()
	f.StringVar(&server, "server", "", "control plane's API, HOST:PORT (needed)")
	f.StringVar(&tokenFile, "token-file", "", "file with a node token; needed to join for the first time")
	f.StringVar(&host, "host", "127.0.0.1", "address that health, metrics and names listen on")
	a.add(cmd)
	return cmd
}

// printReady writes the one line on standard output that says that a role serves.
func (s *settings) printReady(serving app.Serving) {
	line := "ready api=" + serving.API
	if serving.Node != "" {
		line += " node=" + serving.Node + " mode=" + serving.Mode
	}
	dns := serving.DNS
	if dns == "" {
		dns = "off"
	}
	fmt.Fprintln(s.io.Out, line+" dns="+dns)
}

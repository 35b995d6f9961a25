package cli

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// gatewayFlags are those of a gateway between zones.
type gatewayFlags struct {
	servers                []string
	tokenFile              string
	nodeName, zone         string
	address                string
	port                   int
	advertisedAddress      string
	advertisedPort         int
	host                   string
	caFile                 string
	inCluster              bool
	dnsUpstreams           []string
	healthPort, metricPort int
	engine, envoy          string
	xdsServers             []string
}

// Engines of gateways.
const (
	engineProxima = "proxima"
	engineEnvoy   = "envoy"
)

func newIngress(s *settings) *cobra.Command {
	return newGateway(s, false, defaultIngressPort, &cobra.Command{
		Use:   "ingress --server HOST:PORT[,…] [--token-file FILE]",
		Short: "Run a gateway by which other zones reach this one",
		Long: `Ingress runs the gateway by which other zones reach the services that this zone
exports. It joins the zone's control plane like a node, with a node token, gets a
certificate in each mesh, and registers itself as a ZoneIngress with the name of
its node. Every connection is mutual TLS; it goes to an endpoint of this zone, and
never to another zone.

The ZoneIngress stays when the process ends, so that a restart withdraws nothing:
other zones try their next ingress meanwhile. To remove an ingress for good, delete
its ZoneIngress and its Node. One node name is for one gateway or agent; on a
machine that has an agent, too, give --data-dir, --health-port and --metrics-port.`,
		Example: "  proxima token create --kind node --name ingress-1 >ingress.token\n" +
			"  proxima ingress --server cp.example:6443 --token-file ingress.token --node-name ingress-1 --advertised-address 203.0.113.7",
	})
}

func newEgress(s *settings) *cobra.Command {
	return newGateway(s, true, defaultEgressPort, &cobra.Command{
		Use:   "egress --server HOST:PORT[,…] [--token-file FILE]",
		Short: "Run the gateway by which traffic leaves this zone",
		Long: `Egress runs the gateway by which traffic leaves this zone for other zones, in
meshes with spec.routing.zoneEgress: their nodes use no other way out then. It
joins the zone's control plane like a node, with a node token, gets a certificate
in each mesh, and registers itself as a ZoneEgress with the name of its node.

The ZoneEgress stays when the process ends. To remove an egress for good, delete
its ZoneEgress and its Node. One node name is for one gateway or agent; on a
machine that has an agent, too, give --data-dir, --health-port and --metrics-port.`,
		Example: "  proxima egress --server cp.example:6443 --token-file egress.token --node-name egress-1",
	})
}

func newGateway(s *settings, egress bool, port int, cmd *cobra.Command) *cobra.Command {
	var g gatewayFlags
	name := "ingress"
	if egress {
		name = "egress"
	}
	cmd.GroupID, cmd.Args = "roles", cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := g.config(s, egress)
		if err != nil {
			return err
		}
		return app.RunNode(cmd.Context(), cfg, func(serving app.Serving) {
			fmt.Fprintf(s.io.Out, "ready api=%s node=%s address=%s\n", serving.API, serving.Node, serving.Gateway)
		})
	}
	f := cmd.Flags()
	addServerFlag(f, &g.servers, "")
	f.StringVar(&g.tokenFile, "token-file", "", "file with a node token; needed to join for the first time, or when the certificate cannot be renewed")
	f.StringVar(&g.caFile, "server-ca-file", "", "file with the certificates of the control plane's authority; needed with the token of a ServiceAccount")
	f.BoolVar(&g.inCluster, "in-cluster", false, "it is a pod of a Kubernetes cluster, whose control plane knows where it is and keeps its object; --token-file has the token of its ServiceAccount, --node-name is the name of the pod")
	f.StringVar(&g.nodeName, "node-name", "", "name of the gateway and of its Node (default: the host name in lower case)")
	f.StringVar(&g.zone, "zone", "", "topology zone of this machine (default: its Node's label)")
	f.StringVar(&g.address, "listen-address", "", "IP address that the gateway listens on (default: all, and the one that leads to the control plane is published)")
	f.IntVar(&g.port, name+"-port", port, "port that the gateway listens on; 0: any free one")
	f.StringVar(&g.advertisedAddress, "advertised-address", "", "IP address or DNS name by which the gateway is reached from elsewhere (default: its address)")
	f.IntVar(&g.advertisedPort, "advertised-port", 0, "port by which the gateway is reached from elsewhere (default: its port)")
	addUpstreamFlag(f, &g.dnsUpstreams)
	f.StringVar(&g.engine, "engine", engineProxima, "what listens: proxima (this process), or envoy (an Envoy, which passes the mutual TLS of proxies on and hands all else to this process)")
	f.StringVar(&g.envoy, "envoy", "envoy", "Envoy of --engine envoy, 1.37 or newer: a path, or a name in $PATH")
	f.StringSliceVar(&g.xdsServers, "xds-server", nil, "address (HOST:PORT) of the control plane's xDS for --engine envoy; may be repeated (default: the hosts of --server, port 15010)")
	f.StringVar(&g.host, "host", "127.0.0.1", "address that health and metrics listen on")
	f.IntVar(&g.healthPort, "health-port", defaultHealthPort, "port of /healthz and /livez; 0: off")
	f.IntVar(&g.metricPort, "metrics-port", defaultMetricsPort, "port of /metrics; 0: off")
	return cmd
}

func (g *gatewayFlags) config(s *settings, egress bool) (app.NodeConfig, error) {
	var cfg app.NodeConfig
	if len(g.servers) == 0 {
		return cfg, usagef("--server (HOST:PORT of the control plane's API) is needed")
	}
	servers, err := parseServers(g.servers)
	if err != nil {
		return cfg, err
	}
	if g.port < 0 || g.port > 65535 || g.advertisedPort < 0 || g.advertisedPort > 65535 {
		return cfg, usagef("port %d, --advertised-port %d: 0 to 65535", g.port, g.advertisedPort)
	}
	gateway := &app.GatewayConfig{
		Egress: egress, Port: g.port, AdvertisedAddress: g.advertisedAddress, AdvertisedPort: g.advertisedPort,
		InCluster: g.inCluster,
	}
	if g.address != "" {
		addr, err := netip.ParseAddr(g.address)
		if err != nil {
			return cfg, &problem.Error{Code: problem.Usage, Err: fmt.Errorf("--listen-address: %w", err)}
		}
		gateway.Address = addr
	}
	resolvers, err := upstreams(g.dnsUpstreams)
	if err != nil {
		return cfg, err
	}
	if g.inCluster && (g.advertisedAddress != "" || g.advertisedPort != 0) {
		return cfg, usagef("--advertised-address and --advertised-port: with --in-cluster the Service of the gateways says how they are reached")
	}
	if err := g.useEngine(gateway, servers); err != nil {
		return cfg, err
	}
	log, err := s.logger()
	return app.NodeConfig{
		DNSUpstreams: resolvers,
		Server:       servers[0], OtherServers: servers[1:], TokenFile: g.tokenFile, ServerCAFile: g.caFile, Name: nodeName(g.nodeName), Zone: g.zone, DataDir: s.dataDir,
		Host: g.host, HealthPort: g.healthPort, MetricsPort: g.metricPort, ControlPlane: true, Gateway: gateway, Logger: log,
	}, err
}

// useEngine checks the engine, and what it needs on this machine.
func (g *gatewayFlags) useEngine(gateway *app.GatewayConfig, servers []string) error {
	switch {
	case g.engine == engineProxima && len(g.xdsServers) > 0:
		return usagef("--xds-server: of --engine envoy alone")
	case g.engine == engineProxima:
		return nil
	case g.engine != engineEnvoy:
		return usagef("--engine %q: use proxima or envoy", g.engine)
	case g.port == 0:
		return usagef("--engine envoy: port 0 is not possible, as Envoy listens in another process; choose a port")
	}
	program, err := findSidecar()
	if err != nil {
		return err
	}
	envoy, err := exec.LookPath(g.envoy)
	if err == nil {
		envoy, err = filepath.Abs(envoy)
	}
	if err != nil {
		return &problem.Error{
			Code: problem.SidecarUnavailable, Op: "start", Object: "the gateway with --engine envoy", Err: err,
			Hint: "install Envoy 1.37 or newer, or name it with --envoy; --engine proxima needs none",
		}
	}
	gateway.Envoy = &app.GatewayEnvoy{Supervisor: program, Envoy: envoy, Servers: g.xdsServers}
	for _, server := range servers {
		if len(g.xdsServers) > 0 {
			break
		}
		host, _, err := net.SplitHostPort(server)
		if err != nil {
			return usagef("--engine envoy needs --xds-server: %w", err)
		}
		gateway.Envoy.Servers = append(gateway.Envoy.Servers, net.JoinHostPort(host, xdsPort))
	}
	return nil
}

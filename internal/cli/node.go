package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
)

// nodeFlags are those of the command node alone.
type nodeFlags struct {
	agentFlags
	servers         []string
	tokenFile, host string
	serverCAFile    string
	apiServer       string
	byAggregatedAPI bool
	directAfter     time.Duration
	kubeProxyConfig string
	cleanup         bool
	windows         windowsFlags
}

func newNode(s *settings) *cobra.Command {
	var n nodeFlags
	cmd := &cobra.Command{
		Use:     "node {--server HOST:PORT[,…] [--token-file FILE] | --kubeconfig FILE | --kube-proxy-config FILE}",
		GroupID: "roles",
		Short:   "Run this machine's agent",
		Long: `Node runs the agent that carries the traffic of virtual IPs on this machine.

With --server it joins a control plane of Proxima. The token is needed the first
time only: it buys a certificate that renews itself, and its file can be deleted.
A file that is there is read again when the certificate cannot be renewed
otherwise, or when it holds a new token. The last state is kept on disk, so that
the agent serves at once when it starts again, even while no control plane
answers and whatever became of its certificate.

In a Kubernetes cluster with a control plane of Proxima it takes --server and
--api-server, and joins with the token of its ServiceAccount (audience "proxima"),
which --server-ca-file has to go with. Both addresses are real ones, as the agent
makes the virtual ones work. It follows the control plane, and the cluster's API
while there is none. With --join-by-aggregated-api it joins and renews at the
cluster's API instead, with the token that it uses there, and the roles of the
cluster decide whether it may.

With --kubeconfig it follows any Kubernetes API in kube-proxy's place, and with
--kube-proxy-config it takes kube-proxy's own configuration file; flags go before
what the file says. Names (DNS) are off then unless --dns-port or --dns-capture is
given.

With --cleanup it removes everything that agents of any mode left in this
machine's kernel, and ends.`,
		Example: "  proxima node --server cp.example:6443 --token-file node.token\n  proxima node --kube-proxy-config /var/lib/kube-proxy/config.conf\n" +
			"  proxima node --server 10.0.0.5:6443 --api-server https://10.0.0.1:6443 --token-file /var/run/secrets/proxima/token --server-ca-file /etc/proxima/ca.crt",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n.cleanup {
				return n.clean(cmd, s)
			}
			return underServiceManager(cmd.Context(), s, func(ctx context.Context) error {
				cfg, err := n.config(cmd, s)
				if err != nil {
					return err
				}
				return app.RunNode(ctx, cfg, s.printReady)
			})
		},
	}
	f := cmd.Flags()
	addServerFlag(f, &n.servers, "")
	f.StringVar(&n.tokenFile, "token-file", "", "file with a node token; needed to join for the first time, or when the certificate cannot be renewed")
	f.StringVar(&n.serverCAFile, "server-ca-file", "", "certificates (PEM) of the control plane's authority; needed where --token-file has the token of a Kubernetes ServiceAccount")
	f.StringVar(&n.apiServer, "api-server", "", "address (https://HOST:PORT) of the cluster's Kubernetes API, where the agent runs as a pod or with --kubeconfig: it is followed while no control plane answers")
	f.BoolVar(&n.byAggregatedAPI, "join-by-aggregated-api", false, "join and renew by the control plane's aggregated API at the cluster's API server, with --api-server and in the place of --token-file: the agent's ServiceAccount needs the ClusterRole proxima-agent-join")
	f.DurationVar(&n.directAfter, "direct-after", time.Minute, "with --server and --api-server: how long the last view serves without a control plane once a Service or EndpointSlice has changed")
	f.StringVar(&n.host, "host", "127.0.0.1", "address that health, metrics and names listen on")
	f.StringVar(&n.kubeProxyConfig, "kube-proxy-config", "", "kube-proxy's configuration file (KubeProxyConfiguration), to take its place")
	f.BoolVar(&n.cleanup, "cleanup", false, "remove what agents left in the kernel, restore the machine's resolver, and end")
	n.add(cmd)
	n.windows.add(f)
	cmd.AddCommand(newNodeDump(s), newNodeDrain(s), newNodeUndrain(s), newNodeService(s), newSelfTest(s))
	return cmd
}

func (n *nodeFlags) clean(cmd *cobra.Command, s *settings) error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	return app.CleanNode(cmd.Context(), "", log)
}

func (n *nodeFlags) config(cmd *cobra.Command, s *settings) (app.NodeConfig, error) {
	cfg, err := n.agentFlags.config(s, n.host)
	if err != nil {
		return cfg, err
	}
	if cfg.Windows, err = n.windows.config(); err != nil {
		return cfg, err
	}
	others := n.kubeProxyConfig != "" || s.kubeconfig != ""
	switch {
	case n.byAggregatedAPI && (len(n.servers) == 0 || n.apiServer == ""):
		return cfg, usagef("--join-by-aggregated-api goes with --server, at which views are served, and --api-server, at which the agent joins")
	case n.byAggregatedAPI && n.tokenFile != "":
		return cfg, usagef("--token-file and --join-by-aggregated-api: give one of them; by the aggregated API the agent joins with the credentials that it has for the cluster's API")
	case len(n.servers) > 0 && n.kubeProxyConfig != "":
		return cfg, usagef("--server and --kube-proxy-config: give one of them")
	case len(n.servers) == 0 && !others:
		return cfg, usagef("one of --server (HOST:PORT of the control plane's API), --kubeconfig or --kube-proxy-config is needed")
	case len(n.servers) == 0:
		return cfg, n.followCluster(cmd, s, &cfg)
	}
	servers, err := parseServers(n.servers)
	if err != nil {
		return cfg, err
	}
	cfg.Server, cfg.OtherServers, cfg.TokenFile, cfg.ServerCAFile = servers[0], servers[1:], n.tokenFile, n.serverCAFile
	if n.apiServer == "" {
		return cfg, nil
	}
	if n.directAfter <= 0 {
		return cfg, usagef("--direct-after %s: it must be more than 0", n.directAfter)
	}
	cfg.DirectAfter, cfg.Cluster, cfg.ByAggregatedAPI = n.directAfter, &app.ClusterConfig{}, n.byAggregatedAPI
	if !cmd.Flags().Changed("tunnel-port") {
		cfg.TunnelPort = 0 // of a cluster that is no zone nothing leads to others
	}
	cfg.Cluster.REST, err = n.clusterREST(s.kubeconfig)
	return cfg, err
}

// clusterREST reaches the cluster's API, at --api-server if that is given.
func (n *nodeFlags) clusterREST(kubeconfig string) (*rest.Config, error) {
	cfg, err := app.ClusterREST(kubeconfig)
	if err != nil || n.apiServer == "" {
		return cfg, err
	}
	if u, err := url.Parse(n.apiServer); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, usagef("--api-server %q: it must be https://HOST:PORT", n.apiServer)
	}
	cfg.Host = n.apiServer
	return cfg, nil
}

// followCluster completes the configuration for an agent in kube-proxy's place.
func (n *nodeFlags) followCluster(cmd *cobra.Command, s *settings, cfg *app.NodeConfig) error {
	if n.tokenFile != "" {
		return usagef("--token-file goes with --server")
	}
	cfg.Cluster = &app.ClusterConfig{}
	kubeconfig := s.kubeconfig
	if !cmd.Flags().Changed("dns-port") {
		cfg.DNSPort = 0
	}
	if n.kubeProxyConfig != "" {
		data, err := os.ReadFile(n.kubeProxyConfig)
		if err != nil {
			return fmt.Errorf("--kube-proxy-config: %w", err)
		}
		given, err := fromkube.ReadKubeProxyConfiguration(data)
		if err != nil {
			return usagef("--kube-proxy-config %s: %w", n.kubeProxyConfig, err)
		}
		for _, text := range given.Ignored {
			cfg.Logger.Info("setting of the kube-proxy configuration makes no difference here", "setting", text)
		}
		if kubeconfig == "" {
			kubeconfig = given.Kubeconfig
		}
		if err := n.adopt(cmd, given, cfg); err != nil {
			return err
		}
	}
	var err error
	cfg.Cluster.REST, err = n.clusterREST(kubeconfig)
	return err
}

// adopt takes over settings that no flag gave.
func (n *nodeFlags) adopt(cmd *cobra.Command, given *fromkube.Settings, cfg *app.NodeConfig) error {
	changed := cmd.Flags().Changed
	if !changed("mode") {
		cfg.Mode = given.Mode
	}
	if !changed("node-name") && given.NodeName != "" {
		cfg.Name = given.NodeName
	}
	if !changed("workload-cidr") && !changed("workload-interface") {
		cfg.WorkloadCIDRs, cfg.WorkloadInterfaces, cfg.Cluster.NodeCIDR = given.WorkloadCIDRs, given.WorkloadInterfaces, given.NodeCIDR
	}
	if !changed("masquerade-all") {
		cfg.MasqueradeAll = given.MasqueradeAll
	}
	if !changed("node-port-addresses") {
		cfg.NodePortAddresses, cfg.Cluster.Primary, cfg.AllNodePorts = given.NodePortAddresses, given.Primary, given.AllNodePorts
	}
	cfg.Windows = n.windows.adopt(changed, given.Windows, cfg.Windows)
	for _, f := range []struct {
		flag string
		take func()
	}{
		{"ipvs-scheduler", func() { cfg.IPVS.Scheduler = given.IPVS.Scheduler }},
		{"ipvs-strict-arp", func() { cfg.IPVS.StrictARP = given.IPVS.StrictARP }},
		{"ipvs-tcp-timeout", func() { cfg.IPVS.TCPTimeout = given.IPVS.TCPTimeout }},
		{"ipvs-tcpfin-timeout", func() { cfg.IPVS.TCPFinTimeout = given.IPVS.TCPFinTimeout }},
		{"ipvs-udp-timeout", func() { cfg.IPVS.UDPTimeout = given.IPVS.UDPTimeout }},
	} {
		if !changed(f.flag) {
			f.take()
		}
	}
	if err := cfg.IPVS.Check(); err != nil {
		return fmt.Errorf("kube-proxy configuration: ipvs: %w", err)
	}
	cfg.MasqueradeMark, cfg.Cluster.Conntrack = given.MasqueradeMark, given.Conntrack
	var errs []error
	if !changed("health-port") && !changed("host") {
		errs = append(errs, split(given.Health, &cfg.HealthHost, &cfg.HealthPort))
	}
	if !changed("metrics-port") && !changed("host") {
		errs = append(errs, split(given.Metrics, &cfg.MetricsHost, &cfg.MetricsPort))
	}
	return errors.Join(errs...)
}

// split takes HOST:PORT apart; empty is port 0.
func split(address string, host *string, port *int) error {
	if address == "" {
		*port = 0
		return nil
	}
	h, p, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	*host = h
	*port, err = strconv.Atoi(p)
	return err
}

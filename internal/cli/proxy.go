package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/admin"
)

func newProxy(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "proxy",
		GroupID: "operate",
		Short:   "Show the proxies of workloads, and what agents and gateways have, wherever they run",
		Long: `These commands ask the proxy of a workload, the agent of a node, an ingress or an
egress by way of its control plane, so that they need no access to its machine. At a
global control plane --zone names the zone that it is in; where there is only one, it
may be left out. The call takes 5 s at most, and an error names the hop that is missing.

NAMESPACE/NAME is a Dataplane: the supervisor of its proxy answers or, where it has
none, the agent of its node. NAME is that of a node, ingress or egress; for status,
logging and config --diff, which Dataplanes alone have, that of one in the kubeconfig's
namespace. An admin's credentials are needed, but for list. Secrets are left out of
what is shown.`,
	}
	cmd.AddCommand(
		newProxyList(s),
		newProxyStatus(s),
		newProxyConfig(s),
		newProxyClusters(s),
		newProxyStats(s),
		newProxyLogging(s),
		newProxyBootstrap(s),
		newProxyCheck(s),
	)
	return cmd
}

// proxyPath of a question; who may be NAMESPACE/NAME.
func proxyPath(path, zone, who string) (string, error) {
	q := url.Values{"name": {who}}
	if namespace, name, ok := strings.Cut(who, "/"); ok {
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			return "", usagef("%q: want the NAME of a node, ingress or egress, */NAME of a gateway's Envoy, or NAMESPACE/NAME of a Dataplane", who)
		}
		q = url.Values{"namespace": {namespace}, "name": {name}}
	}
	if zone != "" {
		q.Set("zone", zone)
	}
	return path + "?" + q.Encode(), nil
}

func addZoneFlag(cmd *cobra.Command, zone *string) {
	cmd.Flags().StringVar(zone, "zone", "", "zone that it is in, at a global control plane (default: the only one)")
}

func newProxyConfig(s *settings) *cobra.Command {
	var zone, output string
	var diff bool
	cmd := &cobra.Command{
		Use:   "config NAME|NAMESPACE/NAME",
		Short: "Print all that it carries; --diff: what a proxy was sent, beside what it holds",
		Long: `Config lists the resources of a proxy, as its Envoy has them; -o json or yaml prints
Envoy's whole dump, without secrets. Of a node, ingress or egress it prints all that it
carries, as "node dump" does on its machine.

With --diff it lists the resources of a proxy that differ between what the control plane
has sent and what the proxy has accepted: pending (not accepted yet), rejected (with the
reason), removed (to be given up, or held without need). -o wide lists the others, too.`,
		Example: "  proxima proxy config shop/web-1\n  proxima proxy config shop/web-1 --diff\n  proxima proxy config node-1 --zone east -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if diff {
				path, err := s.dataplanePath(admin.ProxyDiffPath, zone, args[0])
				if err != nil {
					return err
				}
				return s.answered(cmd.Context(), path, output, func(raw json.RawMessage) error {
					return decoded(raw, func(d *admin.ProxyDifference) error { return printDifference(s.io.Out, d, output == "wide") })
				})
			}
			path, err := proxyPath(admin.ProxyConfigPath, zone, args[0])
			if err != nil {
				return err
			}
			return s.answered(cmd.Context(), path, output, func(raw json.RawMessage) error {
				return decoded(raw, func(dump *envoyDump) error {
					if dump.Configs != nil {
						return printEnvoyDump(s.io.Out, dump)
					}
					return decoded(raw, func(d *admin.NodeDump) error { return printDump(s.io.Out, d) })
				})
			})
		},
	}
	addZoneFlag(cmd, &zone)
	addOutputFlag(cmd.Flags(), &output)
	cmd.Flags().BoolVar(&diff, "diff", false, "list what differs between what the proxy was sent and what it holds")
	return cmd
}

func newProxyClusters(s *settings) *cobra.Command {
	var zone, output string
	cmd := &cobra.Command{
		Use: "clusters NAME|NAMESPACE/NAME", Short: "List its clusters or service ports, and their endpoints",
		Example: "  proxima proxy clusters shop/web-1\n  proxima proxy clusters ingress-1 --zone east", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := proxyPath(admin.ProxyClustersPath, zone, args[0])
			if err != nil {
				return err
			}
			return s.answered(cmd.Context(), path, output, func(raw json.RawMessage) error {
				return decoded(raw, func(c *envoyClusters) error {
					if c.Clusters != nil {
						return printEnvoyClusters(s.io.Out, c)
					}
					return decoded(raw, func(c *admin.NodeClusters) error { return printClusters(s.io.Out, c) })
				})
			})
		},
	}
	addZoneFlag(cmd, &zone)
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func newProxyStats(s *settings) *cobra.Command {
	var zone string
	cmd := &cobra.Command{
		Use: "stats NAME|NAMESPACE/NAME", Short: "Print its metrics, in the text format of Prometheus",
		Example: "  proxima proxy stats egress-1 --zone east", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := proxyPath(admin.ProxyStatsPath, zone, args[0])
			if err != nil {
				return err
			}
			return s.copyAnswer(cmd.Context(), http.MethodGet, path)
		},
	}
	addZoneFlag(cmd, &zone)
	return cmd
}

// copyAnswer prints the answer to a request as it is.
func (s *settings) copyAnswer(ctx context.Context, method, path string) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	resp, err := send(ctx, cfg, method, path, nil)
	if err != nil {
		return explainAPI(cfg, err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(s.io.Out, resp.Body)
	return err
}

func printClusters(out io.Writer, c *admin.NodeClusters) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE PORT\tPROTOCOL\tADDRESSES\tLIST\tENDPOINT")
	for _, p := range c.Ports {
		row := func(list, endpoint string) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.Protocol, orNone(strings.Join(p.Addresses, ",")), list, endpoint)
		}
		none := true
		for _, f := range p.Families {
			for _, e := range f.Cluster {
				row(f.Family, e)
				none = false
			}
			for _, e := range f.Local {
				row(f.Family+" local", e)
				none = false
			}
		}
		if none {
			row("<none>", "<none>")
		}
	}
	return w.Flush()
}

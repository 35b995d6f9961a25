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
		Short:   "Show what an agent, an ingress or an egress has, wherever it runs",
		Long: `These commands ask the agent of a node, an ingress or an egress by way of its
control plane, so that they need no access to its machine. At a global control
plane --zone names the zone that it is in; where there is only one, it may be left
out. The call takes 5 s at most, and an error names the hop that is missing.

NAME is that of the node, ingress or egress. NAMESPACE/NAME is a Dataplane: the
agent of its node answers. An admin's credentials are needed.`,
	}
	cmd.AddCommand(
		newProxyQuestion(s, "config NAME|NAMESPACE/NAME", "Print all that it carries, as \"node dump\" does on its machine",
			"  proxima proxy config node-1\n  proxima proxy config node-1 --zone east -o json", admin.ProxyConfigPath,
			printDump),
		newProxyQuestion(s, "clusters NAME|NAMESPACE/NAME", "List its service ports and their endpoints",
			"  proxima proxy clusters ingress-1 --zone east", admin.ProxyClustersPath, printClusters),
		newProxyStats(s),
		newProxyBootstrap(s),
	)
	return cmd
}

// proxyPath of a question; who may be NAMESPACE/NAME.
func proxyPath(path, zone, who string) (string, error) {
	q := url.Values{"name": {who}}
	if namespace, name, ok := strings.Cut(who, "/"); ok {
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			return "", usagef("%q: want the NAME of a node, ingress or egress, or NAMESPACE/NAME of a Dataplane", who)
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

func newProxyQuestion[T any](s *settings, use, short, example, path string, table func(io.Writer, *T) error) *cobra.Command {
	var zone, output string
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			path, err := proxyPath(path, zone, args[0])
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := s.call(cmd.Context(), http.MethodGet, path, nil, &raw); err != nil {
				return err
			}
			var value T
			if err := json.Unmarshal(raw, &value); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, raw, output)
			}
			return table(s.io.Out, &value)
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
			return s.copyAnswer(cmd.Context(), path)
		},
	}
	addZoneFlag(cmd, &zone)
	return cmd
}

// copyAnswer prints the answer to a GET as it is.
func (s *settings) copyAnswer(ctx context.Context, path string) error {
	cfg, _, err := s.restConfig()
	if err != nil {
		return err
	}
	resp, err := send(ctx, cfg, http.MethodGet, path, nil)
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

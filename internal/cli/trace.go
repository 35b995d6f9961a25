package cli

import (
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/node/local"
)

func newTrace(s *settings) *cobra.Command {
	var output, from, protocol string
	cmd := &cobra.Command{
		Use:     "trace IP:PORT",
		GroupID: "operate",
		Short:   "Show what this machine does with a connection to an address",
		Long: `Trace shows how this machine's agent handles a new connection: the Service of the
address, the list of endpoints and the reason for that list, each endpoint's
share, node and zone, the location of the client, and the objects of the kernel
that decide. In the nftables mode that is the path through the kernel's
tables, in the iptables mode the rules of the service port. Nothing is sent.

The agent is the one that has the data directory (--data-dir).`,
		Example: "  proxima trace 10.96.0.10:53 --protocol udp\n  proxima trace 203.0.113.7:443 --from 198.51.100.1\n  proxima trace '[fd00:96::1]:443' -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := traceQuery(args[0], protocol, from)
			if err == nil {
				err = checkFormat(output)
			}
			if err != nil {
				return err
			}
			var t diag.Trace
			if err := s.ask(cmd.Context(), local.TracePath, query, &t); err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, &t, output)
			}
			return printTrace(s.io.Out, &t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "address of the client (default: this machine's own on the way there)")
	f.StringVar(&protocol, "protocol", "tcp", "tcp, udp or sctp")
	addOutputFlag(f, &output)
	return cmd
}

// traceQuery refuses here what the agent would refuse.
func traceQuery(to, protocol, from string) (url.Values, error) {
	if p, err := netip.ParseAddrPort(to); err != nil || p.Port() == 0 {
		return nil, usagef("%q: want an address and a port, such as 10.96.0.1:443 or [fd00:96::1]:443", to)
	}
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, strings.ToLower(protocol)) {
		return nil, usagef("--protocol %q: choose tcp, udp or sctp", protocol)
	}
	query := url.Values{"to": {to}, "protocol": {strings.ToLower(protocol)}}
	if from != "" {
		if _, err := netip.ParseAddr(from); err != nil {
			return nil, usagef("--from %q: want an IP address", from)
		}
		query.Set("from", from)
	}
	return query, nil
}

func printTrace(out io.Writer, t *diag.Trace) error {
	fmt.Fprintf(out, "%s from %s to %s, on node %s in zone %s, mode %s\n\n", t.Protocol, t.From, t.To, t.Node, orNone(t.Zone), t.Mode)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	service := "none has this address, port and protocol"
	if t.Service != "" {
		service = t.Service + ", by its " + t.Role
	}
	fmt.Fprintf(w, "source\t%s\nservice\t%s\noutcome\t%s\n", sourceText(t), service, outcomeText(t))
	if t.Outcome == "endpoint" {
		fmt.Fprintf(w, "client\t%s\n", clientText(t))
	}
	for _, chain := range t.Blocking {
		fmt.Fprintf(w, "blocked by\t%s, unless a rule there accepts it: proxima doctor says what to do\n", chain)
	}
	if t.Pending != "" {
		fmt.Fprintf(w, "pending\tthis is not the newest state: %s\n", t.Pending)
	}
	if len(t.Endpoints) > 0 {
		fmt.Fprintln(w, "\nENDPOINT\tSHARE\tWEIGHT\tNODE\tZONE")
		for _, e := range t.Endpoints {
			fmt.Fprintf(w, "%s\t%.1f %%\t%d\t%s\t%s\n", e.Address, 100*e.Share, e.Weight, nodeText(e), orNone(e.Zone))
		}
	}
	if len(t.Spare) > 0 {
		fmt.Fprintln(w, "\nIF NONE ANSWERS\tNODE\tZONE")
		for _, e := range t.Spare {
			fmt.Fprintf(w, "%s\t%s\t%s\n", e.Address, nodeText(e), orNone(e.Zone))
		}
	}
	if len(t.Unused) > 0 {
		fmt.Fprintln(w, "\nNEVER USED HERE\tWHY")
		for _, e := range t.Unused {
			fmt.Fprintf(w, "%s\t%s\n", e.Address, e.Why)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(t.Steps) > 0 {
		fmt.Fprintln(out, "\nstep by step:")
		for i, s := range t.Steps {
			fmt.Fprintf(out, "  %d. %s: %s\n", i+1, s.Object, s.Does)
		}
	}
	if len(t.Kernel) > 0 {
		fmt.Fprintln(out, "\nits rules:")
		for _, line := range t.Kernel {
			fmt.Fprintln(out, "  "+line)
		}
	}
	return nil
}

// sourceText describes the location of the client.
func sourceText(t *diag.Trace) string {
	switch s := t.Source; {
	case s.Here:
		return t.From + ", an address of this node"
	case s.Node != "" || s.Zone != "":
		return fmt.Sprintf("%s, a workload on node %s in zone %s", t.From, orNone(s.Node), orNone(s.Zone))
	}
	return t.From + ", of no workload known to this node"
}

// nodeText is where an endpoint runs.
func nodeText(e diag.TraceEndpoint) string {
	switch {
	case e.Local && e.Node == "":
		return "(this node)"
	case e.Local:
		return e.Node + " (this node)"
	}
	return orNone(e.Node)
}

func outcomeText(t *diag.Trace) string {
	switch t.Outcome {
	case "endpoint":
		return prefixedList(t) + prefixed(": ", t.Rule)
	case "reject":
		return "refused at once (TCP reset, or ICMP unreachable)" + prefixed(": ", t.Reason)
	case "drop":
		return "dropped without an answer" + prefixed(": ", t.Reason)
	}
	return "left alone: goes where this machine's routes lead"
}

func prefixedList(t *diag.Trace) string {
	if len(t.Endpoints) == 1 {
		return "the only endpoint of the " + t.List + " list"
	}
	return fmt.Sprintf("one of %d endpoints of the %s list", len(t.Endpoints), t.List)
}

func clientText(t *diag.Trace) string {
	text := "the endpoint sees " + t.From
	if t.Masquerade {
		text = "the endpoint sees an address of this node (masquerade)"
	}
	if t.AffinitySeconds > 0 {
		text += fmt.Sprintf("; stays with its endpoint for %d s (affinity)", t.AffinitySeconds)
	}
	return text
}

// newNodeDump is a subcommand of node, the role of the agent that it queries.
func newNodeDump(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print all that this machine's agent carries, and its state in the kernel",
		Long: `Dump prints every service port that this machine's agent has in place, with its
endpoints, and the state of the mode: in the nftables mode what the kernel has,
with what is missing or foreign there, in the iptables mode the rules that it is
to have.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return err
			}
			var d admin.NodeDump
			if err := s.ask(cmd.Context(), local.DumpPath, nil, &d); err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, &d, output)
			}
			return printDump(s.io.Out, &d)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func printDump(out io.Writer, d *admin.NodeDump) error {
	fmt.Fprintf(out, "# node %s, zone %s, mode %s\n# service ports: %d\n", d.Node.Name, orNone(d.Node.Zone), d.Mode, len(d.Ports))
	for _, p := range d.Ports {
		fmt.Fprintf(out, "%s %s %d%s at %s\n", p.Name, p.Protocol, p.Port, nodePortText(p.NodePort), strings.Join(p.Addresses, ", "))
		for _, f := range p.Families {
			fmt.Fprintf(out, "  %s, %s\n", f.Family, f.Rule)
			for _, list := range []struct {
				name  string
				lines []string
			}{{"cluster", f.Cluster}, {"local", f.Local}} {
				for _, line := range list.lines {
					fmt.Fprintf(out, "    %s %s\n", list.name, line)
				}
			}
		}
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"kernel", d.Kernel}, {"missing in the kernel", d.Missing}, {"foreign in the kernel", d.Foreign}, {"chains of others that block forwarded connections", d.Blocking}} {
		if d.Mode == "userspace" || (len(part.lines) == 0 && d.Mode != "nftables" && d.Mode != "ebpf" && d.Mode != "ipvs") {
			continue
		}
		fmt.Fprintf(out, "# %s: %d\n", part.title, len(part.lines))
		for _, line := range part.lines {
			fmt.Fprintln(out, line)
		}
	}
	return nil
}

func nodePortText(port uint16) string {
	if port == 0 {
		return ""
	}
	return fmt.Sprintf(" (node port %d)", port)
}

package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// defaultLab is the lab that commands are about which name none.
const defaultLab = "lab"

func newLab(s *settings) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "lab",
		GroupID: "operate",
		Short:   "Run a mesh of zones and nodes on this machine, and break it",
		Long: `Lab runs a whole mesh on this machine: a control plane, zones with nodes, and in
each node an agent and a sample workload, each in a network namespace of its
own. With "lab up --global" each zone has a control plane and an ingress, and there is a global control
plane. Cables can be cut, processes killed and machines switched off, to see what happens. It is of IPv4
and IPv6. Nothing of it reaches the network outside. It needs root and Linux.`,
	}
	cmd.PersistentFlags().StringVar(&name, "lab", defaultLab, "name of the lab: several can be up at once")
	cmd.AddCommand(newLabUp(s, &name), newLabStatus(s, &name), newLabDown(s, &name),
		newLabCut(s, &name), newLabHeal(s, &name), newLabKill(s, &name), newLabStop(s, &name),
		newLabLink(s, &name), newLabExec(&name), newLabConsole(s, &name), newLabRelay(s))
	return cmd
}

func newLabUp(s *settings, name *string) *cobra.Command {
	var spec lab.Spec
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Start a lab, which stays until it is taken down",
		Example: "  sudo proxima lab up --zones 3 --nodes 2\n  sudo proxima lab up --global --zones 2 --nodes 1\n  sudo proxima lab up --sidecars --envoy /usr/local/bin/envoy",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			spec.Name, spec.Executable = *name, exe
			if err := checkLease(spec.Lease); err != nil {
				return err
			}
			spec.Progress = func(line string) { fmt.Fprintln(s.io.Err, line) }
			if err := spec.Check(); err != nil {
				return &problem.Error{Code: problem.Usage, Err: err}
			}
			l, err := lab.Start(cmd.Context(), spec)
			if err != nil {
				return err
			}
			defer l.Close()
			if err := printLab(s.io.Out, l.Status(cmd.Context()), false); err != nil {
				return err
			}
			return printTries(s.io.Out, l)
		},
	}
	f := cmd.Flags()
	f.IntVar(&spec.Zones, "zones", 3, "number of zones, 1 to 9")
	f.IntVar(&spec.Nodes, "nodes", 2, "number of nodes in each zone, 1 to 9")
	f.StringVar(&spec.Mode, "mode", "auto", "how the agents carry traffic, as for \"proxima node\"")
	f.BoolVar(&spec.Global, "global", false, "a control plane and an ingress for each zone, and a global control plane; on the command line only")
	_ = f.SetAnnotation("global", commandLineOnly, nil) // the flag is there
	f.BoolVar(&spec.Egress, "egress", false, "with --global: an egress for each zone, by which alone traffic leaves for other zones; on the command line only")
	_ = f.SetAnnotation("egress", commandLineOnly, nil)
	f.BoolVar(&spec.DNSCapture, "dns-capture", false, "agents capture port 53 of their nodes and of the clients behind them; on the command line only")
	_ = f.SetAnnotation("dns-capture", commandLineOnly, nil)
	f.BoolVar(&spec.IPv6Only, "ipv6-only", false, "no IPv4 anywhere, but for 127.0.0.1; on the command line only")
	_ = f.SetAnnotation("ipv6-only", commandLineOnly, nil)
	f.BoolVar(&spec.Sidecars, "sidecars", false, "an Envoy before each workload, and a client with one on the first node of each zone; on the command line only")
	_ = f.SetAnnotation("sidecars", commandLineOnly, nil)
	f.BoolVar(&spec.EnvoyGateways, "envoy-gateways", false, "with --global: Envoys listen in place of ingresses and egresses; on the command line only")
	_ = f.SetAnnotation("envoy-gateways", commandLineOnly, nil)
	f.StringVar(&spec.Envoy, "envoy", "envoy", "Envoy of --sidecars and --envoy-gateways, 1.37 or newer: a path, or a name in $PATH")
	addLeaseFlag(f, &spec.Lease)
	return cmd
}

// printTries prints what there is to try in a lab with sidecars.
func printTries(out io.Writer, l *lab.Lab) error {
	all := l.Try()
	if len(all) == 0 {
		return nil
	}
	name := ""
	if l.Name() != defaultLab {
		name = " --lab " + l.Name()
	}
	fmt.Fprintf(out, "\ntry:        proxima lab%s exec control -- proxima apply -f FILE\nsee:        proxima lab%s status\nundo:       proxima lab%s exec control -- proxima delete -f FILE\n\n", name, name, name)
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	fmt.Fprintln(w, "FILE\tEFFECT")
	for _, t := range all {
		fmt.Fprintf(w, "%s\t%s\n", t.File, t.Effect)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nask as shop-a, by its sidecar:   curl -i --unix-socket %s http://%s/\n", l.ShopSocket("zone-a"), l.VIP())
	return err
}

// withLab runs f on a lab that is up.
func withLab(name string, f func(*lab.Lab) error) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	defer l.Close()
	return f(l)
}

func newLabStatus(s *settings, name *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show zones, nodes, agents and workloads, and who answers from where",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "wide", "json", "yaml"}, output) {
				return usagef("-o %q: choose table, wide, json or yaml", output)
			}
			return withLab(*name, func(l *lab.Lab) error {
				status := l.Status(cmd.Context())
				if output == "json" || output == "yaml" {
					return printValue(s.io.Out, status, output)
				}
				return printLab(s.io.Out, status, output == "wide")
			})
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func newLabDown(s *settings, name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End a lab and everything in it, whatever of it still works",
		Long: `Down ends every process in the lab's network namespaces, shells of yours
included, and removes the namespaces and the lab's files. It works after parts
of the lab died, and once more is no error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := lab.Down(cmd.Context(), *name)
			if err != nil {
				return err
			}
			if found {
				fmt.Fprintf(s.io.Err, "lab %s is down\n", *name)
			} else {
				fmt.Fprintf(s.io.Err, "lab %s was not up\n", *name)
			}
			return nil
		},
	}
}

func newLabCut(s *settings, name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "cut ZONE|MACHINE [ZONE|MACHINE]",
		Short: "Cut the cable of a zone to the other zones, or of a machine to its zone, or the path between two of them",
		Long: `Cut takes the cable of a zone to the other zones, or that of a machine to its zone. With two
names it cuts the path between them alone: two zones, two machines, or one of each. global is a machine, too,
or control where one control plane serves all zones. Packets on a path that is cut are dropped, without an error.`,
		Example:           "  proxima lab cut zone-b\n  proxima lab cut a-2\n  proxima lab cut zone-a global\n  proxima lab cut gateway-a control-a",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeLab(name, true, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			return withLab(*name, func(l *lab.Lab) error {
				cut, done := func() error { return l.Cut(args[0]) }, args[0]+" is cut off"
				if len(args) == 2 {
					cut, done = func() error { return l.CutBetween(args[0], args[1]) }, args[0]+" and "+args[1]+" are cut off from each other"
				}
				if err := cut(); err != nil {
					return &problem.Error{Code: problem.Usage, Err: err}
				}
				fmt.Fprintln(s.io.Err, done)
				return nil
			})
		},
	}
}

func newLabHeal(s *settings, name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "heal [ZONE|MACHINE [ZONE|MACHINE]]",
		Short: "Plug cables in again, and start what died",
		Long: `Heal plugs in the cables of a zone and its machines, or of a machine, lets what was
stopped go on, and starts processes that died. With two names it ends the cut of the path between
them. Without an argument it heals the whole lab.`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: completeLab(name, true, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			what, shown := "", "the lab"
			if len(args) == 1 {
				what, shown = args[0], args[0]
			}
			return withLab(*name, func(l *lab.Lab) error {
				if len(args) == 2 {
					if err := l.HealBetween(args[0], args[1]); err != nil {
						return &problem.Error{Code: problem.Usage, Err: err}
					}
					fmt.Fprintf(s.io.Err, "%s and %s reach each other\n", args[0], args[1])
					return nil
				}
				if err := l.Heal(cmd.Context(), what); err != nil {
					return err
				}
				fmt.Fprintf(s.io.Err, "%s is whole\n", shown)
				return nil
			})
		},
	}
}

func newLabKill(s *settings, name *string) *cobra.Command {
	var power bool
	cmd := &cobra.Command{
		Use:               "kill MACHINE | kill --power MACHINE|ZONE",
		Short:             "Kill a node's agent, a control plane or a gateway, as a crash does, or switch machines off",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeLab(name, true, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withLab(*name, func(l *lab.Lab) error {
				if power {
					if err := l.PowerOff(cmd.Context(), args[0]); err != nil {
						return err
					}
					fmt.Fprintf(s.io.Err, "%s has no power\n", args[0])
					return nil
				}
				if err := l.Kill(cmd.Context(), args[0]); err != nil {
					return err
				}
				what := "the agent of " + args[0]
				if !l.IsNode(args[0]) {
					what = args[0]
				}
				fmt.Fprintf(s.io.Err, "%s is dead\n", what)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&power, "power", false, "everything on the machine, or on all of a zone, with its cable first: nothing says goodbye")
	return cmd
}

func newLabStop(s *settings, name *string) *cobra.Command {
	return &cobra.Command{
		Use:               "stop MACHINE|ZONE",
		Short:             "Stop everything on a machine, or on all of a zone, as SIGSTOP does, until it is healed",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeLab(name, true, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return withLab(*name, func(l *lab.Lab) error {
				if err := l.Stop(args[0]); err != nil {
					return err
				}
				fmt.Fprintf(s.io.Err, "%s is stopped\n", args[0])
				return nil
			})
		},
	}
}

// completeLab offers the machines of the lab, and its zones, for so many arguments.
func completeLab(name *string, zones bool, most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var out []string
		if len(args) < most {
			_ = withLab(*name, func(l *lab.Lab) error { // nothing to offer where there is none
				out = l.Places(zones)
				return nil
			})
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// printLab prints a lab's state; wide adds the nodes' IPv6 addresses and the
// addresses that their agents give for the sample service's name.
func printLab(out io.Writer, s *lab.Status, wide bool) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	if s.Global {
		fmt.Fprintf(out, "lab %s: global control plane %s at %s\n\n", s.Name, s.ControlPlane, s.API)
		printLabSites(w, s)
	} else {
		fmt.Fprintf(out, "lab %s: control plane %s at %s, service default/web at %s\n\n", s.Name, s.ControlPlane, s.API, both(s.VIP, s.VIP6))
	}
	printLabNodes(w, s, wide)
	for i, c := range s.Cuts {
		if i == 0 {
			fmt.Fprintln(w, "\nCUT\tFROM")
		}
		fmt.Fprintf(w, "%s\t%s\n", c[0], c[1])
	}
	for i, k := range s.Links {
		if i == 0 {
			fmt.Fprintln(w, "\nFROM\tTO\tDELAY EACH WAY\tLOSS EACH WAY\tRELAY")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.From, k.To, k.Delay, k.Loss, k.Relay)
	}
	fmt.Fprintln(w, "\nFROM\tBY\tASKED\tFAILED\tANSWERED BY")
	first := "IPv4"
	if s.IPv6Only {
		first = "IPv6"
	}
	for _, z := range s.Zones {
		printServed(w, z.Name, first, &z.Served)
		if z.IPv6 != nil {
			printServed(w, z.Name, "IPv6", z.IPv6)
		}
		if z.Shop != nil {
			printServed(w, z.Name, "sidecar", z.Shop)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// It joins the node's cgroup as well, whose sockets alone are those of the node in mode ebpf.
	_, err := fmt.Fprintf(out, "\na shell on a node:   proxima lab exec --lab %s %s bash\nthe API from there:  export KUBECONFIG=%s\n", s.Name, s.Zones[0].Nodes[0].Name, s.Kubeconfig)
	return err
}

// printLabSites prints what zones with control planes have.
func printLabSites(w io.Writer, s *lab.Status) {
	fmt.Fprintln(w, "ZONE\tCONTROL PLANE\tINGRESS\tEGRESS\tAPI\tWEB AT\tNO PATH TO")
	for _, z := range s.Zones {
		if site := z.Site; site != nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", z.Name, site.ControlPlane, site.Ingress, orNone(site.Egress), site.API,
				orNone(both(site.VIP, site.VIP6)), orNone(strings.Join(z.CutFrom, ", ")))
		}
	}
	fmt.Fprintln(w)
}

// both addresses of a service, of which the second may be missing.
func both(vip, vip6 string) string {
	if vip6 == "" {
		return vip
	}
	return vip + " and " + vip6
}

func printLabNodes(w io.Writer, s *lab.Status, wide bool) {
	columns := []string{"ZONE", "CABLE", "NODE", "ADDRESS", "CABLE", "READY", "AGENT", "MODE", "WORKLOAD"}
	sidecars := s.Zones[0].Shop != nil
	if sidecars {
		columns = append(columns, "SIDECAR")
	}
	if wide {
		columns = append(columns, "IPV6 ADDRESS", "WEB RESOLVES TO")
	}
	fmt.Fprintln(w, strings.Join(columns, "\t"))
	for _, z := range s.Zones {
		for _, n := range z.Nodes {
			cells := []string{z.Name, z.Link, n.Name, n.Address, n.Link, n.Ready, n.Agent, orNone(n.Mode), n.Workload + " " + n.WorkloadProcess}
			if sidecars {
				cells = append(cells, n.Sidecar)
			}
			if wide {
				cells = append(cells, orNone(n.Address6), orNone(strings.Join(n.Names, ", ")))
			}
			fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
	}
}

// printServed prints the endpoints that answered a zone's client, or the error.
func printServed(w io.Writer, zone, family string, s *lab.Served) {
	var by []string
	for _, who := range slices.Sorted(maps.Keys(s.Answered)) {
		by = append(by, fmt.Sprintf("%s %d×", who, s.Answered[who]))
	}
	if s.Error != "" {
		by = append(by, s.Error)
	}
	line := strings.Join(by, ", ")
	fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", zone, family, s.Asked, s.Failed, line)
}

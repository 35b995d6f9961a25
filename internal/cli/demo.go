package cli

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/demo"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

func newDemo(s *settings) *cobra.Command {
	var cfg demo.Config
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: "roles",
		Short:   "See it work, on this machine",
		Long: `Demo starts a control plane, agents and backends on this machine, sends requests
through a virtual IP, kills zone-a's backends and shows where the traffic goes.

As root it runs three zones of two nodes, each a network namespace of its own,
whose agents work in the kernel. Each zone has a control plane and an ingress, and
there is a global control plane; then another zone loses power. Nothing of it reaches
this machine's own network or rules. Without privileges, or with --mode userspace, it is one agent and three
backends. It leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			if !slices.Contains(modes.Names(), cfg.Mode) {
				return usagef("--mode %q: use %s", cfg.Mode, strings.Join(modes.Names(), ", "))
			}
			cfg.Executable, cfg.Out = exe, s.io.Out
			cfg.Color = isTerminal(s.io.Out) && os.Getenv("NO_COLOR") == "" // no-color.org
			return demo.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Mode, "mode", "auto", "how traffic is carried: auto, nftables, iptables (both need root) or userspace")
	cmd.Flags().BoolVar(&cfg.Once, "once", false, "end after the shift")
	cmd.Flags().BoolVar(&cfg.Verbose, "verbose", false, "show what the processes log")
	cmd.AddCommand(newDemoBackend(), newDemoClient())
	return cmd
}

// newDemoBackend is the sample service, started by the demo.
func newDemoBackend() *cobra.Command {
	var listen []string
	var name, zone string
	cmd := &cobra.Command{
		Use:    "backend",
		Short:  "The sample service",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Backend(cmd.Context(), listen, name, zone)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&listen, "listen", []string{"127.0.0.1:8080"}, "address to listen on; may be repeated")
	f.StringVar(&name, "name", "", "name to answer with")
	f.StringVar(&zone, "zone", "", "zone to answer with")
	return cmd
}

// newDemoClient is the sample client, started by a lab with sidecars.
func newDemoClient() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:    "client",
		Short:  "The sample client: passes on HTTP requests that come by a Unix socket",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Client(cmd.Context(), socket)
		},
	}
	cmd.Flags().StringVar(&socket, "client-socket", "client.sock", "path of the socket")
	return cmd
}

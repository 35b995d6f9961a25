package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/demo"
)

func newDemo(s *settings) *cobra.Command {
	var cfg demo.Config
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: "roles",
		Short:   "See it work, on this machine",
		Long: `Demo starts a control plane, an agent and three backends on this machine, sends
requests through a virtual IP, kills a backend and shows where the traffic goes.
It needs no privileges and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			cfg.Executable, cfg.Out = exe, s.io.Out
			cfg.Color = isTerminal(s.io.Out) && os.Getenv("NO_COLOR") == "" // no-color.org
			return demo.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().BoolVar(&cfg.Once, "once", false, "end after the shift")
	cmd.Flags().BoolVar(&cfg.Verbose, "verbose", false, "show what the processes log")
	cmd.AddCommand(newDemoBackend())
	return cmd
}

// newDemoBackend is the sample service, started by the demo.
func newDemoBackend() *cobra.Command {
	var listen, name, zone string
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
	f.StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	f.StringVar(&name, "name", "", "name to answer with")
	f.StringVar(&zone, "zone", "", "zone to answer with")
	return cmd
}

package cli

import (
	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func newLabConsole(s *settings, name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "console [ZONE]",
		Short: "Serve the web console of the lab to a browser of this machine",
		Long: `Console prints an address of this machine that a browser opens, within a minute: the web
console of the lab's control plane or, with "lab up --global", of the global one; with a
zone, that of the zone, which has the traffic. It can only be looked at. Ctrl-C ends it.`,
		Example: "  sudo proxima lab console\n  sudo proxima lab console zone-a",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			zone := ""
			if len(args) > 0 {
				zone = args[0]
			}
			return withLab(*name, func(l *lab.Lab) error {
				cfg, err := l.Config(zone)
				if err != nil {
					return &problem.Error{Code: problem.Usage, Err: err}
				}
				return s.consoleOf(cmd.Context(), cfg, false, false, consoleFor)
			})
		},
	}
}

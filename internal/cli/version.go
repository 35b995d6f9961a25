package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/version"
)

func newVersion(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		GroupID: "operate",
		Short:   "Show what this binary is",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			info := version.Get()
			switch output {
			case "json", "yaml":
				return printValue(s.io.Out, info, output)
			case "table", "wide":
				fmt.Fprintf(s.io.Out, "proxima %s (Kubernetes API %s, %s, %s)\n", info.Version, info.Kubernetes, info.Go, info.Platform)
				return nil
			}
			return usagef("-o %q: choose table, wide, json or yaml", output)
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

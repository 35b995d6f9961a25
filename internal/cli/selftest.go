package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

const selfTestCommand = "self-test"

// newSelfTest is started by an agent, in a network namespace and a cgroup of its own.
func newSelfTest(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:    selfTestCommand + " MODE CGROUP",
		Short:  "Measure what the eBPF layer saves above a mode",
		Args:   cobra.ExactArgs(2),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return json.NewEncoder(s.io.Out).Encode(modes.MeasureLayer(cmd.Context(), args[0], args[1]))
		},
	}
}

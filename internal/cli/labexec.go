package cli

import (
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func newLabExec(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec MACHINE [--] COMMAND [ARG…]",
		Short: "Run a command on a machine of the lab",
		Long: `Exec runs a command in the network namespace of a machine: a node, control, a zone's
client (client-a), or core, the router between zones. KUBECONFIG is the administrator's of
the control plane there, and this program is found as proxima. Unlike "ip netns exec" it keeps
the file systems that are mounted, control groups among them, so that workloads with a sidecar
can be started. In a lab of mode ebpf the command is in the control group of the machine.`,
		Example: "  proxima lab exec control -- proxima get dataplanes\n  proxima lab exec client-a -- curl http://10.96.0.10:8080/\n  proxima lab exec a-1 bash",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var out []string
			_ = withLab(*name, func(l *lab.Lab) error { // nothing to offer where there is none
				out = l.Machines()
				return nil
			})
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && args[1] == "--" {
				args = slices.Delete(args, 1, 2)
			}
			if len(args) < 2 {
				return usagef("name a command to run on %s, as in: proxima lab exec %s -- bash", args[0], args[0])
			}
			return withLab(*name, func(l *lab.Lab) error {
				return &problem.Error{Code: problem.Usage, Err: l.Exec(args[0], args[1:], syscall.Exec)}
			})
		},
	}
	cmd.Flags().SetInterspersed(false) // flags behind the machine are the command's
	return cmd
}

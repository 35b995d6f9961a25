package cli

import (
	"errors"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// newNodeService installs the agent with Windows' service manager.
func newNodeService(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service {install | uninstall}",
		Short: "Install the agent as a service of Windows, or remove it",
		Long: `Service installs this machine's agent with the service manager of Windows, which
starts it with the machine, and again when it fails; or removes it. On Linux
systemd does that: see the packages.

The service writes its log to the file service.log in the data directory.`,
		Example: "  proxima node service install -- --kube-proxy-config C:\\k\\kube-proxy.conf --mode kernelspace\n  proxima node service uninstall",
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "install -- FLAG…",
		Short: "Install the service, which runs \"proxima node\" with these flags, and start it",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := onWindows(); err != nil {
				return err
			}
			return installService(s, append([]string{"node", "--data-dir", s.dataDir}, args...))
		},
	}, &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the service and remove it; traffic goes on by what is in HNS until \"proxima node --cleanup\"",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := onWindows(); err != nil {
				return err
			}
			return uninstallService(s)
		},
	})
	return cmd
}

func onWindows() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return &problem.Error{
		Code: problem.Usage, Err: errors.New("\"proxima node service\" is for the service manager of Windows"),
		Hint: "on this system a package or a unit of systemd starts the agent: \"proxima docs how-to/install-packages\"",
	}
}

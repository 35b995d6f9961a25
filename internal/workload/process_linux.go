package workload

import (
	"os/exec"
	"syscall"
)

func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}

// leaveProxy has a supervisor leave its Envoy running when its parent dies. It comes after tieToParent.
func leaveProxy(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGUSR2 }

// ownGroup keeps signals of the terminal from a process. It comes after tieToParent.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true }

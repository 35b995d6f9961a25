package workload

import (
	"os/exec"
	"syscall"
)

func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}

// ownGroup keeps signals of the terminal from a process. It comes after tieToParent.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true }

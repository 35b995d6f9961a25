package demo

import (
	"os/exec"
	"syscall"
)

// detach keeps the terminal's Ctrl-C away from the children, as the demo ends
// them in order, and has the kernel end them should the demo die.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

package testkit

import "syscall"

// ownGroup keeps a terminal's signals away, and ends the process with its test.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

//go:build unix

package lab

import "syscall"

// Signals that suspend a process and let it go on.
const (
	suspend = syscall.SIGSTOP
	resume  = syscall.SIGCONT
)

// apart gives a process a session of its own: it stays when the terminal goes.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

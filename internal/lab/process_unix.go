//go:build unix

package lab

import "syscall"

// apart gives a process a session of its own: it stays when the terminal goes.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

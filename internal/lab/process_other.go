//go:build !unix

package lab

import "syscall"

// Signals that suspend a process and let it go on: there are none on this system,
// which has no lab either.
const (
	suspend syscall.Signal = 0
	resume  syscall.Signal = 0
)

func apart() *syscall.SysProcAttr { return nil }

//go:build !unix

package lab

import "syscall"

func apart() *syscall.SysProcAttr { return nil }

//go:build !linux

package testkit

import "syscall"

func ownGroup() *syscall.SysProcAttr { return nil }

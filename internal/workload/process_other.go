//go:build !linux

package workload

import "os/exec"

// tieToParent does nothing: the system offers no such tie.
func tieToParent(*exec.Cmd) {}

func leaveProxy(*exec.Cmd) {}

func ownGroup(*exec.Cmd) {}

//go:build !linux

package spiffe

import (
	"errors"
	"net"
)

var errUnsupported = errors.New("the connected process cannot be identified on this system: the Workload API is served on Linux only")

// StartTime of a process that runs, as in Process. It always fails here.
func StartTime(int) (uint64, error) { return 0, errUnsupported }

// processOf the other end of a Unix socket: it is known on Linux only.
func processOf(*net.UnixConn) (Process, error) {
	return Process{}, errUnsupported
}

func (p Process) same() bool { return false }

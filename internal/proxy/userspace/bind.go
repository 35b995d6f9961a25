package userspace

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
)

// BindError is why a socket could not be opened, and what to do about it.
type BindError struct {
	// Socket is network and address, or empty.
	Socket string
	Err    error
	hint   string
}

func (e *BindError) Error() string {
	if e.Socket == "" {
		return e.Err.Error()
	}
	return "listening on " + e.Socket + ": " + e.Err.Error()
}

func (e *BindError) Unwrap() error { return e.Err }

// Code implements problem.Coded.
func (e *BindError) Code() problem.Code { return problem.BindFailed }

// Hint names a remedy.
func (e *BindError) Hint() string { return e.hint }

func newBindError(key socketKey, err error) *BindError {
	var op *net.OpError
	if errors.As(err, &op) { // it would name network and address once more
		err = op.Err
	}
	return &BindError{Socket: key.String(), Err: err, hint: bindHint(key.addr, err)}
}

func bindHint(addr netip.AddrPort, err error) string {
	switch {
	case errors.Is(err, syscall.EACCES) && addr.Port() < 1024:
		return "ports below 1024 need a privilege: run as root, grant CAP_NET_BIND_SERVICE, lower the sysctl net.ipv4.ip_unprivileged_port_start, or use a port of 1024 or more"
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process, perhaps another agent on this host, listens there: stop it, or give one of them another service range or a kernel mode"
	case isNotLocal(err):
		return "the address does not belong to this host: use a service range in 127.0.0.0/8 on Linux, or run as root so that the range can be routed to this host"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "too many open files: raise the limit (ulimit -n), or use a kernel mode"
	}
	return ""
}

func isNotLocal(err error) bool { return errors.Is(err, syscall.EADDRNOTAVAIL) }

// isOurFault distinguishes errors of this host from those of an endpoint.
func isOurFault(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// keepAlive finds dead peers of idle connections within 75 s, as half-open
// connections would hold their slot forever.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 3}

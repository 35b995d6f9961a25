// Package app wires Proxima's packages together: one short file per role.
//
// It owns nothing but the order in which components start and stop. Enter at
// RunControlPlane (standalone.go), RunNode (node.go) and RunUp (up.go); each blocks until
// its context ends and leaves nothing running. A role is a list of components, which
// component.go runs. It is the only package that imports all others.
package app

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// listen on a TCP address; what it is for and its flag go into the error. At most
// limit connections are open at a time.
func listen(what, flag, address string, limit int, log *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &problem.Error{
			Code: problem.ListenFailed,
			Err:  fmt.Errorf("%s: %w", what, err),
			Hint: "is another one running on this machine? choose another address with " + flag,
		}
	}
	return listener.Limit(l, listener.Config{Name: what, MaxConnections: limit, Logger: log}), nil
}

// reachable is an address by which this machine reaches a listener.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// Connections that are open at a time at one listener.
const (
	// maxProbeConnections are those for health and metrics: probes and scrapes are
	// few.
	maxProbeConnections = 256
	// maxAPIConnections and maxViewConnections allow for some ten thousand nodes,
	// with the connections of an agent to each. Of the file descriptors that the
	// process may open they take apiShare and viewShare at most; the rest is for the
	// store, the files and the other listeners. A client of a registry that has pushes takes
	// one for as long as it runs, and there may be as many as nodes: such protocols share
	// registryShare.
	maxAPIConnections  = 50_000
	maxViewConnections = 20_000
	apiShare           = 0.5
	viewShare          = 0.25
	proxyShare         = 0.125
	registryShare      = 0.55
)

// onPort is another port on the host of an address.
func onPort(address string, port int) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("address %q: want HOST:PORT: %w", address, err)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

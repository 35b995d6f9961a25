package userspace

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// errOwnSocket is the outcome of an attempt at an endpoint where the mode itself
// listens: the connection would come back, until no descriptor is left.
var errOwnSocket = errors.New("the endpoint's address is one that this agent answers at itself")

// sockets are those that are open, for readers who must not wait for Mode.mu. The
// zero value is ready. add and remove are called under Mode.mu.
type sockets struct {
	open sync.Map // socketKey to proxy.PortName
	// anywhere counts sockets on all addresses, as node ports have them.
	anywhere atomic.Int64
}

func (s *sockets) add(key socketKey, owner proxy.PortName) {
	s.open.Store(key, owner)
	if key.addr.Addr().IsUnspecified() {
		s.anywhere.Add(1)
	}
}

func (s *sockets) remove(key socketKey) {
	s.open.Delete(key)
	if key.addr.Addr().IsUnspecified() {
		s.anywhere.Add(-1)
	}
}

// AnswersAt is the service port that has a socket at an address and port of this
// machine; ok is false if none has. Safe at any time.
func (m *Mode) AnswersAt(to netip.AddrPort, protocol proxy.Protocol) (name proxy.PortName, ok bool) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	key := socketKey{network(protocol, to.Addr()), to}
	owner, found := m.sockets.open.Load(key)
	if !found && m.sockets.anywhere.Load() > 0 && (to.Addr().IsLoopback() || m.host.has(to.Addr(), time.Now())) {
		any := netip.IPv6Unspecified()
		if to.Addr().Is4() {
			any = netip.IPv4Unspecified()
		}
		key.addr = netip.AddrPortFrom(any, to.Port())
		owner, found = m.sockets.open.Load(key)
	}
	if !found {
		return proxy.PortName{}, false
	}
	return owner.(proxy.PortName), true
}

// mayDial returns errOwnSocket for an endpoint that is a socket of the mode.
func (m *Mode) mayDial(to netip.AddrPort, protocol proxy.Protocol) error {
	if _, own := m.AnswersAt(to, protocol); own {
		return errOwnSocket
	}
	return nil
}

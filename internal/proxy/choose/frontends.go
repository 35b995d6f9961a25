package choose

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// UnknownMachine is a Node.Machine that has no loopback endpoints: for questions
// about a node whose machine is not known.
const UnknownMachine = "-"

// Frontends are the cluster addresses at which Services answer on every node. An
// endpoint at one of them would lead back to the node. Safe for concurrent use.
//
// Other addresses of Services (external, of load balancers, node ports) are not
// among them: programs of a machine may well listen there, as an ingress on the
// host's network does, and kernel modes translate a connection once only. Where
// the userspace mode has a socket, it does not dial.
type Frontends struct {
	mu       sync.RWMutex
	services map[netip.Addr]*proxy.Service
}

// NewFrontends makes an empty set.
func NewFrontends() *Frontends { return &Frontends{services: map[netip.Addr]*proxy.Service{}} }

// Set replaces a Service by another of the same name; nil: there is none.
func (f *Frontends) Set(old, now *proxy.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old != nil {
		for _, a := range old.ClusterIPs {
			if has := f.services[a]; has != nil && has.Name == old.Name {
				delete(f.services, a)
			}
		}
	}
	if now != nil {
		for _, a := range now.ClusterIPs {
			f.services[a] = now
		}
	}
}

// At is the Service that answers at an address and port; ok is false if none
// does. A nil Frontends has none.
func (f *Frontends) At(to netip.AddrPort, protocol proxy.Protocol) (service proxy.ServiceName, ok bool) {
	if f == nil {
		return proxy.ServiceName{}, false
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.at(to, protocol)
}

func (f *Frontends) at(to netip.AddrPort, protocol proxy.Protocol) (service proxy.ServiceName, ok bool) {
	s := f.services[to.Addr()]
	if s == nil || !slices.ContainsFunc(s.Ports, func(p proxy.Port) bool { return p.Port == to.Port() && p.Protocol == protocol }) {
		return proxy.ServiceName{}, false
	}
	return s.Name, true
}

// Touched are addresses at which Services answer since a moment, or do no more.
// The zero value is empty.
type Touched map[netip.Addr]struct{}

// Touch notes what the replacement of a Service concerns; nil: there is none. An
// address that stays counts if the ports are others.
func (t *Touched) Touch(old, now *proxy.Service) {
	if old != nil && now != nil && slices.Equal(old.Ports, now.Ports) && slices.Equal(old.ClusterIPs, now.ClusterIPs) {
		return
	}
	if *t == nil {
		*t = Touched{}
	}
	for _, s := range []*proxy.Service{old, now} {
		if s == nil {
			continue
		}
		for _, a := range s.ClusterIPs {
			(*t)[a] = struct{}{}
		}
	}
}

// usable leaves out what is no address, and the endpoints that Unusable has a reason for. The
// addresses that remain are not of the form ::ffff:0:0/96. It reuses all.
func usable(all []Endpoint, protocol proxy.Protocol, node Node) []Endpoint {
	if node.Frontends != nil {
		node.Frontends.mu.RLock()
		defer node.Frontends.mu.RUnlock()
	}
	for i := range all {
		if all[i].Addr.Addr().Is4In6() {
			all[i].Addr = unmapped(all[i].Addr)
		}
	}
	return remove(all, func(e *Endpoint) bool {
		if !e.Addr.IsValid() || e.Addr.Port() == 0 || onOtherMachine(e, node) {
			return true
		}
		if node.Frontends == nil {
			return false
		}
		_, front := node.Frontends.at(e.Addr, protocol)
		return front
	})
}

// onOtherMachine: a loopback address that is another machine's. Where the machine is
// not known, it is that of the endpoint's node.
func onOtherMachine(e *Endpoint, node Node) bool {
	if node.Machine == "" || !e.Addr.Addr().Unmap().IsLoopback() {
		return false
	}
	if e.Machine == "" {
		return e.Node == "" || e.Node != node.Name
	}
	return e.Machine != node.Machine
}

// Unusable is why a node never uses an endpoint, whatever its conditions; empty:
// nothing is against it.
func Unusable(e Endpoint, protocol proxy.Protocol, node Node) string {
	if onOtherMachine(&e, node) {
		return "a loopback address of another machine: only agents of the machine that registered it use it"
	}
	if service, ok := node.Frontends.At(unmapped(e.Addr), protocol); ok {
		return fmt.Sprintf("the virtual IP of service %s: a connection to it would lead back here", service)
	}
	return ""
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

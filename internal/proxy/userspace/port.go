package userspace

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// role is why an address belongs to a Service; it decides the traffic policy.
type role uint8

const (
	clusterIP role = iota
	loadBalancer
	externalIP
	nodePort
)

// socketKey identifies a socket of this host.
type socketKey struct {
	network string // tcp4, tcp6, udp4, udp6
	addr    netip.AddrPort
}

// family of the virtual address, or of those that a node port has.
func (k socketKey) family() proxy.Family { return proxy.FamilyOf(k.addr.Addr()) }

func (k socketKey) String() string { return k.network + " " + k.addr.String() }

// frontendKey is a socket together with what it is for. A socket whose purpose
// changes is opened again: that is rare and keeps purposes immutable.
type frontendKey struct {
	socketKey
	role role
	// silent: the verdict is Drop, so whatever arrives is left unanswered.
	silent bool
}

// frontend is an open socket of a service port.
type frontend interface {
	// close stops accepting. Connections of TCP live on, flows of UDP end.
	close()
	// prune ends what must not outlive its endpoint (UDP flows).
	prune(*view)
}

// servicePort carries one port of a Service. Its sockets and desired frontends are
// guarded by Mode.mu; the rest is safe for concurrent use.
type servicePort struct {
	mode     *Mode
	name     proxy.PortName
	counters counters
	affinity affinity
	sequence atomic.Uint64
	view     atomic.Pointer[view]

	frontends map[frontendKey]frontend
	wanted    []frontendKey
}

func newServicePort(m *Mode, name proxy.PortName) *servicePort {
	p := &servicePort{mode: m, name: name, frontends: map[frontendKey]frontend{}}
	p.sequence.Store(randomStart())
	return p
}

// release takes over the new state (nil: none) and closes the sockets that it
// does not want.
func (p *servicePort) release(state *proxy.PortState) {
	p.wanted = nil
	v := newView(state)
	if state != nil {
		p.wanted = p.desired(state)
	}
	p.view.Store(v)
	for key, f := range p.frontends {
		if !slices.Contains(p.wanted, key) {
			f.close()
			delete(p.frontends, key)
			delete(p.mode.owners, key.socketKey)
			p.mode.sockets.remove(key.socketKey)
		} else {
			f.prune(v)
		}
	}
}

// open opens the wanted sockets that are not open yet. What opens is kept
// whatever else fails.
func (p *servicePort) open() error {
	var errs []error
	state := p.view.Load().state
	if proto := state.Port.Protocol; proto != proxy.TCP && proto != proxy.UDP {
		return &BindError{
			Err:  fmt.Errorf("protocol %s is not carried in user space", proto),
			hint: "use a kernel mode for this Service",
		}
	}
	for _, key := range p.wanted {
		if p.frontends[key] != nil {
			continue
		}
		if owner, taken := p.mode.owners[key.socketKey]; taken {
			errs = append(errs, &BindError{
				Socket: key.String(),
				Err:    fmt.Errorf("used by service port %s already", owner),
				hint:   "give one of the two Services another address or port",
			})
			continue
		}
		f, err := p.listen(key)
		if err != nil {
			if isNotLocal(err) && (key.role == externalIP || key.role == loadBalancer) {
				continue // another host's address; traffic to it never comes here
			}
			errs = append(errs, newBindError(key.socketKey, err))
			continue
		}
		p.frontends[key] = f
		p.mode.owners[key.socketKey] = p.name
		p.mode.sockets.add(key.socketKey, p.name)
	}
	return errors.Join(errs...)
}

func (p *servicePort) listen(key frontendKey) (frontend, error) {
	if p.view.Load().state.Port.Protocol == proxy.UDP {
		return listenUDP(p, key)
	}
	return p.mode.streams.listen(p, key)
}

// desired lists the sockets that a state asks for. Where nothing could answer
// there is none: the kernel then refuses, which is the verdict Reject.
func (p *servicePort) desired(state *proxy.PortState) []frontendKey {
	svc, port := state.Service, state.Port
	var keys []frontendKey
	seen := map[socketKey]bool{}
	add := func(addr netip.Addr, number uint16, r role) {
		addr = addr.Unmap()
		key := frontendKey{socketKey: socketKey{network(port.Protocol, addr), netip.AddrPortFrom(addr, number)}, role: r}
		carried, silent := stance(state, addr, r)
		if number == 0 || seen[key.socketKey] || (!carried && !silent) {
			return
		}
		key.silent = silent
		seen[key.socketKey] = true
		keys = append(keys, key)
	}
	for _, a := range svc.ClusterIPs {
		add(a, port.Port, clusterIP)
	}
	for _, a := range svc.LoadBalancerIPs {
		add(a, port.Port, loadBalancer)
	}
	for _, a := range svc.ExternalIPs {
		add(a, port.Port, externalIP)
	}
	for _, a := range p.nodePortAddresses(svc) {
		add(a, port.NodePort, nodePort)
	}
	slices.SortFunc(keys, func(a, b frontendKey) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.addr.Compare(b.addr))
	})
	return keys
}

func (p *servicePort) nodePortAddresses(svc *proxy.Service) []netip.Addr {
	has := func(is4 bool) bool {
		return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return a.Unmap().Is4() == is4 })
	}
	from := p.mode.opts.NodePortAddresses
	if from == nil {
		from = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	var out []netip.Addr
	for _, a := range from {
		if has(a.Unmap().Is4()) {
			out = append(out, a)
		}
	}
	return out
}

// stance reports what a virtual address does in a state: carry traffic, or take
// and ignore it. Neither: refuse.
func stance(state *proxy.PortState, vip netip.Addr, r role) (carried, silent bool) {
	if r == loadBalancer {
		if ranges, all := state.Service.SourcesOf(vip.Is4()); len(ranges) == 0 && !all {
			return false, canDrop // no client of this family is admitted
		}
	}
	choice := state.For(vip)
	targets, verdict := choice.List(policyLocal(state.Service, r))
	if len(targets) > 0 {
		return true, false
	}
	// Clients on this node use the cluster's list even under a Local policy for
	// external traffic, so the socket has to be there for them.
	if r != clusterIP && len(choice.Cluster) > 0 {
		return true, false
	}
	return false, verdict == proxy.Drop && canDrop
}

func policyLocal(svc *proxy.Service, r role) bool {
	if r == clusterIP {
		return svc.InternalLocal
	}
	return svc.ExternalLocal
}

func network(proto proxy.Protocol, addr netip.Addr) string {
	family := "6"
	if addr.Is4() {
		family = "4"
	}
	if proto == proxy.UDP {
		return "udp" + family
	}
	return "tcp" + family
}

// poolFor finds the endpoints for a client that came to a frontend; local is the
// address it asked for, where the frontend is on all of them. None: the client is
// to be turned away.
func (p *servicePort) poolFor(v *view, key frontendKey, client netip.Addr, local func() netip.Addr) *pool {
	if v.state == nil {
		return nil // the port was removed while the client waited in the queue
	}
	svc := v.state.Service
	if key.role == loadBalancer && !svc.Admits(client) {
		return nil
	}
	if p.foreign(svc.Scope, key, client) {
		return nil
	}
	pools := v.pools(key.addr.Addr())
	if !policyLocal(svc, key.role) {
		return pools.cluster
	}
	if key.role != clusterIP && p.fromHere(key, client, local) {
		return pools.cluster
	}
	return pools.local
}

// fromHere reports whether a client is a process of this host.
func (p *servicePort) fromHere(key frontendKey, client netip.Addr, local func() netip.Addr) bool {
	asked := key.addr.Addr()
	if asked.IsUnspecified() {
		asked = local()
	}
	return client.IsLoopback() || client == asked || p.mode.host.has(client, time.Now())
}

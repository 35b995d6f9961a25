package lab

import (
	"errors"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// namespaces of a lab that are open, by their name within it.
type namespaces struct {
	lab  string
	open map[string]*netns.NS
}

func (n *namespaces) create(name string) (*netns.NS, error) {
	ns, err := netns.Create(namespacePrefix(n.lab) + name)
	if err == nil {
		n.open[name] = ns
	}
	return ns, err
}

func (n *namespaces) close() {
	for _, ns := range n.open {
		_ = ns.Close() // a descriptor; nothing to be done about it
	}
	clear(n.open)
}

// all names within a lab of this shape.
func (s Spec) all() []string {
	names := []string{core, control}
	for _, z := range s.zones() {
		names = append(names, z.name(), z.client())
		names = append(names, s.servers(z)...)
	}
	for _, n := range s.nodes() {
		names = append(names, n.name())
	}
	return names
}

// openAll opens the namespaces of a lab. Missing ones are omitted, so that the rest can
// still be inspected.
func openAll(s Spec) (*namespaces, error) {
	n := &namespaces{lab: s.Name, open: map[string]*netns.NS{}}
	for _, name := range s.all() {
		if ns, err := netns.Open(namespacePrefix(s.Name) + name); err == nil {
			n.open[name] = ns
		}
	}
	if len(n.open) == 0 {
		return nil, &NotUpError{Name: s.Name}
	}
	return n, nil
}

// everywhere in the address's family.
func everywhere(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// route everything by way of a neighbour, in every family of the lab.
func (s Spec) route(n *netns.NS, via netip.Addr) error {
	var errs []error
	for _, a := range s.addrs(via) {
		errs = append(errs, n.AddRoute(everywhere(a.Addr()), a.Addr()))
	}
	return errors.Join(errs...)
}

// routeNet routes an address's network by way of a neighbour.
func (s Spec) routeNet(n *netns.NS, to, via netip.Addr) error {
	var errs []error
	nets := s.addrs(to)
	for i, a := range s.addrs(via) {
		errs = append(errs, n.AddRoute(nets[i].Masked(), a.Addr()))
	}
	return errors.Join(errs...)
}

// forward makes a namespace pass on what is for others.
func (s Spec) forward(n *netns.NS) error {
	err := n.SetSysctl("net.ipv4.ip_forward", "1")
	if err == nil && !s.IPv4Only {
		err = n.SetSysctl("net.ipv6.conf.all.forwarding", "1")
	}
	return err
}

// lay the network: a router with a leg to the control plane and to the switch of
// every zone, where the zone's nodes are plugged in; behind the first node of a
// zone is its client.
func (n *namespaces) lay(s Spec) error {
	for _, name := range s.all() {
		if _, err := n.create(name); err != nil {
			return err
		}
	}
	router := n.open[core]
	steps := []error{
		s.forward(router),
		// Zones meet only here, so that a cut is a cut.
		router.SetSysctl("net.ipv4.conf.all.send_redirects", "0"),
		router.SetSysctl("net.ipv4.conf.default.send_redirects", "0"),
		netns.Connect(
			netns.End{NS: router, Link: control, Addrs: s.addrs(controlAddr(1))},
			netns.End{NS: n.open[control], Link: "eth0", Addrs: s.addrs(controlAddr(2))}),
		s.route(n.open[control], controlAddr(1)),
	}
	if err := errors.Join(steps...); err != nil {
		return err
	}
	for _, z := range s.zones() {
		if err := n.layZone(s, z); err != nil {
			return err
		}
	}
	return nil
}

func (n *namespaces) layZone(s Spec, z zone) error {
	router, hub := n.open[core], n.open[z.name()]
	steps := []error{
		hub.AddBridge("switch"),
		netns.Connect(
			netns.End{NS: router, Link: z.name(), Addrs: s.addrs(z.addr(1))},
			netns.End{NS: hub, Link: "uplink", Bridge: "switch"}),
	}
	for _, node := range s.nodes() {
		if node.zone != z {
			continue
		}
		steps = append(steps,
			netns.Connect(
				netns.End{NS: n.open[node.name()], Link: "eth0", Addrs: s.addrs(node.addr())},
				netns.End{NS: hub, Link: node.name(), Bridge: "switch"}),
			// Also the way of service addresses: where a kernel mode does not redirect
			// them, they end at the router, which has no way for them.
			s.route(n.open[node.name()], z.addr(1)),
			s.forward(n.open[node.name()]))
		if node.index > 0 {
			// Answers to the zone's client stay in the zone, also one that is cut off.
			steps = append(steps, s.routeNet(n.open[node.name()], z.clientAddr(2), firstOf(z).addr()))
		}
	}
	for machine, addr := range s.machines(z) {
		steps = append(steps,
			netns.Connect(
				netns.End{NS: n.open[machine], Link: "eth0", Addrs: s.addrs(addr)},
				netns.End{NS: hub, Link: machine, Bridge: "switch"}),
			s.route(n.open[machine], z.addr(1)))
	}
	first, client := n.open[firstOf(z).name()], n.open[z.client()]
	steps = append(steps,
		netns.Connect(
			netns.End{NS: first, Link: "client", Addrs: s.addrs(z.clientAddr(1))},
			netns.End{NS: client, Link: "eth0", Addrs: s.addrs(z.clientAddr(2))}),
		s.route(client, z.clientAddr(1)),
		s.routeNet(router, z.clientAddr(2), firstOf(z).addr()))
	return errors.Join(steps...)
}

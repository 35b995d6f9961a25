package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Connect makes a pair of virtual Ethernet links, one end in each namespace, both
// up. They may be the same namespace. When either end goes, so does the other.
func Connect(a, b End) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Link
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Link, PeerNamespace: netlink.NsFd(b.NS.Fd())}
	if err := a.NS.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect %s in %s with %s in %s: %w", a.Link, a.NS.name, b.Link, b.NS.name, err)
	}
	for _, end := range []End{a, b} {
		if err := end.set(); err != nil {
			return errors.Join(err, a.NS.DeleteLink(a.Link))
		}
	}
	return nil
}

func (e End) set() error {
	if e.Bridge != "" {
		link, err := e.NS.link(e.Link)
		if err != nil {
			return err
		}
		bridge, err := e.NS.link(e.Bridge)
		if err != nil {
			return err
		}
		if err := e.NS.handle.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("make %s a port of %s in %s: %w", e.Link, e.Bridge, e.NS.name, err)
		}
	}
	for _, p := range e.Addrs {
		if err := e.NS.AddAddr(e.Link, p); err != nil {
			return err
		}
	}
	return e.NS.SetLinkUp(e.Link, true)
}

// AddBridge makes a bridge, up and without spanning tree, that floods multicast:
// neighbours are found from the first packet on.
func (n *NS) AddBridge(name string, addrs ...netip.Prefix) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	snooping := false
	if err := n.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, n.name, err)
	}
	return End{NS: n, Link: name, Addrs: addrs}.set()
}

// AddAddr gives a link an address; it is usable at once.
func (n *NS) AddAddr(link string, p netip.Prefix) error {
	l, err := n.link(link)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := n.handle.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", p, link, n.name, err)
	}
	return nil
}

// DeleteAddr takes an address from a link.
func (n *NS) DeleteAddr(link string, p netip.Prefix) error {
	l, err := n.link(link)
	if err != nil {
		return err
	}
	if err := n.handle.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("delete address %s from %s in %s: %w", p, link, n.name, err)
	}
	return nil
}

// AddRoute sends a range, also 0.0.0.0/0 or ::/0, to a neighbour.
func (n *NS) AddRoute(to netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(to.Masked()), Gw: via.AsSlice()}
	if err := n.handle.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s via %s in %s: %w", to, via, n.name, err)
	}
	return nil
}

// nobody is an Ethernet address that no link has: of the locally administered ones, which
// the kernel takes for links without one at random, the first.
var nobody = net.HardwareAddr{2, 0, 0, 0, 0, 0}

// BlockNeighbour drops what goes out by a link to a neighbour, without an error for the
// sender, as if the neighbour had no power. What is blocked already is no error.
func (n *NS) BlockNeighbour(link string, addr netip.Addr) error {
	entry, err := n.neighbour(link, addr)
	if err == nil {
		err = n.handle.NeighSet(entry)
	}
	if err != nil {
		return fmt.Errorf("block neighbour %s of %s in %s: %w", addr, link, n.name, err)
	}
	return nil
}

// UnblockNeighbour ends BlockNeighbour: the neighbour is looked for again. What is not
// blocked is no error.
func (n *NS) UnblockNeighbour(link string, addr netip.Addr) error {
	entry, err := n.neighbour(link, addr)
	if err == nil {
		err = n.handle.NeighDel(entry)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unblock neighbour %s of %s in %s: %w", addr, link, n.name, err)
	}
	return nil
}

func (n *NS) neighbour(link string, addr netip.Addr) (*netlink.Neigh, error) {
	l, err := n.link(link)
	if err != nil {
		return nil, err
	}
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: nobody,
	}, nil
}

// SetLinkUp brings a link up or down. While it is down, routes by way of it are
// gone; IPv4's and those added by AddRoute do not return by themselves.
func (n *NS) SetLinkUp(name string, up bool) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	set := n.handle.LinkSetDown
	if up {
		set = n.handle.LinkSetUp
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set link %s in %s up=%v: %w", name, n.name, up, err)
	}
	return nil
}

// LinkUp reports whether a link is set up.
func (n *NS) LinkUp(name string) (bool, error) {
	link, err := n.link(name)
	if err != nil {
		return false, err
	}
	return link.Attrs().Flags&net.FlagUp != 0, nil
}

// DeleteLink removes a link; one that is gone is no error.
func (n *NS) DeleteLink(name string) error {
	link, err := n.link(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := n.handle.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s in %s: %w", name, n.name, err)
	}
	return nil
}

// Links lists the names of all links, loopback too.
func (n *NS) Links() ([]string, error) {
	links, err := n.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", n.name, err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names, nil
}

func (n *NS) link(name string) (netlink.Link, error) {
	link, err := n.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find link %s in %s: %w", name, n.name, err)
	}
	return link, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

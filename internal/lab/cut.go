package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Cut takes the cable of a zone's switch to the other zones, or of a machine to its zone's
// switch. What is cut already is no error.
func (l *Lab) Cut(name string) error { return l.setLink(name, false) }

func (l *Lab) setLink(name string, up bool) error {
	p, err := l.spec.find(name)
	if err != nil {
		return err
	}
	if p.machine == control {
		// Its cable ends at the router, which would forget its routes.
		var errs []error
		for _, z := range l.spec.zones() {
			errs = append(errs, l.setPath(l.spec.networks(target{zone: z}), l.spec.networks(p), up))
		}
		return errors.Join(errs...)
	}
	hub := l.ns.open[p.zone.name()]
	if hub == nil {
		return fmt.Errorf("the network of %s is gone: take the lab down and up again", p.zone.name())
	}
	// The port of the switch, not the far end: that keeps its routes.
	return hub.SetLinkUp(p.port(), up)
}

// CutBetween drops everything between two zones or machines: at the router between zones, or
// on the cables of two machines of one zone. What is cut already is no error.
func (l *Lab) CutBetween(a, b string) error { return l.between(a, b, false) }

// HealBetween ends CutBetween.
func (l *Lab) HealBetween(a, b string) error { return l.between(a, b, true) }

func (l *Lab) between(a, b string, up bool) error {
	ends, err := l.spec.path(a, b)
	if err != nil {
		return err
	}
	if ends[0].zone == ends[1].zone {
		err = l.setNeighbours(ends, up)
	} else {
		err = l.setPath(l.spec.networks(ends[0]), l.spec.networks(ends[1]), up)
	}
	if err != nil || !l.spec.ofMachine(ends) {
		return err
	}
	return l.kept.change(func(s *state) {
		s.Cuts = slices.DeleteFunc(s.Cuts, func(c [2]string) bool { return samePath(c, [2]string{a, b}) })
		if !up {
			s.Cuts = append(s.Cuts, [2]string{a, b})
		}
	})
}

// path between two places, of which neither is part of the other.
func (s Spec) path(a, b string) (ends [2]target, err error) {
	for i, name := range []string{a, b} {
		if ends[i], err = s.find(name); err != nil {
			return ends, err
		}
	}
	switch from, to := s.machinesAt(ends[0]), s.machinesAt(ends[1]); {
	case a == b:
		return ends, fmt.Errorf("%s is named twice: name the two ends of a path", a)
	case slices.Contains(from, b):
		return ends, fmt.Errorf("%s is a machine of %s: name the two ends of a path", b, a)
	case slices.Contains(to, a):
		return ends, fmt.Errorf("%s is a machine of %s: name the two ends of a path", a, b)
	}
	return ends, nil
}

func samePath(a, b [2]string) bool { return a == b || a == [2]string{b[1], b[0]} }

// ofMachine reports whether an end is a single machine of a zone.
func (s Spec) ofMachine(ends [2]target) bool {
	return slices.ContainsFunc(ends[:], func(p target) bool { return p.node != nil || p.machine != "" && p.machine != control })
}

// setNeighbours lets two machines of a zone reach each other, or makes each send what is for
// the other one to an Ethernet address that nobody has.
func (l *Lab) setNeighbours(ends [2]target, up bool) error {
	var errs []error
	for i, p := range ends {
		ns := l.ns.open[p.port()]
		if ns == nil {
			return fmt.Errorf("the network of %s is gone: take the lab down and up again", p.port())
		}
		set := ns.BlockNeighbour
		if up {
			set = ns.UnblockNeighbour
		}
		for _, a := range l.spec.hosts(l.spec.addrOf(ends[1-i])) {
			errs = append(errs, set("eth0", a.Addr()))
		}
	}
	return errors.Join(errs...)
}

// addrOf a machine.
func (s Spec) addrOf(p target) netip.Addr {
	switch {
	case p.node != nil:
		return p.node.addr()
	case p.machine == control:
		return controlAddr(2)
	}
	return s.machines(p.zone)[p.machine]
}

// networks of a zone, or the addresses of a machine, in every family of the lab. What is
// behind a machine is part of it.
func (s Spec) networks(p target) []netip.Prefix {
	switch {
	case p.machine == control:
		return s.addrs(controlAddr(2))
	case p.node != nil && *p.node == firstOf(p.zone):
		return append(s.hosts(p.node.addr()), s.addrs(p.zone.clientAddr(2))...)
	case p.node != nil || p.machine != "":
		return s.hosts(s.addrOf(p))
	}
	return append(s.addrs(p.zone.addr(1)), s.addrs(p.zone.clientAddr(2))...)
}

func (l *Lab) setPath(from, to []netip.Prefix, up bool) error {
	router := l.ns.open[core]
	if router == nil {
		return errNoRouter
	}
	set := router.Block
	if up {
		set = router.Unblock
	}
	var errs []error
	for _, a := range from {
		for _, b := range to {
			if a.Addr().Is4() == b.Addr().Is4() {
				errs = append(errs, set(a.Masked(), b.Masked()))
			}
		}
	}
	return errors.Join(errs...)
}

// ends of paths that can be cut.
func (s Spec) ends() []target {
	var out []target
	for _, z := range s.zones() {
		out = append(out, target{zone: z})
	}
	return append(out, target{zone: -1, machine: control})
}

// unblockAll ends every CutBetween.
func (l *Lab) unblockAll() error {
	ends := l.spec.ends()
	var errs []error
	for _, c := range l.kept.cuts() {
		errs = append(errs, l.HealBetween(c[0], c[1]))
	}
	for i, a := range ends {
		for _, b := range ends[i+1:] {
			errs = append(errs, l.setPath(l.spec.networks(a), l.spec.networks(b), true))
		}
	}
	return errors.Join(errs...)
}

// cutFrom are the ends to which the path from one is cut.
func (l *Lab) cutFrom(p target) []string {
	router := l.ns.open[core]
	if router == nil {
		return nil
	}
	var out []string
	for _, other := range l.spec.ends() {
		if other == p {
			continue
		}
		blocked, err := router.Blocked(l.spec.networks(p)[0].Masked(), l.spec.networks(other)[0].Masked())
		if err == nil && blocked {
			out = append(out, l.spec.nameOf(other))
		}
	}
	return out
}

func (s Spec) nameOf(p target) string {
	switch {
	case p.machine != control:
		return p.zone.name()
	case s.Global:
		return global
	}
	return control
}

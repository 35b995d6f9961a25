package lab

import (
	"errors"
	"fmt"
	"net/netip"
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

// CutBetween drops everything between two zones, or between a zone and global, at the router
// between them. What is cut already is no error.
func (l *Lab) CutBetween(a, b string) error { return l.between(a, b, false) }

// HealBetween ends CutBetween.
func (l *Lab) HealBetween(a, b string) error { return l.between(a, b, true) }

func (l *Lab) between(a, b string, up bool) error {
	var ends [2]target
	for i, name := range []string{a, b} {
		p, err := l.spec.find(name)
		if err != nil {
			return err
		}
		if p.node != nil || p.machine != "" && p.machine != control {
			return fmt.Errorf("%s is a machine of %s: the path between two zones, or a zone and %s, can be cut", name, p.zone.name(), global)
		}
		ends[i] = p
	}
	if ends[0] == ends[1] {
		return fmt.Errorf("%s is named twice: name the two ends of a path", a)
	}
	return l.setPath(l.spec.networks(ends[0]), l.spec.networks(ends[1]), up)
}

// networks of a zone, or of the central control plane, in every family of the lab.
func (s Spec) networks(p target) []netip.Prefix {
	if p.machine == control {
		return s.addrs(controlAddr(2))
	}
	return append(s.addrs(p.zone.addr(1)), s.addrs(p.zone.clientAddr(2))...)
}

func (l *Lab) setPath(from, to []netip.Prefix, up bool) error {
	router := l.ns.open[core]
	if router == nil {
		return errors.New("the router between the zones is gone: take the lab down and up again")
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

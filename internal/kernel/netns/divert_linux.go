package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of rules of Divert: after those of Block, so that a path that is blocked stays
// so, and before the kernel's own tables. What comes from the device goes on as if it had
// never been diverted.
const (
	arrivePriority = 110
	divertPriority = 120
)

// Divert makes a namespace that routes send what goes from one range to another, and back, to
// a device, by a table of routes that nothing else uses. What comes from the device is routed
// as ever. What is diverted already is no error. The route goes with the device, and packets
// take their usual way again. Both ranges are of one family.
func (n *NS) Divert(a, b netip.Prefix, device string, table int) error {
	link, err := n.link(device)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Table: table, Dst: ipNet(everywhere(a)), Scope: netlink.SCOPE_LINK}
	if err := n.handle.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s in %s: %w", device, n.name, err)
	}
	for _, rule := range divertRules(a, b, device, table) {
		if err := n.handle.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("divert %s from %s to %s in %s: %w", a, b, device, n.name, err)
		}
	}
	return nil
}

// EndDivert ends Divert. What is not diverted is no error.
func (n *NS) EndDivert(a, b netip.Prefix, device string, table int) error {
	rules := divertRules(a, b, device, table)
	for i := len(rules) - 1; i >= 0; i-- { // that of the device comes last
		if err := n.handle.RuleDel(rules[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("end the diversion of %s from %s to %s in %s: %w", a, b, device, n.name, err)
		}
	}
	return nil
}

func everywhere(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), 0).Masked() }

func divertRules(a, b netip.Prefix, device string, table int) []*netlink.Rule {
	family := netlink.FAMILY_V4
	if a.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	arrive := netlink.NewRule()
	arrive.IifName, arrive.Family, arrive.Priority, arrive.Table = device, family, arrivePriority, unix.RT_TABLE_MAIN
	out := []*netlink.Rule{arrive}
	for _, way := range [][2]netip.Prefix{{a, b}, {b, a}} {
		r := netlink.NewRule()
		r.Src, r.Dst = ipNet(way[0].Masked()), ipNet(way[1].Masked())
		r.Family, r.Priority, r.Table = family, divertPriority, table
		out = append(out, r)
	}
	return out
}

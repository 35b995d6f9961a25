package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// blockPriority is that of rules of Block: before those of the kernel's own tables, but for
// the local one.
const blockPriority = 100

// Block makes a namespace that routes drop what goes from one range to another, and back.
// What is blocked already is no error. Both ranges are of one family.
func (n *NS) Block(a, b netip.Prefix) error {
	for _, rule := range blockRules(a, b) {
		if err := n.handle.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("block %s from %s in %s: %w", a, b, n.name, err)
		}
	}
	return nil
}

// Unblock ends Block. What is not blocked is no error.
func (n *NS) Unblock(a, b netip.Prefix) error {
	for _, rule := range blockRules(a, b) {
		if err := n.handle.RuleDel(rule); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unblock %s from %s in %s: %w", a, b, n.name, err)
		}
	}
	return nil
}

// Blocked reports whether Block holds for two ranges, in either direction.
func (n *NS) Blocked(a, b netip.Prefix) (bool, error) {
	family := netlink.FAMILY_V4
	if a.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	rules, err := n.handle.RuleList(family)
	if err != nil {
		return false, fmt.Errorf("list routing rules in %s: %w", n.name, err)
	}
	from, to := ipNet(a.Masked()).String(), ipNet(b.Masked()).String()
	for _, r := range rules {
		if r.Priority == blockPriority && r.Src != nil && r.Dst != nil && r.Src.String() == from && r.Dst.String() == to {
			return true, nil
		}
	}
	return false, nil
}

func blockRules(a, b netip.Prefix) []*netlink.Rule {
	var out []*netlink.Rule
	for _, way := range [][2]netip.Prefix{{a, b}, {b, a}} {
		r := netlink.NewRule()
		r.Src, r.Dst = ipNet(way[0].Masked()), ipNet(way[1].Masked())
		r.Family, r.Priority, r.Type = netlink.FAMILY_V4, blockPriority, unix.FR_ACT_BLACKHOLE
		if a.Addr().Is6() {
			r.Family = netlink.FAMILY_V6
		}
		out = append(out, r)
	}
	return out
}

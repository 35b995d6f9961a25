package describe

import (
	"context"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// serviceCIDR prints how much of each range is taken, by the IPAddress objects.
func (d *Describer) serviceCIDR(ctx context.Context, p *page, c *networkingv1.ServiceCIDR) error {
	taken, err := list[*networkingv1.IPAddress](ctx, d, p, kind.IPAddress, resource.ListOptions{})
	if err != nil {
		return err
	}
	for _, text := range c.Spec.CIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			p.field("Range", text)
			continue
		}
		n := 0
		for _, ip := range taken {
			if a, err := netip.ParseAddr(ip.Name); err == nil && prefix.Contains(a) {
				n++
			}
		}
		size, band, err := ipam.Capacity(prefix)
		if err != nil {
			return err
		}
		p.field("Range", fmt.Sprintf("%s, %d of %d addresses taken", prefix, n, size))
		if band > 0 {
			p.field("Static band", fmt.Sprintf("%s to %s: choose addresses here, as others are handed out first", offset(prefix, 1), offset(prefix, band)))
		}
	}
	for _, condition := range c.Status.Conditions {
		p.field(condition.Type, fmt.Sprintf("%s %s", condition.Status, condition.Message))
	}
	return nil
}

// offset is the address so far behind the first one of a range.
func offset(p netip.Prefix, n uint64) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

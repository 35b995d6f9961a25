package virtualip

import (
	"fmt"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/addresspool"
)

// newPool of addresses of the ranges.
func newPool(ranges []netip.Prefix) *addresspool.Pool {
	inside := make([]addresspool.Range, 0, len(ranges))
	for _, r := range ranges {
		inside = append(inside, addresspool.Inside(r))
	}
	return addresspool.New(inside...)
}

// CheckRange returns why a range cannot be used; nil: it can.
func CheckRange(p netip.Prefix) error {
	switch host := p.Addr().BitLen() - p.Bits(); {
	case !p.IsValid() || p != p.Masked():
		return fmt.Errorf("%s is not the CIDR of a network", p)
	case host < 4:
		return fmt.Errorf("%s has less than 16 addresses", p)
	case host > 64:
		return fmt.Errorf("%s is too large: ranges of IPv6 are /64 or smaller", p)
	}
	return nil
}

package virtualip

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
)

// ErrFull: no address of the ranges is free.
var ErrFull = errors.New("no free address in the ranges of virtual IPs (--mesh-cidr)")

// pool allocates addresses of the ranges. Where a name's addresses begin is a hash of the
// name, so that a store that is lost and filled again gives most names the addresses that
// clients may have kept. Safe for concurrent use.
type pool struct {
	ranges []netip.Prefix

	mu    sync.Mutex
	owner map[netip.Addr]string
}

func newPool(ranges []netip.Prefix) *pool {
	return &pool{ranges: ranges, owner: map[netip.Addr]string{}}
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

// take notes that an object has an address. It returns false if another one has it, or it
// is in no range.
func (p *pool) take(addr netip.Addr, object string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if owner, taken := p.owner[addr]; taken {
		return owner == object
	}
	for _, r := range p.ranges {
		if r.Contains(addr) {
			p.owner[addr] = object
			return true
		}
	}
	return false
}

// free an address that an object has.
func (p *pool) free(addr netip.Addr, object string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner[addr] == object {
		delete(p.owner, addr)
	}
}

// has reports whether there is a range of a family.
func (p *pool) has(v4 bool) bool {
	for _, r := range p.ranges {
		if r.Addr().Is4() == v4 {
			return true
		}
	}
	return false
}

// allocate an address of a family for an object: the one that it has been given before, if
// nothing else has taken it.
func (p *pool) allocate(v4 bool, object string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := sha256.Sum256([]byte(object))
	start := binary.BigEndian.Uint64(sum[:8])
	for _, r := range p.ranges {
		if r.Addr().Is4() != v4 {
			continue
		}
		// Neither the network's address nor, in IPv4, the one of broadcasts.
		usable := size(r)
		for i := range min(usable, uint64(len(p.owner))+1) {
			addr := at(r, 1+(start%usable+i)%usable)
			if owner, taken := p.owner[addr]; !taken || owner == object {
				p.owner[addr] = object
				return addr, nil
			}
		}
	}
	return netip.Addr{}, ErrFull
}

// size of a range: addresses that are neither the first nor the last one.
func size(r netip.Prefix) uint64 {
	host := r.Addr().BitLen() - r.Bits()
	if host >= 64 {
		return ^uint64(0) - 1
	}
	return 1<<host - 2
}

// at is the address at an offset from the first one of a range.
func at(r netip.Prefix, offset uint64) netip.Addr {
	b := r.Masked().Addr().As16()
	lo, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), offset, 0)
	binary.BigEndian.PutUint64(b[8:], lo)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	a := netip.AddrFrom16(b)
	if r.Addr().Is4() {
		return a.Unmap()
	}
	return a
}

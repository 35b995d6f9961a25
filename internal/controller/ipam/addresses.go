package ipam

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Why an address or a port cannot be had, in the words that Kubernetes uses.
var (
	// ErrFull: every address (or port) is taken.
	ErrFull = errors.New("range is full")
	// ErrAllocated: the address asked for has an owner.
	ErrAllocated = errors.New("provided IP is already allocated")
	// ErrPortAllocated: the port asked for has an owner.
	ErrPortAllocated = errors.New("provided port is already allocated")
)

// NotInRangeError: the address or port asked for is outside of every range.
type NotInRangeError struct {
	// What was asked for: "IP" or "port".
	What string
	// Value that was asked for.
	Value string
	// Ranges that would do, separated by commas.
	Ranges string
}

func (e *NotInRangeError) Error() string {
	if e.What == "port" {
		return "provided port is not in the valid range. The range of valid ports is " + e.Ranges
	}
	return "the provided network does not match the current range: valid IPs are those of " + e.Ranges
}

// Limits of the static band, the part of a range that is handed out last, so
// that people can pick from it (KEP-3070).
const (
	bandMin  = 16
	bandMax  = 256
	bandStep = 16
)

// addressRange is a prefix with its bounds worked out. Offsets are from the
// network address; usable ones are 1 to size.
type addressRange struct {
	prefix netip.Prefix
	base   position
	v4     bool
	size   uint64
	band   uint64
}

// hostBitsMax is the widest range: /64 for IPv6, as Kubernetes demands.
const hostBitsMax = 64

func newAddressRange(p netip.Prefix) (addressRange, error) {
	if !p.IsValid() || p != p.Masked() {
		return addressRange{}, fmt.Errorf("range %s is not the CIDR of a network", p)
	}
	if p.Addr().Is4In6() {
		return addressRange{}, fmt.Errorf("range %s: write IPv4 in dotted form", p)
	}
	r := addressRange{prefix: p, base: positionOf(p.Addr()), v4: p.Addr().Is4()}
	hostBits := p.Addr().BitLen() - p.Bits()
	if hostBits > hostBitsMax {
		return addressRange{}, fmt.Errorf("range %s is too large: IPv6 ranges are /64 or smaller", p)
	}
	all := ^uint64(0) // 2^64-1 stands for 2^64 here; only IPv6 gets there
	r.size = all
	if hostBits < hostBitsMax {
		all = 1 << hostBits
		r.size = all - 1 // without the network address
	}
	if r.v4 {
		r.size = max(r.size, 1) - 1 // and without broadcast
	}
	if all > bandMin {
		r.band = min(max(all/bandStep, bandMin), bandMax)
	}
	return r, nil
}

// Capacity of a range: how many addresses Services can have of it, and how many of them, at its
// start, are handed out last. Errors: those of SetRanges.
func Capacity(p netip.Prefix) (size, staticBand uint64, err error) {
	r, err := newAddressRange(p)
	return r.size, r.band, err
}

func (r *addressRange) contains(p position, v4 bool) bool {
	offset := p.lo - r.base.lo
	return v4 == r.v4 && p.hi == r.base.hi && p.lo >= r.base.lo && offset >= 1 && offset <= r.size
}

func (r *addressRange) inBand(p position) bool {
	return r.contains(p, r.v4) && p.lo-r.base.lo <= r.band
}

// Addresses guesses free cluster addresses. It is safe for concurrent use and
// does no I/O. Marks are facts about the store, brought by the caller from the
// events of IPAddress objects; they are kept for addresses outside of all
// ranges as well, so ranges may come and go at any time.
type Addresses struct {
	mu     sync.Mutex
	ranges []addressRange
	taken4 set
	taken6 set
	// unusable are names of ServiceCIDRs whose ranges are left out.
	unusable []string
	// wholePool: no static band.
	wholePool bool
	random    func(n uint64) uint64
}

// AddressOptions change how Addresses chooses. The zero value is Kubernetes'
// behaviour.
type AddressOptions struct {
	// WholePool makes every range one pool, without static band.
	WholePool bool
	// Random returns a number in [0,n); nil: math/rand/v2.
	Random func(n uint64) uint64
}

// NewAddresses returns an allocator without ranges: everything is ErrFull until
// SetRanges.
func NewAddresses(opts AddressOptions) *Addresses {
	a := &Addresses{wholePool: opts.WholePool, random: opts.Random}
	if a.random == nil {
		a.random = rand.Uint64N
	}
	return a
}

// SetRanges replaces the ranges: the CIDRs of all ServiceCIDRs that are ready
// and not being deleted, the default one first, since the first range decides
// the default family. Ranges may overlap. On error nothing changes.
func (a *Addresses) SetRanges(prefixes []netip.Prefix) error {
	ranges := make([]addressRange, 0, len(prefixes))
	for _, p := range prefixes {
		r, err := newAddressRange(p)
		if err != nil {
			return err
		}
		if a.wholePool {
			r.band = 0
		}
		if !slices.ContainsFunc(ranges, func(have addressRange) bool { return have.prefix == p }) {
			ranges = append(ranges, r)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges = ranges
	return nil
}

// SetUnusable names the ServiceCIDRs whose ranges are not among those of SetRanges, with the
// reason, for those who find no range.
func (a *Addresses) SetUnusable(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unusable = names
}

// NoRangeError: there is no range of a family, and so no address.
type NoRangeError struct {
	Family corev1.IPFamily
	// Unusable ServiceCIDRs, and why.
	Unusable []string
}

func (e *NoRangeError) Error() string {
	text := fmt.Sprintf("no ServiceCIDR with %s addresses is usable", e.Family)
	if len(e.Unusable) > 0 {
		text += " (" + strings.Join(e.Unusable, ", ") + ")"
	}
	return text + "; create one"
}

// Unwrap: an address cannot be had now, as in a range that is full.
func (e *NoRangeError) Unwrap() error { return ErrFull }

// exhausted is why there is no address of a family any more.
func (a *Addresses) exhausted(family corev1.IPFamily) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.ranges {
		if familyOf(a.ranges[i].prefix.Addr()) == family {
			return ErrFull
		}
	}
	return &NoRangeError{Family: family, Unusable: a.unusable}
}

// Families that can be allocated, the default one first.
func (a *Addresses) Families() []corev1.IPFamily {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []corev1.IPFamily
	for _, r := range a.ranges {
		if f := familyOf(r.prefix.Addr()); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// MarkTaken notes that an IPAddress object of this address exists. Idempotent.
//
// Feed marks from one ordered watch. A mark made on one's own, after a commit
// for example, may come after the event of a later delete and then hides the
// address until the next Replace.
func (a *Addresses) MarkTaken(addr netip.Addr) {
	addr = addr.Unmap()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken(addr.Is4()).add(positionOf(addr))
}

// MarkFree notes that no IPAddress object of this address exists. Idempotent.
func (a *Addresses) MarkFree(addr netip.Addr) {
	addr = addr.Unmap()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken(addr.Is4()).remove(positionOf(addr))
}

// Replace sets all marks at once, after a fresh list of the IPAddress objects.
// The sequence is read without a lock held.
func (a *Addresses) Replace(taken iter.Seq[netip.Addr]) {
	var v4, v6 set
	for addr := range taken {
		addr = addr.Unmap()
		if addr.Is4() {
			v4.add(positionOf(addr))
		} else {
			v6.add(positionOf(addr))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken4, a.taken6 = v4, v6
}

// Contains reports whether an address is usable in some range.
func (a *Addresses) Contains(addr netip.Addr) bool {
	addr = addr.Unmap()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.contains(addr)
}

// Check returns why an address asked for cannot be had: *NotInRangeError,
// ErrAllocated, or nil if it looks free.
func (a *Addresses) Check(addr netip.Addr) error {
	addr = addr.Unmap()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.contains(addr) {
		return &NotInRangeError{What: "IP", Value: addr.String(), Ranges: a.describe(addr.Is4())}
	}
	if a.taken(addr.Is4()).has(positionOf(addr)) {
		return ErrAllocated
	}
	return nil
}

// Usage of one range, for status and metrics.
type Usage struct {
	// Range is a CIDR of addresses, or FIRST-LAST of node ports.
	Range string `json:"range"`
	// Size is the number of usable addresses or ports, Taken those that have an owner.
	Size  uint64 `json:"size"`
	Taken uint64 `json:"taken"`
	// StaticBand is the number of them at the start that are handed out last, so that those who
	// choose for themselves find free ones there.
	StaticBand uint64 `json:"staticBand"`
}

// Usage of every range, in their order.
func (a *Addresses) Usage() []Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Usage, 0, len(a.ranges))
	for _, r := range a.ranges {
		taken := 0
		if r.size > 0 {
			taken = a.taken(r.v4).countIn(r.base.hi, r.base.lo+1, r.base.lo+r.size)
		}
		out = append(out, Usage{Range: r.prefix.String(), Size: r.size, Taken: uint64(taken), StaticBand: r.band})
	}
	return out
}

func (a *Addresses) taken(v4 bool) *set {
	if v4 {
		return &a.taken4
	}
	return &a.taken6
}

func (a *Addresses) contains(addr netip.Addr) bool {
	p, v4 := positionOf(addr), addr.Is4()
	return addr.IsValid() && addr.Zone() == "" &&
		slices.ContainsFunc(a.ranges, func(r addressRange) bool { return r.contains(p, v4) })
}

func (a *Addresses) describe(v4 bool) string {
	var out []string
	for _, r := range a.ranges {
		if r.v4 == v4 {
			out = append(out, r.prefix.String())
		}
	}
	return strings.Join(out, ",")
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() || a.Is4In6() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

package ipam

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
)

// DefaultNodePorts is the range of node ports, as in Kubernetes.
var DefaultNodePorts = PortRange{First: 30000, Last: 32767}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Size is the number of ports.
func (r PortRange) Size() int { return int(r.Last) - int(r.First) + 1 }

// Limits of the static band of node ports (KEP-3682).
const (
	portBandMin  = 16
	portBandMax  = 128
	portBandStep = 32
)

// StaticBand is the number of ports at the start that are handed out last.
func (r PortRange) StaticBand() int {
	if r.Size() <= portBandMin {
		return 0
	}
	return min(max(r.Size()/portBandStep, portBandMin), portBandMax)
}

// Ports guesses free node ports, as Addresses does addresses: kept by events,
// safe for concurrent use, no I/O, reserves nothing. A number has one owner,
// whatever the protocol, except that one Service may use it for several.
type Ports struct {
	mu     sync.Mutex
	bounds PortRange
	band   int
	taken  set
	random func(n uint64) uint64
}

// PortOptions change how Ports chooses.
type PortOptions struct {
	// Range of ports; zero: DefaultNodePorts.
	Range PortRange
	// WholePool: no static band.
	WholePool bool
	// Random returns a number in [0,n); nil: math/rand/v2.
	Random func(n uint64) uint64
}

// NewPorts returns an allocator; all ports are free. An empty range is an error.
func NewPorts(opts PortOptions) (*Ports, error) {
	if opts.Range == (PortRange{}) {
		opts.Range = DefaultNodePorts
	}
	if opts.Range.First == 0 || opts.Range.Last < opts.Range.First {
		return nil, fmt.Errorf("port range %s is empty or starts at 0", opts.Range)
	}
	p := &Ports{bounds: opts.Range, band: opts.Range.StaticBand(), random: opts.Random}
	if opts.WholePool {
		p.band = 0
	}
	if p.random == nil {
		p.random = rand.Uint64N
	}
	return p, nil
}

// Range of the ports.
func (p *Ports) Range() PortRange { return p.bounds }

// MarkTaken notes that a port has an owner. Idempotent.
func (p *Ports) MarkTaken(port int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken.add(position{lo: uint64(uint32(port))})
}

// MarkFree notes that a port has no owner. Idempotent.
func (p *Ports) MarkFree(port int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken.remove(position{lo: uint64(uint32(port))})
}

// Replace sets all marks at once, after a fresh list.
func (p *Ports) Replace(taken iter.Seq[int32]) {
	var s set
	for port := range taken {
		s.add(position{lo: uint64(uint32(port))})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = s
}

// Check returns why a port asked for cannot be had: *NotInRangeError,
// ErrPortAllocated, or nil if it looks free.
func (p *Ports) Check(port int32) error {
	if port < int32(p.bounds.First) || port > int32(p.bounds.Last) {
		return &NotInRangeError{What: "port", Value: fmt.Sprint(port), Ranges: p.bounds.String()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken.has(position{lo: uint64(port)}) {
		return ErrPortAllocated
	}
	return nil
}

// Usage of the range.
func (p *Ports) Usage() Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.taken.countIn(0, uint64(p.bounds.First), uint64(p.bounds.Last))
	return Usage{Range: p.bounds.String(), Size: uint64(p.bounds.Size()), Taken: uint64(taken), StaticBand: uint64(p.band)}
}

// PortCursor walks over the ports that look free. Not safe for concurrent use.
type PortCursor struct {
	from *Ports
	legs []leg
}

// Cursor starts a walk: the dynamic part from a random start round to it, then
// the static band.
func (p *Ports) Cursor() *PortCursor {
	c := &PortCursor{from: p}
	c.addLegs(uint64(p.bounds.First)+uint64(p.band), uint64(p.bounds.Last))
	if p.band > 0 {
		c.addLegs(uint64(p.bounds.First), uint64(p.bounds.First)+uint64(p.band)-1)
	}
	return c
}

func (c *PortCursor) addLegs(first, last uint64) {
	start := first + c.from.random(last-first+1)
	c.legs = append(c.legs, leg{from: start, to: last})
	if start > first {
		c.legs = append(c.legs, leg{from: first, to: start - 1})
	}
}

// Next returns the next port that looks free; ok=false: none is left.
func (c *PortCursor) Next() (port int32, ok bool) {
	c.from.mu.Lock()
	defer c.from.mu.Unlock()
	for len(c.legs) > 0 {
		l := &c.legs[0]
		n, found := c.from.taken.nextFree(0, l.from, l.to)
		if !found {
			c.legs = c.legs[1:]
			continue
		}
		l.from = n + 1
		return int32(n), true
	}
	return 0, false
}

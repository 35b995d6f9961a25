package dns

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// The common question is small and comes again: one name, class IN, with or
// without a bare OPT record. Its answer is kept as a packet, for as long as the
// local state stays as it is, and is given again with the client's own bytes in
// the place of the question: the same length, so that everything that points
// there stays right, and the client's own spelling of the name.

// packedCache keeps packets by question.
type packedCache struct {
	mu         sync.RWMutex
	generation uint64
	packets    map[string]packet
}

type packet struct {
	bytes []byte
	rcode int
}

// maxPacked bounds the cache: names that do not exist can be asked for without
// end.
const maxPacked = 1 << 14

// Flags of a header (RFC 1035, 4.1.1) in bytes 2 and 3 that an answer repeats.
const (
	flagRD = 0x01 // byte 2
	flagCD = 0x10 // byte 3
)

// optLength is that of an OPT record without options (RFC 6891, 6.1.2).
const optLength = 11

// asked is a question that the fast way understands.
type asked struct {
	end int // of the question
	// key is the name in lower case as it travels, then type, then whether there
	// is an OPT record and its DO bit.
	key []byte
}

// fast answers a packet from the cache or from the local state into out, or
// returns nil if that takes the long way.
func (s *Server) fast(in, out []byte, from netip.Addr) []byte {
	var scratch [264]byte
	q, ok := parse(in, scratch[:0])
	if !ok {
		return nil
	}
	// Answers that are kept do not depend on who asks, but on what the client sees.
	viewer := ""
	if see := s.config.Viewer; see != nil {
		if viewer = see(from.Unmap()); viewer != "" {
			q.key = append(q.key, viewer...)
		}
	}
	generation := s.generation()
	p, ok := s.packed.get(generation, q.key)
	if !ok {
		if p, ok = s.build(in, q, viewer); !ok {
			return nil
		}
		s.packed.put(generation, q.key, p)
	}
	out = append(out[:0], p.bytes...)
	copy(out, in[:2])
	out[2] = out[2]&^flagRD | in[2]&flagRD
	out[3] = out[3]&^flagCD | in[3]&flagCD
	copy(out[12:q.end], in[12:q.end])
	s.metrics.count(overUDP, sourceCluster, p.rcode)
	return out
}

// parse reads a common question.
func parse(in, key []byte) (q asked, ok bool) {
	// One question, no answers, no authority, at most one further record.
	if len(in) < 12+5 || in[2]&^flagRD != 0 || in[3]&^flagCD&^0x20 != 0 || in[4] != 0 || in[5] != 1 ||
		in[6]|in[7]|in[8]|in[9]|in[10] != 0 || in[11] > 1 {
		return q, false
	}
	at := 12
	for {
		n := int(in[at])
		// After every label there are at least a type and a class.
		if n > 63 || at+1+n+4 > len(in) || at+n > 12+254 {
			return q, false
		}
		key = append(key, byte(n))
		for _, c := range in[at+1 : at+1+n] {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			key = append(key, c)
		}
		at += 1 + n
		if n == 0 {
			break
		}
	}
	if binary.BigEndian.Uint16(in[at+2:]) != dns.ClassINET {
		return q, false
	}
	key = append(key, in[at], in[at+1])
	q.end = at + 4
	opt := in[q.end:]
	switch {
	case in[11] == 0 && len(opt) == 0:
		key = append(key, 0)
	case in[11] == 1 && len(opt) == optLength && opt[0] == 0 && binary.BigEndian.Uint16(opt[1:]) == dns.TypeOPT &&
		opt[6] == 0 && binary.BigEndian.Uint16(opt[9:]) == 0: // version 0, no options
		key = append(key, 1|opt[7]&0x80)
	default:
		return q, false
	}
	q.key = key
	return q, true
}

// build makes the packet for a question of ours, if it is always the same and
// fits every client.
func (s *Server) build(in []byte, q asked, viewer string) (p packet, ok bool) {
	var m dns.Msg
	if m.Unpack(in) != nil || len(m.Question) != 1 {
		return p, false
	}
	r, _ := s.reply(&m, minUDP)
	if r.Rcode != dns.RcodeSuccess {
		return p, false
	}
	// What depends on who asks varies, so no packet of it is kept.
	a, ours := s.local(m.Question[0], strings.ToLower(m.Question[0].Name), caller{viewer: viewer})
	if !ours || !s.config.Zone.Ready() || a.alias != "" || a.varies {
		return p, false
	}
	s.fill(r, a)
	b, err := r.Pack()
	if err != nil || len(b) > minUDP || len(b) < q.end {
		return p, false
	}
	return packet{bytes: b, rcode: r.Rcode}, true
}

func (c *packedCache) get(generation uint64, key []byte) (packet, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.generation != generation {
		return packet{}, false
	}
	p, ok := c.packets[string(key)]
	return p, ok
}

// put keeps a packet that was built when the state was of a generation or newer.
func (c *packedCache) put(generation uint64, key []byte, p packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case generation < c.generation:
		return
	case generation > c.generation || c.packets == nil || len(c.packets) >= maxPacked:
		c.generation, c.packets = generation, make(map[string]packet)
	}
	c.packets[string(key)] = p
}

package relay

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"
)

// gso is a packet of TCP with so many bytes of data in segments of size, as the kernel gives it.
func gso(v6 bool, data, size int) []byte {
	head, length, kind := 20, 0, byte(gsoTCP4)
	if v6 {
		head, kind = 40, gsoTCP6
	}
	raw := make([]byte, headerSize+head+32+data)
	raw[0], raw[1] = flagNeedsCsum, kind
	binary.NativeEndian.PutUint16(raw[2:], uint16(head+32))
	binary.NativeEndian.PutUint16(raw[4:], uint16(size))
	binary.NativeEndian.PutUint16(raw[6:], uint16(head))
	binary.NativeEndian.PutUint16(raw[8:], 16)
	ip, tcp := raw[headerSize:], raw[headerSize+head:]
	length = len(tcp)
	if v6 {
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(length))
		ip[6] = 6
		for i := range 32 {
			ip[8+i] = byte(i * 7)
		}
	} else {
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[4:], 77)
		ip[8], ip[9] = 64, 6
		copy(ip[12:], []byte{10, 200, 1, 11, 10, 200, 2, 11})
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip[:20])))
	}
	binary.BigEndian.PutUint32(tcp[4:], 0xfffffff0) // wraps within the packet
	tcp[12] = 32 / 4 << 4
	tcp[13] = tcpFIN | tcpPSH | tcpCWR | 0x10
	binary.BigEndian.PutUint16(tcp[16:], pseudo(ip, length))
	for i := range data {
		tcp[32+i] = byte(i ^ i>>8)
	}
	return raw
}

// pseudo header's sum, as the kernel leaves it in a checksum that is to be completed.
func pseudo(ip []byte, length int) uint16 {
	addresses := ip[12:20]
	if ip[0]>>4 == 6 {
		addresses = ip[8:40]
	}
	return fold(sum(addresses) + 6 + uint32(length))
}

// TestSlice: what is left of a packet has the headers that the kernel would give it.
func TestSlice(t *testing.T) {
	const size, data = 1000, 4321
	for _, v6 := range []bool{false, true} {
		raw := gso(v6, data, size)
		p := parse(raw)
		if p.segments() != 5 {
			t.Fatalf("%d segments", p.segments())
		}
		head := map[bool]int{false: 20, true: 40}[v6]
		for first := range 5 {
			for last := first + 1; last <= 5; last++ {
				got := slices.Clone(p.slice(nil, first, last))
				ip, tcp := got[headerSize:], got[headerSize+head:]
				if want := raw[p.payload+first*size : min(p.payload+last*size, len(raw))]; !bytes.Equal(tcp[32:], want) {
					t.Fatalf("%d to %d: other data", first, last)
				}
				if seq := binary.BigEndian.Uint32(tcp[4:]); seq != uint32(0xfffffff0+uint64(first*size)) {
					t.Errorf("%d to %d: sequence number %#x", first, last, seq)
				}
				if (tcp[13]&tcpFIN != 0) != (last == 5) || (tcp[13]&tcpPSH != 0) != (last == 5) || (tcp[13]&tcpCWR != 0) != (first == 0) {
					t.Errorf("%d to %d: flags %#x", first, last, tcp[13])
				}
				if sum := binary.BigEndian.Uint16(tcp[16:]); sum != pseudo(ip, len(tcp)) {
					t.Errorf("%d to %d: checksum %#x, want %#x", first, last, sum, pseudo(ip, len(tcp)))
				}
				if single := last-first == 1; (got[1] == gsoNone) != single || (binary.NativeEndian.Uint16(got[4:]) == 0) != single {
					t.Errorf("%d to %d: header %x", first, last, got[:headerSize])
				}
				if v6 {
					if n := binary.BigEndian.Uint16(ip[4:]); int(n) != len(tcp) {
						t.Errorf("%d to %d: length %d", first, last, n)
					}
					continue
				}
				if n, id := binary.BigEndian.Uint16(ip[2:]), binary.BigEndian.Uint16(ip[4:]); int(n) != len(ip) || int(id) != 77+first {
					t.Errorf("%d to %d: length %d, identification %d", first, last, n, id)
				}
				if fold(sum(ip[:20])) != 0xffff {
					t.Errorf("%d to %d: IPv4 checksum is wrong", first, last)
				}
			}
		}
	}
}

// FuzzParse: whatever is read, no part of it is out of its bounds.
func FuzzParse(f *testing.F) {
	f.Add(gso(false, 3000, 1400), uint8(1))
	f.Add(gso(true, 3000, 1400), uint8(0))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x45}, uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, lost uint8) {
		if len(raw) > maxFuzz {
			return
		}
		p := parse(raw)
		n := p.segments()
		if n < 1 {
			t.Fatalf("%d segments", n)
		}
		first := int(lost) % n
		for _, part := range [][2]int{{0, n}, {first, first + 1}, {0, first + 1}, {first, n}} {
			if got := p.slice(nil, part[0], part[1]); len(got) > len(raw) {
				t.Fatalf("%d bytes of %d", len(got), len(raw))
			}
		}
	})
}

const maxFuzz = 1 << 16

// TestDice: the share that is lost is the one that was asked for, and nothing is lost twice.
func TestDice(t *testing.T) {
	for _, loss := range []float64{0, 0.001, 0.05, 0.5, 1} {
		d := newDice(loss, 1)
		const packets, segments = 40_000, 25
		kept := 0
		for range packets {
			at := 0
			for first, last := range d.runs(segments) {
				if first < at || last <= first || last > segments {
					t.Fatalf("loss %g: run %d to %d after %d", loss, first, last, at)
				}
				at = last
				kept += last - first
			}
		}
		got := 1 - float64(kept)/(packets*segments)
		// Five standard deviations of a binomial distribution.
		if limit := 5 * math.Sqrt(loss*(1-loss)/(packets*segments)); math.Abs(got-loss) > limit {
			t.Errorf("lost %g, want %g ± %g", got, loss, limit)
		}
	}
}

// TestQueue: packets come out as they went in, in order, also when the ring wraps; what has no
// room is refused.
func TestQueue(t *testing.T) {
	q := newQueue(1000)
	in, out, refused := 0, 0, 0
	put := func() bool {
		raw := bytes.Repeat([]byte{byte(in)}, 20+in*37%211)
		if !q.put(raw, time.Duration(in)) {
			return false
		}
		in++
		return true
	}
	take := func() {
		raw, due, ok := q.next()
		if !ok || due != time.Duration(out) || len(raw) != 20+out*37%211 || raw[0] != byte(out) || raw[len(raw)-1] != byte(out) {
			t.Fatalf("packet %d: %d bytes of %d, due at %d, %v", out, len(raw), raw[0], due, ok)
		}
		q.done(raw)
		out++
	}
	for round := range 500 {
		for range 1 + round%9 {
			if !put() {
				refused++
			}
		}
		for range 1 + round*7%8 {
			if out < in {
				take()
			}
		}
	}
	for out < in {
		take()
	}
	if refused == 0 || q.used != 0 {
		t.Errorf("%d refused, %d bytes in use", refused, q.used)
	}
	q.close()
	if _, _, ok := q.next(); ok {
		t.Error("a queue that is closed has a packet")
	}
}

func TestCheck(t *testing.T) {
	for _, bad := range []Config{
		{}, {Device: "sixteen-bytes-xx"}, {Device: "d", Delay: -1}, {Device: "d", Delay: MaxDelay + 1},
		{Device: "d", Loss: -0.1}, {Device: "d", Loss: 1.1}, {Device: "d", Loss: math.NaN()},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := (&Config{Device: "d", Delay: MaxDelay, Loss: 1}).Check(); err != nil {
		t.Error(err)
	}
}

package ebpf

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSpans: nothing is handed out twice, nothing is lost, and neighbours grow together.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		s := newSpans(size)
		used := map[uint32]bool{}
		var held []span
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				for n := range held[i].n {
					delete(used, held[i].base+n)
				}
				s.give(held[i].base, held[i].n)
				held = append(held[:i], held[i+1:]...)
				continue
			}
			n := rapid.Uint32Range(1, 9).Draw(t, "n")
			base, ok := s.take(n)
			if !ok {
				continue
			}
			for i := range n {
				if used[base+i] || base+i >= size {
					t.Fatalf("%d is handed out twice, or beyond %d", base+i, size)
				}
				used[base+i] = true
			}
			held = append(held, span{base, n})
		}
		if int(s.left) != size-len(used) {
			t.Fatalf("%d are left, want %d", s.left, size-len(used))
		}
		for _, h := range held {
			s.give(h.base, h.n)
		}
		if len(s.free) != 1 || s.free[0] != (span{0, size}) {
			t.Fatalf("all is given back: %v", s.free)
		}
	})
}

func TestRoom(t *testing.T) {
	for n, want := range map[int]uint32{0: 16, 8: 16, 9: 32, 16: 32, 17: 64, 10000: 32768, 8192: 16384} {
		if got := room(n, 16); got != want {
			t.Errorf("room for %d: %d, want %d", n, got, want)
		}
	}
}

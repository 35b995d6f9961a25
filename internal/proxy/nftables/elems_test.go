//go:build linux

package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestSetTracksDifferences: after any history a set has for every element what is
// wanted and what the kernel has, as two plain maps do.
func TestSetTracksDifferences(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := &set{}
		want, have := map[string]string{}, map[string]string{}
		for step := range 60 {
			key, value := fmt.Sprint("k", r.IntN(6)), fmt.Sprint("v", r.IntN(3))
			did := ""
			switch r.IntN(12) {
			case 0, 1, 2, 3:
				s.put(key, value, "")
				want[key], did = pack(value, ""), "put"
			case 4, 5:
				s.remove(key)
				delete(want, key)
				did = "remove"
			case 6, 7, 8:
				s.haveElem(key, pack(value, ""))
				have[key], did = pack(value, ""), "have"
			case 9:
				s.written()
				have, did = maps.Clone(want), "written"
			case 10:
				s.unknown()
				have, did = map[string]string{}, "unknown"
			case 11:
				s.trim()
				did = "trim"
			}
			seen, keys := 0, map[string]bool{}
			s.each(func(key, w, h string) {
				seen, keys[key] = seen+1, true
				if w != want[key] || h != have[key] {
					t.Errorf("seed %d, step %d (%s): each: %s is wanted as %q and had as %q, not %q and %q", seed, step, did, key, w, h, want[key], have[key])
				}
			})
			all := maps.Clone(want)
			maps.Copy(all, have)
			if seen != len(all) || len(keys) != len(all) || s.len() != len(all) {
				t.Errorf("seed %d, step %d (%s): %d elements, %d keys, length %d, want %d", seed, step, did, seen, len(keys), s.len(), len(all))
			}
			for key := range all {
				if w, h := s.elem(key); w != want[key] || h != have[key] || s.inKernel(key) != (have[key] != "") {
					t.Errorf("seed %d, step %d (%s): %s is wanted as %q and had as %q, not %q and %q", seed, step, did, key, w, h, want[key], have[key])
				}
			}
			if s.different() == maps.Equal(want, have) {
				t.Errorf("seed %d, step %d (%s): different: %v; want %v, have %v", seed, step, did, s.different(), want, have)
			}
			if t.Failed() {
				return
			}
		}
	}
}

// TestReadAheadIsNotTrustedAfterAChange: a restarted mode reads the kernel before
// its first Apply; changes in between are seen all the same.
func TestReadAheadIsNotTrustedAfterAChange(t *testing.T) {
	l := newLab(t)
	m := l.mode(Options{})
	l.apply(m, full(false)...)
	l.stop(m)
	k := &counting{}
	m = l.mode(Options{wrap: func(real kernel) kernel { k.kernel = real; return k }})
	prefetched := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.prefetched
	}
	l.eventually("the kernel's state is prefetched", prefetched)
	l.node.Run("nft", "delete element ip proxima vip { 10.96.0.1 . tcp . 80 }; add element ip proxima clusterips { 192.0.2.77 }")
	l.eventually("what was prefetched is discarded", func() bool { return !prefetched() })
	l.apply(m, full(false)...)
	if k.commits != 1 {
		t.Errorf("%d transactions for a difference, want 1", k.commits)
	}
	l.whole(m)
}

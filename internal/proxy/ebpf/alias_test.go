package ebpf

import (
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func targets(weights ...uint32) []proxy.Target {
	out := make([]proxy.Target, len(weights))
	for i, w := range weights {
		out[i] = proxy.Target{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080), Weight: w}
	}
	return out
}

// shares that a table gives, exactly: each slot is as likely as any other.
func shares(table []slot) []float64 {
	out := make([]float64, len(table))
	each := 1 / float64(len(table))
	for _, s := range table {
		first := 1.0
		if s.both {
			first = float64(s.cut) / coin
			out[s.b] += each * (1 - first)
		}
		out[s.a] += each * first
	}
	return out
}

// TestShares: every endpoint has the share of its weight, up to the coin: half of 1/65536 in each slot that
// it is in.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.SampledFrom([]uint32{1, 3, 1000, math.MaxUint32}).Draw(t, "heaviest")
		weights := rapid.SliceOfN(rapid.Uint32Range(0, most), 1, 200).Draw(t, "weights")
		list := targets(weights...)
		table := aliasTable(list)
		if len(table) != len(list) {
			t.Fatalf("%d slots for %d endpoints", len(table), len(list))
		}
		sum := 0.0
		for _, e := range list {
			sum += float64(weight(e))
		}
		in := make([]int, len(list))
		for _, s := range table {
			in[s.a]++
			if s.both {
				in[s.b]++
			}
		}
		for i, got := range shares(table) {
			want := float64(weight(list[i])) / sum
			if off := math.Abs(got - want); off > (float64(in[i])/2/coin/float64(len(table)))+1e-9 {
				t.Fatalf("endpoint %d of %v: share %.6f, want %.6f, in %d slots", i, weights, got, want, in[i])
			}
		}
	})
}

// TestEqualWeights: no coin is needed.
func TestEqualWeights(t *testing.T) {
	for i, s := range aliasTable(targets(7, 7, 7)) {
		if s != (slot{a: uint32(i)}) {
			t.Errorf("slot %d: %+v", i, s)
		}
	}
}

// TestWorstError is what DESIGN.md says of shares.
func TestWorstError(t *testing.T) {
	worst := func(n int) float64 {
		out := 0.0
		weights := make([]uint32, n)
		for round := range 100 {
			sum := 0.0
			for i := range weights {
				weights[i] = 1 + uint32((i*7919+round*104729)%1000)
				sum += float64(weights[i])
			}
			for i, got := range shares(aliasTable(targets(weights...))) {
				want := float64(weights[i]) / sum
				out = max(out, math.Abs(got-want)/want)
			}
		}
		return out
	}
	for n, bound := range map[int]float64{2: 0.008, 1000: 0.05} {
		if got := worst(n); got > bound {
			t.Errorf("%d endpoints: a share is off by %.3f %%", n, got*100)
		} else {
			t.Logf("%d endpoints: a share is off by %.3f %% at most", n, got*100)
		}
	}
}

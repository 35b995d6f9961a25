package tunnel

import (
	"math"
	"net/netip"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func at(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)
}

// TestOrderIsByWeight: 30,000 draws, 2:1; those at one address count once.
func TestOrderIsByWeight(t *testing.T) {
	peers := []Peer{
		{Name: "two", Address: at(1), Weight: 2}, {Name: "one", Address: at(2), Weight: 1},
		{Name: "again", Address: at(1), Weight: 2}, {Name: "spare", Address: at(3)},
	}
	first := map[string]int{}
	for range 30_000 {
		all := Order(peers)
		if len(all) != 3 || all[2].Name != "spare" {
			t.Fatalf("order %v: want three, the one without weight at the end", all)
		}
		first[all[0].Name]++
	}
	if share := float64(first["two"]) / 30_000; math.Abs(share-2.0/3) > 0.02 {
		t.Errorf("%v: the share of two is %.3f, want 2/3", first, share)
	}
}

func TestOrderPutsSuspectsLast(t *testing.T) {
	peers := []Peer{{Name: "a", Address: at(1), Weight: 1000}, {Name: "b", Address: at(2), Weight: 1}}
	for range 100 {
		all := order(peers, func(a netip.AddrPort) bool { return a == at(1) })
		if len(all) != 2 || all[0].Name != "b" || all[1].Name != "a" {
			t.Fatalf("order %v", all)
		}
	}
}

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
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

func TestLastFailure(t *testing.T) {
	c := NewClient(Config{Site: "east"})
	defer c.Close()
	for i := range maxFailures + 10 {
		for range 2 {
			if _, err := c.Open(context.Background(), Request{SNI: fmt.Sprint(i)}, nil); err == nil {
				t.Fatal("opened")
			}
		}
	}
	if f, ok := c.LastFailure(fmt.Sprint(maxFailures)); !ok || f.Reason != frame.NoRoute || f.Count != 2 || f.Err == nil {
		t.Errorf("%+v, %v", f, ok)
	}
	if _, ok := c.LastFailure("0"); ok || len(c.failures.all) != maxFailures {
		t.Errorf("%d failures are kept, want %d", len(c.failures.all), maxFailures)
	}
	// A connection without a route is remembered, too, and the newest comes first.
	c.failures.unrouted(&OpenError{SNI: "web", Reason: frame.Unauthorized, Err: errors.New("no certificate")})
	c.failures.unrouted(errors.New("of the kernel"))
	if all := c.Failures(); len(all) != maxFailures || all[0].SNI != "web" || all[0].Reason != frame.Unauthorized {
		t.Errorf("%d failures, the newest %+v", len(all), all[0])
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

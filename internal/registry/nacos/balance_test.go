package nacos

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// TestSurplus: half of what is beyond the share goes to those below it.
func TestSurplus(t *testing.T) {
	for _, c := range []struct {
		own    int
		others []int
		give   []int
	}{
		{0, []int{0, 0}, []int{0, 0}},
		{1, []int{0, 0}, []int{0, 0}},
		{2, []int{0}, []int{1}},
		{300, []int{0, 0}, []int{100, 0}},
		{200, []int{100, 0}, []int{0, 50}},
		{105, []int{105, 90}, []int{0, 0}},
		{111, []int{99, 90}, []int{1, 5}},
		{50, []int{100, 100}, []int{0, 0}},
	} {
		var others []registry.Server
		for _, n := range c.others {
			others = append(others, registry.Server{Clients: n})
		}
		sum := 0
		for _, n := range c.give {
			sum += n
		}
		if give, total := surplus(c.own, others); !slices.Equal(give, c.give) || total != sum {
			t.Errorf("%d beside %v: %v, in all %d, want %v", c.own, c.others, give, total, c.give)
		}
	}
}

// fleet is servers, with clients that do what they are asked to.
type fleet struct {
	servers []*Server
	// alone are addresses whose clients come back to where they were.
	alone map[netip.Addr]bool
	moves int
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{alone: map[netip.Addr]bool{}}
	for range n {
		core := &registry.Core{Meters: registry.NewMeters(nil), Logger: slog.New(slog.DiscardHandler)}
		f.servers = append(f.servers, New(core))
	}
	return f
}

func (f *fleet) connect(to int, from netip.Addr) {
	s := f.servers[to]
	c := &conn{server: s, from: from, began: time.Now(), setUp: true, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.came(from)
}

// round of all servers, after which clients have moved.
func (f *fleet) round() {
	time.Sleep(balanceEvery)
	count := f.count()
	for i, s := range f.servers {
		var others []registry.Server
		for j := range f.servers {
			if j != i {
				others = append(others, registry.Server{Host: fmt.Sprint(j), Clients: count[j]})
			}
		}
		s.balance(others, time.Now())
	}
	for i, s := range f.servers {
		for c := range s.conns {
			if _, _, move := c.take(); move != nil {
				delete(s.conns, c)
				to := i
				if !f.alone[c.from] {
					_, _ = fmt.Sscan(move.ServerIP, &to)
				}
				f.connect(to, c.from)
				f.moves++
			}
		}
	}
}

func (f *fleet) count() (out []int) {
	for _, s := range f.servers {
		out = append(out, s.Connections())
	}
	return out
}

// TestBalance: within a minute servers have the same number of clients, give or take 20 percent, after one was
// killed whose clients all went to the next, and after one came that had none.
func TestBalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		at := netip.MustParseAddr("10.0.0.1")
		for range 200 {
			f.connect(0, at)
			f.connect(1, at)
			at = at.Next()
		}
		even := func(when string) {
			t.Helper()
			for range time.Minute / balanceEvery {
				f.round()
			}
			count := f.count()
			if low, high := slices.Min(count), slices.Max(count); high*10 > low*12 {
				t.Errorf("%s: %v", when, count)
			}
		}
		even("one comes back")
		for c := range f.servers[2].conns {
			f.connect(1, c.from)
		}
		f.servers = f.servers[:2]
		even("one was killed")
		before := f.moves
		even("nothing happens")
		if f.moves != before {
			t.Errorf("%d moves while all is even", f.moves-before)
		}
	})
}

// TestBalanceOfThoseWhoStay: clients that come back to where they were are left alone.
func TestBalanceOfThoseWhoStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2)
		at := netip.MustParseAddr("10.0.0.1")
		f.alone[at] = true
		for range 20 {
			f.connect(0, at)
		}
		for range 20 {
			f.round()
		}
		if f.moves > 10 || f.count()[1] != 0 {
			t.Errorf("%d moves, %v", f.moves, f.count())
		}
		time.Sleep(settled)
		before := f.moves
		f.connect(0, at.Next()) // of another address
		time.Sleep(settled)
		f.round()
		if f.count()[1] != 1 || f.moves != before+1 {
			t.Errorf("%d moves of another address, %v", f.moves-before, f.count())
		}
		time.Sleep(balanceAgain)
		before = f.moves
		f.round()
		if f.moves == before {
			t.Error("they are not asked again after an hour")
		}
	})
}

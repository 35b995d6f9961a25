package app

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeTable notes what is ended, and when.
type fakeTable struct {
	began time.Time

	mu    sync.Mutex
	ended []map[netip.AddrPort]bool
	at    []time.Duration
}

func (f *fakeTable) EndUnanswered(at map[netip.AddrPort]bool) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.at = append(f.ended, at), append(f.at, time.Since(f.began))
	return len(at), nil
}

func (f *fakeTable) Close() error { return nil }

func (f *fakeTable) all() ([]map[netip.AddrPort]bool, []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ended), slices.Clone(f.at)
}

// TestUnanswered: an endpoint that is out of use has a moment to answer; what leaves meanwhile
// costs one read of the table together.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{began: time.Now()}
		u := &unanswered{
			log: slog.New(slog.DiscardHandler), some: make(chan struct{}, 1), left: map[netip.AddrPort]bool{},
			open: func() (unansweredTable, error) { return table, nil },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.run(ctx) }()
		a, b, c := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")
		u.note([]netip.AddrPort{a})
		time.Sleep(answerWithin / 2)
		u.note([]netip.AddrPort{b})
		time.Sleep(answerWithin)
		synctest.Wait()
		if ended, at := table.all(); len(ended) == 0 || len(ended[0]) != 2 || !ended[0][a] || !ended[0][b] || at[0] != answerWithin {
			t.Fatalf("%v at %v", ended, at)
		}
		time.Sleep(time.Minute)
		u.note([]netip.AddrPort{c})
		time.Sleep(2 * answerWithin)
		synctest.Wait()
		if ended, at := table.all(); len(ended[len(ended)-1]) != 1 || !ended[len(ended)-1][c] {
			t.Fatalf("%v at %v", ended, at)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

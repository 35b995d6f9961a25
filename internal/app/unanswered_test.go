package app

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// fakeTable notes what is ended, and when.
type fakeTable struct {
	t     *testing.T
	began time.Time
	ended []map[netip.AddrPort]bool
	at    []time.Duration
}

func (f *fakeTable) EndUnanswered(at map[netip.AddrPort]bool) (int, error) {
	f.ended, f.at = append(f.ended, at), append(f.at, time.Since(f.began))
	return len(at), nil
}

func (f *fakeTable) Close() error { return nil }

// TestUnanswered: an endpoint that is out of use has a moment to answer; what leaves meanwhile
// costs one read of the table together.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &fakeTable{t: t, began: time.Now()}
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
		if len(table.ended) == 0 || len(table.ended[0]) != 2 || !table.ended[0][a] || !table.ended[0][b] || table.at[0] != answerWithin {
			t.Fatalf("%v at %v", table.ended, table.at)
		}
		time.Sleep(time.Minute)
		u.note([]netip.AddrPort{c})
		time.Sleep(2 * answerWithin)
		synctest.Wait()
		if last := table.ended[len(table.ended)-1]; len(last) != 1 || !last[c] {
			t.Fatalf("%v at %v", table.ended, table.at)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

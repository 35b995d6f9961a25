package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stalling is a store that one instance reaches slowly, or not at all.
type stalling struct {
	store.Store
	mu    sync.Mutex
	stall time.Duration
	fail  error
}

func (s *stalling) set(stall time.Duration, fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall, s.fail = stall, fail
}

// Commit implements store.Store. Like a database's, it does not return when ctx ends.
func (s *stalling) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	s.mu.Lock()
	stall, fail := s.stall, s.fail
	s.mu.Unlock()
	time.Sleep(stall)
	if fail != nil {
		return 0, fail
	}
	return s.Store.Commit(ctx, txn)
}

// event of an instance's terms.
type event struct {
	who  string
	what string
	at   time.Time
}

type log struct {
	mu     sync.Mutex
	events []event
}

func (l *log) add(who, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event{who, what, time.Now()})
}

func (l *log) take() (out []event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out, l.events = l.events, nil
	return out
}

func (l *log) only(t *testing.T, what string) event {
	t.Helper()
	got := l.take()
	if len(got) != 1 {
		t.Fatalf("%s: %v", what, got)
	}
	return got[0]
}

// join makes an instance take part; leave blocks until it has ended.
func join(t *testing.T, s store.Store, name string, l *log, lead func(context.Context) error) (e *Election, leave func()) {
	t.Helper()
	e = NewElection(ElectionConfig{Store: s, Name: name, Run: name})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(term context.Context) error {
			n, _ := InTerm(term)
			l.add(name, fmt.Sprint("+", n))
			defer l.add(name, fmt.Sprint("-", n))
			return lead(term)
		})
	}()
	return e, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func untilEnd(term context.Context) error { <-term.Done(); return nil }

// TestHandover: a leader that stops is replaced at once.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		var l log
		_, leaveA := join(t, s, "a", &l, untilEnd)
		synctest.Wait()
		if e := l.only(t, "the first"); e.who != "a" || e.what != "+1" {
			t.Errorf("%+v", e)
		}
		b, leaveB := join(t, s, "b", &l, untilEnd)
		time.Sleep(time.Hour)
		if got := l.take(); len(got) != 0 {
			t.Errorf("a leader that renews its lease lost it: %v", got)
		}
		if s := b.Status(); s.Leads || s.Vacant || s.Term.Leader != "a" {
			t.Errorf("status %+v", s)
		}
		began := time.Now()
		leaveA()
		synctest.Wait()
		got := l.take()
		if len(got) != 2 || got[0].what != "-1" || got[1].who != "b" || got[1].what != "+2" || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
		leaveB()
	})
}

// TestOutOfReach: a leader that does not reach the store stops before another one leads,
// which is 5 s after its last renewal.
func TestOutOfReach(t *testing.T) {
	for name, failing := range map[string]struct {
		stall time.Duration
		fail  error
	}{
		"commits fail": {0, errors.New("no")},
		"commits hang": {time.Minute, errors.New("no")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Options{})
				defer s.Close()
				mine := &stalling{Store: s}
				var l log
				_, leaveA := join(t, mine, "a", &l, untilEnd)
				synctest.Wait()
				l.take()
				_, leaveB := join(t, s, "b", &l, untilEnd)
				time.Sleep(10*time.Second + time.Millisecond)
				cut := time.Now() // the last renewal was 1 ms ago
				mine.set(failing.stall, failing.fail)
				time.Sleep(7 * time.Second)
				synctest.Wait()
				got := l.take()
				if len(got) != 2 || got[0].who != "a" || got[0].what != "-1" || got[1].who != "b" || got[1].what != "+2" {
					t.Fatalf("%v", got)
				}
				if after := got[0].at.Sub(cut); after > 4*time.Second {
					t.Errorf("a stopped after %v", after)
				}
				if after := got[1].at.Sub(cut); after < 4*time.Second || after > 5*time.Second {
					t.Errorf("b leads after %v", after)
				}
				mine.set(0, nil)
				time.Sleep(2 * time.Minute)
				if got := l.take(); len(got) != 0 {
					t.Errorf("the store is back, and b does not lead any more: %v", got)
				}
				leaveA()
				leaveB()
			})
		})
	}
}

// TestPausedLeader: a leader that did not run while another one took over writes nothing,
// and stops as soon as it learns of it.
func TestPausedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		guarded := Fenced(s)
		mine := &stalling{Store: s}
		var l log
		var refused error
		resume := make(chan struct{})
		a, leaveA := join(t, mine, "a", &l, func(term context.Context) error {
			<-resume
			_, refused = guarded.Commit(context.WithoutCancel(term), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/x", Value: []byte("late")}}})
			return untilEnd(term)
		})
		synctest.Wait()
		mine.set(0, errors.New("paused"))
		_, leaveB := join(t, s, "b", &l, untilEnd)
		time.Sleep(6 * time.Second)
		if got := l.take(); len(got) != 2 || got[1].what != "+2" {
			t.Fatalf("%v", got)
		}
		mine.set(0, nil)
		close(resume)
		synctest.Wait()
		var fenced *FencedError
		if !errors.As(refused, &fenced) || fenced.Term != 1 {
			t.Errorf("the late write: %v", refused)
		}
		if _, ok, _, _ := s.Get(t.Context(), "/x", 0); ok {
			t.Error("the late write was committed")
		}
		if st := a.Status(); st.Leads || st.Fenced != 1 || st.Term.Leader != "b" {
			t.Errorf("status %+v", st)
		}
		leaveA()
		leaveB()
	})
}

// TestRefusedWriteEndsTheTerm: a leader learns by a refused write that it was deposed, before
// its next renewal.
func TestRefusedWriteEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		var l log
		_, leave := join(t, s, "a", &l, func(term context.Context) error {
			usurper := Term{Number: 2, Leader: "b", Run: "b"}
			if _, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{put(leaseKey, lease{Term: 2, Seconds: 5}), put(termKey, usurper)}}); err != nil {
				t.Error(err)
			}
			_, err := Fenced(s).Commit(term, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/x"}}})
			if term.Err() == nil || !errors.Is(context.Cause(term), errDeposed) {
				t.Errorf("the term goes on: %v", err)
			}
			return untilEnd(term)
		})
		synctest.Wait()
		if got := l.take(); len(got) != 2 || got[1].what != "-1" {
			t.Errorf("%v", got)
		}
		leave()
	})
}

// TestFailureEndsTheElection: what the leader runs fails, and the lease is given back.
func TestFailureEndsTheElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		want := errors.New("broken")
		e := NewElection(ElectionConfig{Store: s, Name: "a", Run: "a"})
		if err := e.Run(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("%v", err)
		}
		var l log
		_, leave := join(t, s, "b", &l, untilEnd)
		synctest.Wait()
		if e := l.only(t, "the next"); e.what != "+2" {
			t.Errorf("%+v", e)
		}
		leave()
	})
}

// TestSilentMember: an instance that ends without a word goes from the list, and its record
// from the store; while the store is out of reach nobody goes.
func TestSilentMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		defer s.Close()
		mine, theirs := &stalling{Store: s}, &stalling{Store: s}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		member := func(s store.Store, name string) *Members {
			m := NewMembers(MembersConfig{Store: s, Self: Member{Name: name, Run: name}})
			running.Go(func() { _ = m.Run(ctx) })
			return m
		}
		a, _ := member(mine, "a"), member(theirs, "b")
		time.Sleep(10 * time.Second)
		if got := a.List(); len(got) != 2 {
			t.Errorf("%v", got)
		}
		mine.set(0, errors.New("no"))
		theirs.set(0, errors.New("no"))
		time.Sleep(time.Minute)
		if got := a.List(); len(got) != 2 {
			t.Errorf("the store is out of reach: %v", got)
		}
		mine.set(0, nil)
		theirs.set(0, nil)
		changed := a.Changed()
		time.Sleep(10 * time.Second)
		if got := a.List(); len(got) != 2 {
			t.Errorf("the store is back: %v", got)
		}
		select {
		case <-changed:
			t.Error("the list has changed by an outage of the store")
		default:
		}
		theirs.set(0, errors.New("no"))
		time.Sleep(10 * time.Second)
		if got := a.List(); len(got) != 1 || got[0].Name != "a" {
			t.Errorf("b is silent: %v", got)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody was told that b is gone")
		}
		time.Sleep(30 * time.Second)
		if n, err := s.Count(t.Context(), memberPrefix); err != nil || n != 1 {
			t.Errorf("%d records %v", n, err)
		}
		cancel()
		running.Wait()
		if n, err := s.Count(t.Context(), memberPrefix); err != nil || n != 0 {
			t.Errorf("%d records are left %v", n, err)
		}
	})
}

// Package clustertest is the contract of elections, fences and the list of instances as
// tests: every store that several instances may share runs it.
//
// Enter at Run. It uses real time, so that it runs on real databases; package cluster has the
// tests that need a clock of their own.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/store"
)

// duration of leases in these tests: as short as a busy machine allows.
const duration = 2 * time.Second

// wait bounds waits that only a failing test exhausts.
const wait = time.Minute

// Run checks the package on stores that open returns: each call opens the same new state
// once more, as another process would, and closes it with t.Cleanup.
func Run(t *testing.T, shared func(t *testing.T) (open func(t *testing.T) store.Store)) {
	t.Run("one leads, hands over, and is replaced", func(t *testing.T) { t.Parallel(); succession(t, shared(t)) })
	t.Run("a deposed leader is fenced", func(t *testing.T) { t.Parallel(); deposed(t, shared(t)) })
	t.Run("instances know each other", func(t *testing.T) { t.Parallel(); members(t, shared(t)) })
}

// instance of a test.
type instance struct {
	name     string
	store    store.Store // fenced
	silenced *silenced
	election *cluster.Election
	terms    chan context.Context
	stop     func()
}

// silenced is a store whose commits fail while it is on: a process that does not reach it.
type silenced struct {
	store.Store
	on atomic.Bool
}

var errSilenced = errors.New("out of reach, by order of the test")

// Commit implements store.Store.
func (s *silenced) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if s.on.Load() {
		return 0, errSilenced
	}
	return s.Store.Commit(ctx, txn)
}

// leading counts the instances that lead.
type leading struct{ n, most atomic.Int32 }

func (l *leading) enter() {
	if n := l.n.Add(1); n > l.most.Load() {
		l.most.Store(n)
	}
}

func start(t *testing.T, s store.Store, name string, l *leading) *instance {
	t.Helper()
	i := &instance{name: name, silenced: &silenced{Store: s}, terms: make(chan context.Context, 100)}
	i.store = cluster.Fenced(i.silenced)
	i.election = cluster.NewElection(cluster.ElectionConfig{
		Store: i.silenced, Name: name, Run: name + " of " + t.Name(), Duration: duration,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)).With("instance", name),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := i.election.Run(ctx, func(term context.Context) error {
			l.enter()
			defer l.n.Add(-1)
			i.terms <- term
			<-term.Done()
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	i.stop = func() { cancel(); running.Wait() }
	t.Cleanup(i.stop)
	return i
}

// leads waits for a term of one of the instances.
func leads(t *testing.T, instances ...*instance) (*instance, context.Context) {
	t.Helper()
	deadline := time.After(wait)
	for {
		for _, i := range instances {
			select {
			case term := <-i.terms:
				return i, term
			default:
			}
		}
		select {
		case <-deadline:
			t.Fatal("nobody leads")
		case <-time.After(time.Millisecond):
		}
	}
}

func without(instances []*instance, out *instance) (rest []*instance) {
	for _, i := range instances {
		if i != out {
			rest = append(rest, i)
		}
	}
	return rest
}

func succession(t *testing.T, open func(*testing.T) store.Store) {
	var l leading
	var instances []*instance
	for n := range 3 {
		instances = append(instances, start(t, open(t), fmt.Sprint("instance-", n), &l))
	}
	first, term := leads(t, instances...)
	number, _ := cluster.InTerm(term)
	began := time.Now()
	first.stop()
	second, term := leads(t, without(instances, first)...)
	t.Logf("handed over in %v", time.Since(began))
	if took := time.Since(began); took > duration/2 {
		t.Errorf("handed over in %v: not before the lease ran out", took)
	}
	next, _ := cluster.InTerm(term)
	if next <= number {
		t.Errorf("the term after %d is %d", number, next)
	}
	began = time.Now()
	second.silenced.on.Store(true)
	third, _ := leads(t, without(without(instances, first), second)...)
	took := time.Since(began)
	t.Logf("replaced after %v, with a lease of %v", took, duration)
	if took < duration/2 || took > duration+2*time.Second {
		t.Errorf("the leader that is out of reach was replaced after %v", took)
	}
	select {
	case <-term.Done():
	default:
		t.Error("another instance leads, and the term of the one before has not ended")
	}
	second.silenced.on.Store(false)
	status := third.election.Status()
	if !status.Leads || status.Term.Leader != third.name || status.Vacant {
		t.Errorf("status %+v", status)
	}
	if l.most.Load() != 1 {
		t.Errorf("%d instances have led at a time", l.most.Load())
	}
}

func deposed(t *testing.T, open func(*testing.T) store.Store) {
	var l leading
	first := start(t, open(t), "first", &l)
	_, term := leads(t, first)
	write := func(ctx context.Context, i *instance, key string) error {
		_, err := i.store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: []byte("x")}}})
		return err
	}
	// What the first does goes on behind its term's end, as in a process that was paused.
	paused := context.WithoutCancel(term)
	if err := write(paused, first, "/a"); err != nil {
		t.Errorf("write in the term: %v", err)
	}
	second := start(t, open(t), "second", &l)
	first.silenced.on.Store(true)
	_, after := leads(t, second)
	first.silenced.on.Store(false)
	var fenced *cluster.FencedError
	if err := write(paused, first, "/b"); !errors.As(err, &fenced) {
		t.Errorf("write after the term: %v", err)
	}
	if err := first.store.Compact(paused, 1); !errors.As(err, &fenced) {
		t.Errorf("compaction after the term: %v", err)
	}
	if _, ok, _, err := second.store.Get(t.Context(), "/b", 0); ok || err != nil {
		t.Errorf("the write was committed: %v %v", ok, err)
	}
	if err := write(t.Context(), first, "/c"); err != nil {
		t.Errorf("write of an API request: %v", err)
	}
	if err := write(after, second, "/b"); err != nil {
		t.Errorf("write of the new leader: %v", err)
	}
	// A caller's own condition that fails is a conflict, in a term as outside.
	_, err := second.store.Commit(after, store.Txn{Conditions: []store.Condition{{Key: "/b"}}})
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) || conflict.Condition.Key != "/b" {
		t.Errorf("a condition of the caller: %v", err)
	}
	if got := first.election.Status().Fenced; got != 2 {
		t.Errorf("%d refusals are counted", got)
	}
}

func members(t *testing.T, open func(*testing.T) store.Store) {
	join := func(s store.Store, name string) (m *cluster.Members, leave func()) {
		m = cluster.NewMembers(cluster.MembersConfig{
			Store: s, Self: cluster.Member{Name: name, Run: name, GRPC: name + ":6444"}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		leave = func() { cancel(); running.Wait() }
		t.Cleanup(leave)
		return m, leave
	}
	sees := func(m *cluster.Members, what, want string) {
		t.Helper()
		deadline := time.After(wait)
		for {
			changed := m.Changed()
			got := ""
			for _, member := range m.List() {
				got += fmt.Sprint(member.Name, " ", member.GRPC, " ", member.Agents, ";")
			}
			if got == want {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s: %q, want %q", what, got, want)
			}
		}
	}
	a, _ := join(open(t), "a")
	b, leave := join(open(t), "b")
	sees(a, "both join", "a a:6444 0;b b:6444 0;")
	sees(b, "both join", "a a:6444 0;b b:6444 0;")
	b.Update(func(m *cluster.Member) { m.Agents = 7 })
	sees(a, "b has agents", "a a:6444 0;b b:6444 7;")
	leave()
	sees(a, "b leaves", "a a:6444 0;")
}

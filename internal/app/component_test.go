package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// journal of what components did.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(entry string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

// take what was added since the last call, sorted if several may come in any order.
func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := strings.Join(j.entries, " ")
	j.entries = nil
	return out
}

// noting is a component that notes when it starts and ends.
func (j *journal) noting(name string, s scope) component {
	return component{Name: name, Scope: s, Run: func(ctx context.Context) error {
		j.add("+" + name)
		<-ctx.Done()
		j.add("-" + name)
		return nil
	}}
}

// ballot is an election that a test decides.
type ballot struct {
	won chan term
}

// term of a ballot.
type term struct{ lost, ended chan struct{} }

func newBallot() *ballot { return &ballot{won: make(chan term)} }

// Run implements election.
func (b *ballot) Run(ctx context.Context, lead func(context.Context) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case t := <-b.won:
			leading, end := context.WithCancel(ctx)
			go func() {
				select {
				case <-t.lost:
				case <-ctx.Done():
				}
				end()
			}()
			err := lead(leading)
			end()
			close(t.ended)
			if err != nil {
				return err
			}
		}
	}
}

// win begins a term. lose ends it, and blocks until lead has returned.
func (b *ballot) win() (lose func()) {
	t := term{lost: make(chan struct{}), ended: make(chan struct{})}
	b.won <- t
	return func() { close(t.lost); <-t.ended }
}

// TestStagesEndInReverse: what is behind a component with Ready starts when that is
// ready, and ends before it does.
func TestStagesEndInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		ready := make(chan struct{})
		api := j.noting("api", each)
		api.Ready = ready
		views := j.noting("views", each)
		views.Run = func(next func(context.Context) error) func(context.Context) error {
			return func(ctx context.Context) error {
				err := next(ctx)
				j.add("api serves until views have ended")
				return err
			}
		}(views.Run)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx, unopposed{}, []component{api, views}) }()
		synctest.Wait()
		if got := j.take(); got != "+api" {
			t.Errorf("before the API is ready: %s", got)
		}
		close(ready)
		synctest.Wait()
		if got := j.take(); got != "+views" {
			t.Errorf("when it is: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := j.take(); got != "-views api serves until views have ended -api" {
			t.Errorf("at the end: %s", got)
		}
	})
}

// TestEndBeforeReady: a role that is to end while it starts ends without an error.
func TestEndBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		api := j.noting("api", each)
		api.Ready = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx, unopposed{}, []component{api, j.noting("views", each)}) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || j.take() != "+api -api" {
			t.Errorf("%v, %v", err, j.entries)
		}
	})
}

// TestFailureEndsAll: one component that fails, or ends by itself, ends all others, and
// is the one that the error names.
func TestFailureEndsAll(t *testing.T) {
	full := errors.New("disk full")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"fails":          {full, "catalog: disk full"},
		"ends by itself": {nil, "catalog: ended by itself"},
	} {
		for _, s := range []scope{each, leader} {
			synctest.Test(t, func(t *testing.T) {
				var j journal
				fail := make(chan struct{})
				failing := component{Name: "catalog", Scope: s, Run: func(context.Context) error { <-fail; return tc.err }}
				done := make(chan error, 1)
				go func() {
					done <- run(t.Context(), unopposed{}, []component{j.noting("api", each), failing, j.noting("gc", leader)})
				}()
				synctest.Wait()
				close(fail)
				err := <-done
				if err == nil || !strings.HasSuffix(err.Error(), tc.want) {
					t.Errorf("%s: %v", name, err)
				}
				if tc.err != nil && !errors.Is(err, tc.err) {
					t.Errorf("%s: the cause is lost: %v", name, err)
				}
				got := strings.Fields(j.take())
				slices.Sort(got)
				if want := []string{"+api", "+gc", "-api", "-gc"}; !slices.Equal(got, want) {
					t.Errorf("%s: %v", name, got)
				}
			})
		}
	}
}

// TestTermsFollowEachOther: what the leader runs has ended before the next term begins,
// and nothing of it is left when the role ends.
func TestTermsFollowEachOther(t *testing.T) {
	// It fails if a goroutine of the bubble is left. goleak would find those of other tests,
	// which upstream's watch cache leaves for seconds.
	synctest.Test(t, func(t *testing.T) {
		var j journal
		e := newBallot()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- run(ctx, e, []component{j.noting("compaction", leader), j.noting("catalog", each), j.noting("planner", leader)})
		}()
		synctest.Wait()
		if got := j.take(); got != "+catalog" {
			t.Errorf("no leader: %s", got)
		}
		sorted := func() string {
			got := strings.Fields(j.take())
			slices.Sort(got)
			return strings.Join(got, " ")
		}
		for range 2 {
			lose := e.win()
			synctest.Wait()
			if got := sorted(); got != "+compaction +planner" {
				t.Errorf("won: %s", got)
			}
			lose()
			if got := sorted(); got != "-compaction -planner" {
				t.Errorf("lost: %s", got)
			}
		}
		e.win()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := sorted(); got != "+compaction +planner -catalog -compaction -planner" {
			t.Errorf("the end: %s", got)
		}
	})
}

package node

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// TestCallsOfTheMode: a call of the mode is a span below that of the agent, once for a call, also if it failed; a
// change that makes no difference here has none.
func TestCallsOfTheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var spans []*tracing.Span
		r := tracing.New(tracing.Config{Ratio: 1, Sink: func(s *tracing.Span) {
			mu.Lock()
			defer mu.Unlock()
			spans = append(spans, s)
		}})
		take := func() []*tracing.Span {
			time.Sleep(time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := spans
			spans = nil
			return out
		}
		mode := newFake()
		mode.took.Store(int64(time.Millisecond))
		var full atomic.Bool
		mode.fail = func(changes []proxy.Change) error {
			if !full.Load() {
				return nil
			}
			return &proxy.PortError{Failed: map[proxy.PortName]error{changes[0].Name: errors.New("no room")}}
		}
		a := start(t, Options{Mode: mode, Facts: Facts{Name: "n1"}, Tracer: r, MinRetry: 5 * time.Second})
		a.Apply(whole(2))
		if got := take(); len(got) != 0 {
			t.Fatalf("the first state has spans %v", got)
		}
		agent, _ := r.Root(7)
		traced := func(s *proxy.Slice) proxy.Update {
			u := change(s)
			u.Traced = []proxy.Traced{{Slice: s.Name, Agents: tracing.Parents{agent}}}
			return u
		}
		check := func(what string, got []*tracing.Span, failed bool) {
			t.Helper()
			if len(got) != 1 {
				t.Fatalf("%s: spans %v, want one", what, got)
			}
			s := got[0]
			if s.Name != tracing.Kernel || s.Of != agent.Span || s.ID.Trace != agent.Trace || s.ID == agent || (s.Err != nil) != failed ||
				s.End.Sub(s.Begin) != time.Millisecond {
				t.Errorf("%s: span %+v", what, s)
			}
		}
		a.Apply(traced(slice(0, 7)))
		check("a change", take(), false)
		a.Apply(traced(slice(0, 7)))
		if got := take(); len(got) != 0 {
			t.Errorf("the same again has spans %v", got)
		}
		a.Apply(change(slice(0, 8)))
		if got := take(); len(got) != 0 {
			t.Errorf("a change that is not followed has spans %v", got)
		}
		full.Store(true)
		a.Apply(traced(slice(1, 9)))
		check("a failure", take(), true)
		full.Store(false)
		time.Sleep(10 * time.Second)
		check("the next attempt", take(), false)
	})
}

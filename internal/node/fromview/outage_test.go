package fromview

import (
	"context"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
)

// recorder is a mode: the state that it was given, and how often it was called.
type recorder struct {
	mu    sync.Mutex
	state map[proxy.PortName]*proxy.PortState
	calls [][]proxy.Change
}

func (*recorder) Name() string                { return "recorder" }
func (*recorder) Close(context.Context) error { return nil }

func (r *recorder) Apply(_ context.Context, changes []proxy.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, changes)
	for _, c := range changes {
		if c.State == nil {
			delete(r.state, c.Name)
		} else {
			r.state[c.Name] = c.State
		}
	}
	return nil
}

// take returns the state, and the calls since the last time.
func (r *recorder) take() (map[proxy.PortName]*proxy.PortState, [][]proxy.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return maps.Clone(r.state), calls
}

// TestAnHourWithoutControlPlane: the agent goes on with what it has. Its mode is
// left alone, it is healthy, it asks again and again but not often, and when the
// control plane is back it gets what changed, soon and no more than that.
func TestAnHourWithoutControlPlane(t *testing.T) {
	synctest.Test(t, testAnHourWithoutControlPlane)
}

func testAnHourWithoutControlPlane(t *testing.T) {
	p := &plane{}
	t.Cleanup(p.kill)
	b := filledBuilder(t, "run 1")
	p.start(b.Assign)

	mode := &recorder{state: map[proxy.PortName]*proxy.PortState{}}
	agent, err := node.New(node.Options{Mode: mode, Facts: node.Facts{Name: "n1", Zone: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64
	feed := NewFeed(FeedConfig{
		Target: "passthrough:///plane", Credentials: insecure.NewCredentials(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			return p.dial(ctx, address)
		})},
		Node: "n1", Zone: "a", StateFile: filepath.Join(t.TempDir(), "view"),
		Update: func(u node.Update) { agent.Apply(u.Update) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{agent.Run, feed.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer func() { cancel(); running.Wait() }()
	synctest.Wait()
	before, calls := mode.take()
	if len(before) != 250 || len(calls) != 1 {
		t.Fatalf("%d service ports after %d calls, want 250 after one", len(before), len(calls))
	}

	p.kill()
	synctest.Wait()
	dials.Store(0)
	time.Sleep(time.Hour) // the bubble's clock
	synctest.Wait()
	after, calls := mode.take()
	if len(calls) != 0 || !maps.Equal(before, after) {
		t.Errorf("the mode was called %d times, and has %d service ports; want none and all %d", len(calls), len(after), len(before))
	}
	if s := feed.Status(); s.Connected || !s.Synced || s.Unsaved {
		t.Errorf("status of the feed after an hour: %+v", s)
	}
	if !agent.Healthy() {
		t.Error("not healthy after an hour")
	}
	// A dial fails at once here, so this is the pause alone: 2.5 to 7.5 s.
	if n := dials.Load(); n < 400 || n > 1500 {
		t.Errorf("dialled %d times in an hour, want about every 5 s", n)
	}

	again := filledBuilder(t, "run 2")
	apply(t, again, viewtest.Delta(2, viewtest.Service("late", "10.0.0.3"), "service/sa"))
	p.start(again.Assign)
	time.Sleep(10 * time.Second)
	after, calls = mode.take()
	late := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: "late"}}
	if len(after) != 250 || after[late] == nil {
		t.Errorf("10 s after its return: %d service ports, late: %v", len(after), after[late])
	}
	changes := 0
	for _, c := range calls {
		changes += len(c)
	}
	if changes != 2 {
		t.Errorf("%d changes reached the mode, want 2: what came and what went", changes)
	}
	if s := feed.Status(); !s.Connected {
		t.Errorf("status of the feed after its return: %+v", s)
	}
}

package wire

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	"github.com/proxima-mesh/proxima/internal/demand"
)

// someInstance of a control plane, with a gRPC port.
type someInstance struct {
	plane
	*Server
	listener *bufconn.Listener
}

// startInstances with names; leads says who leads, to all of them.
func startInstances(t *testing.T, leads func() string, names ...string) map[string]*someInstance {
	all := map[string]*someInstance{}
	for _, name := range names {
		x := &someInstance{listener: bufconn.Listen(1 << 16)}
		x.Server = NewServer(&x.plane, func(context.Context, string) error {
			return status.Error(codes.PermissionDenied, "not by the network")
		})
		relay := &Relay{
			Leader: func() string {
				if leads() == name {
					return ""
				}
				return leads()
			},
			Dial: func(address string) (*grpc.ClientConn, error) {
				return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return all[address].listener.DialContext(ctx) }))
			},
			// By the network come instances alone here: an agent calls Report.
			Passed: func(ctx context.Context) bool { return ctx.Value(byAgent{}) == nil },
		}
		x.PassOn(relay)
		x.admit = anybody
		server := grpc.NewServer()
		x.Register(server)
		served := make(chan error, 1)
		go func() { served <- server.Serve(x.listener) }()
		t.Cleanup(func() {
			relay.Close()
			relay.Close()
			server.Stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		all[name] = x
	}
	return all
}

// TestTake: what proxies reported to an instance comes to the leader whole, and counts once on
// whatever way it comes; agents cannot report for proxies.
func TestTake(t *testing.T) {
	leader := "a"
	all := startInstances(t, func() string { return leader }, "a", "b")
	a, b := all["a"], all["b"]
	r := &demand.Report{
		Proxy: "default/web-1", Run: "r", Sequence: 1, Elapsed: demand.Interval,
		Traffic: []demand.Traffic{{Port: port("x"), Connections: 7, Requests: 5, Utilisation: demand.Utilisation{Sum: 2.5, Reports: 5}}},
	}
	a.set(errors.New("it starts"))
	if err := b.Take(t.Context(), r); status.Code(err) != codes.Unavailable {
		t.Errorf("the leader does not take it: %v", err)
	}
	a.set(nil)
	if err := b.Take(t.Context(), r); err != nil {
		t.Error(err)
	}
	if len(a.taken) != 1 {
		t.Fatalf("the leader has %d reports", len(a.taken))
	}
	got := *a.taken[0]
	got.Traffic[0].Exchanges = nil
	if diff := cmp.Diff(*r, got); diff != "" {
		t.Errorf("at the leader (-want +got):\n%s", diff)
	}
	refused := *r
	refused.Run = ""
	if err := b.Take(t.Context(), &refused); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a run: %v", err)
	}
	_, err := b.Report(context.WithValue(t.Context(), byAgent{}, true), encode(r))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an agent reports for a proxy: %v", err)
	}
}

type byAgent struct{}

// report as an agent does.
func (x *someInstance) report(t *testing.T, sequence uint64) codes.Code {
	t.Helper()
	_, err := x.Report(context.WithValue(t.Context(), byAgent{}, true), encode(&demand.Report{
		Node: "n", Zone: "a", Run: "r", Sequence: sequence, Elapsed: demand.Interval,
		Traffic: []demand.Traffic{{Port: port("x"), Connections: sequence}},
	}))
	return status.Code(err)
}

// TestRelay: a report comes to the leader, on whatever instance; it is answered only when the
// leader has it.
func TestRelay(t *testing.T) {
	leader := "a"
	all := startInstances(t, func() string { return leader }, "a", "b", "c")
	a, b, c := all["a"], all["b"], all["c"]
	want := func(x *someInstance, connections ...uint64) {
		t.Helper()
		if diff := cmp.Diff(append([]uint64{}, connections...), x.connections()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	}
	if code := b.report(t, 1); code != codes.OK {
		t.Error(code)
	}
	want(a, 1)
	want(b, 1)
	a.set(errors.New("it starts"))
	if code := b.report(t, 2); code != codes.Unavailable {
		t.Errorf("the leader does not take it: %v", code)
	}
	a.set(nil)
	if code := b.report(t, 2); code != codes.OK {
		t.Error(code)
	}
	want(a, 1, 2)
	// Another leader.
	leader = "c"
	if code := b.report(t, 3); code != codes.OK {
		t.Error(code)
	}
	want(c, 3)
	want(a, 1, 2)
	// None: it is taken where it comes.
	leader = ""
	if code := b.report(t, 4); code != codes.OK {
		t.Error(code)
	}
	want(c, 3)
	// An instance that does not lead does not pass on what was passed to it.
	leader = "c"
	passed := &demandv1.ReportRequest{Node: "n", Run: []byte("r"), Sequence: 9, ElapsedMilliseconds: 1}
	if _, err := a.Report(t.Context(), passed); status.Code(err) != codes.Unavailable {
		t.Errorf("passed to an instance that does not lead: %v", err)
	}
	want(c, 3)
}

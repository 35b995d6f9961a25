package wire

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func port(name string) proxy.PortName {
	return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "ns", Name: name}, Port: "http"}
}

// counter stands in for a mode.
type counter struct {
	mu     sync.Mutex
	counts map[proxy.PortName]proxy.Counts
	// byFamily: half of all is IPv6.
	byFamily bool
}

func (c *counter) Counts() iter.Seq2[proxy.PortName, proxy.Counts] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.All(maps.Clone(c.counts))
}

func (c *counter) carry(name string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[proxy.PortName]proxy.Counts{}
	}
	all := c.counts[port(name)]
	all.Connections += n
	if all.ByFamily = c.byFamily; all.ByFamily {
		all.IPv6.Connections = all.Connections / 2
	}
	c.counts[port(name)] = all
}

// plane is a control plane's receiver that notes what it takes, and may fail.
type plane struct {
	mu    sync.Mutex
	fail  error
	taken []*demand.Report
}

func (p *plane) Receive(r *demand.Report) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return false, p.fail
	}
	if err := r.Check(); err != nil {
		return false, err
	}
	p.taken = append(p.taken, r)
	return true, nil
}

func (p *plane) set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// connections by report, so far.
func (p *plane) connections() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []uint64{}
	for _, r := range p.taken {
		sum := uint64(0)
		for _, t := range r.Traffic {
			sum += t.Connections
		}
		out = append(out, sum)
	}
	return out
}

// direct calls a server without a network, so that a test's time is that of its bubble.
type direct struct {
	grpc.ClientConnInterface
	server *Server
}

func (d direct) Invoke(ctx context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	// On the wire nothing is shared.
	request := proto.Clone(in.(proto.Message)).(*demandv1.ReportRequest)
	response, err := d.server.Report(ctx, request)
	if err != nil {
		return err
	}
	proto.Merge(out.(proto.Message), response)
	return nil
}

func anybody(context.Context, string) error { return nil }

func run(t *testing.T, c *Client) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestClientReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, mode, start := &plane{}, &counter{}, make(chan struct{})
		mode.carry("x", 1000)
		c := NewClient(ClientConfig{
			Conn: direct{server: NewServer(to, anybody)}, Node: "n", Zone: func() locality.Zone { return "a" }, Counter: mode, Start: start,
		})
		run(t, c)
		time.Sleep(time.Minute)
		synctest.Wait()
		mode.carry("x", 1000) // before the start: not counted
		close(start)
		synctest.Wait()
		mode.carry("x", 1)
		time.Sleep(demand.Interval)
		synctest.Wait()
		if diff := cmp.Diff([]uint64{1}, to.connections()); diff != "" {
			t.Fatalf("connections (-want +got):\n%s", diff)
		}
		time.Sleep(demand.Interval) // nothing: it says so
		mode.carry("x", 2)
		time.Sleep(demand.Interval)
		synctest.Wait()
		to.set(errors.New("away"))
		for range 5 {
			mode.carry("x", 3)
			time.Sleep(demand.Interval)
		}
		synctest.Wait()
		if s := c.Status(); s.LastError == nil || s.Failed != 5 || s.Acknowledged != 3 || !s.Unacknowledged || s.Pending != 1 {
			t.Errorf("status while it is away: %+v", s)
		}
		to.set(nil)
		mode.carry("x", 4)
		time.Sleep(demand.Interval)
		synctest.Wait()
		// What was left over, then everything since.
		if diff := cmp.Diff([]uint64{1, 0, 2, 3, 16}, to.connections()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
		last := to.taken[len(to.taken)-1]
		if last.Sequence != 5 || last.Elapsed != 5*demand.Interval || last.Node != "n" || last.Zone != "a" || last.Run != to.taken[0].Run ||
			last.Run == "" {
			t.Errorf("last report %+v", last)
		}
		if s := c.Status(); s.LastError != nil || s.Unacknowledged || s.Pending != 0 {
			t.Errorf("status after it: %+v", s)
		}
	})
}

// TestClientRefused: a report that is refused for good does not block those after it.
func TestClientRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, mode := &plane{fail: &demand.FieldError{Field: "zone", Reason: "odd"}}, &counter{}
		c := NewClient(ClientConfig{Conn: direct{server: NewServer(to, anybody)}, Node: "n", Zone: func() locality.Zone { return "a" }, Counter: mode})
		run(t, c)
		synctest.Wait()
		mode.carry("x", 7)
		time.Sleep(demand.Interval)
		synctest.Wait()
		if s := c.Status(); s.Dropped != 7 || s.LastError == nil {
			t.Errorf("status %+v", s)
		}
		to.set(nil)
		mode.carry("x", 1)
		time.Sleep(demand.Interval)
		synctest.Wait()
		if diff := cmp.Diff([]uint64{1}, to.connections()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	})
}

// TestOverGRPC: the codes that a client distinguishes come through, and so does a report.
func TestOverGRPC(t *testing.T) {
	to := &plane{}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	NewServer(to, func(_ context.Context, node string) error {
		if node != "n" {
			return status.Error(codes.PermissionDenied, "not yours")
		}
		return nil
	}).Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	good := &demand.Report{
		Node: "n", Zone: "a", Run: "r", Sequence: 3, Elapsed: demand.Interval,
		Traffic: []demand.Traffic{{Port: port("x"), Connections: 1, BytesIn: 2, BytesOut: 3, Exchanges: []proxy.Exchange{
			{Zone: "b", BytesIn: 1, BytesOut: 2, Estimated: 3, Opened: 4, Closed: 5, Open: 6}, {Zone: "a", Kept: true, BytesIn: 1},
		}}, {Port: port("y"), Family: proxy.IPv4, Connections: 1}, {Port: port("y"), Family: proxy.IPv6, Connections: 2}},
		Accounting: demand.Accounting{Quality: proxy.Estimated, Reason: "a sample", Covered: time.Minute},
	}
	client := demandv1.NewDemandClient(conn)
	other, empty := *good, *good
	other.Node, empty.Run = "m", ""
	for _, tc := range []struct {
		name   string
		report *demand.Report
		fail   error
		want   codes.Code
	}{
		{"good", good, nil, codes.OK}, {"another's", &other, nil, codes.PermissionDenied},
		{"senseless", &empty, nil, codes.InvalidArgument}, {"too early", good, demand.ErrNotReady, codes.Unavailable},
	} {
		to.set(tc.fail)
		response, err := client.Report(t.Context(), encode(tc.report))
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if err == nil && response.GetSequence() != 3 {
			t.Errorf("%s: answered %d", tc.name, response.GetSequence())
		}
	}
	if diff := cmp.Diff([]*demand.Report{good}, to.taken); diff != "" {
		t.Errorf("taken (-want +got):\n%s", diff)
	}
}

// TestEarlierAgent: a report without exchanges says that none are counted, and is taken.
func TestEarlierAgent(t *testing.T) {
	r := decode(&demandv1.ReportRequest{
		Node: "n", Run: []byte("r"), Sequence: 1, ElapsedMilliseconds: 10_000,
		Traffic: []*demandv1.Traffic{{Namespace: "ns", Service: "x", Port: "http", Connections: 1, BytesIn: 2}},
	})
	want := &demand.Report{
		Node: "n", Run: "r", Sequence: 1, Elapsed: demand.Interval, Traffic: []demand.Traffic{{Port: port("x"), Connections: 1, BytesIn: 2}},
	}
	if diff := cmp.Diff(want, r); diff != "" || r.Check() != nil {
		t.Errorf("decoded (-want +got), %v:\n%s", r.Check(), diff)
	}
}

// TestEarlierControlPlane: one that knows no families reads the same counts, in two rows of a port.
func TestEarlierControlPlane(t *testing.T) {
	m := encode(&demand.Report{
		Node: "n", Run: "r", Sequence: 1, Elapsed: demand.Interval,
		Traffic: []demand.Traffic{{Port: port("x"), Family: proxy.IPv4, Connections: 3}, {Port: port("x"), Family: proxy.IPv6, Connections: 2}},
	})
	for _, row := range m.GetTraffic() {
		row.Family = demandv1.Family_FAMILY_UNSPECIFIED // field 11 is unknown there
	}
	r := decode(m)
	want := []demand.Traffic{{Port: port("x"), Connections: 3}, {Port: port("x"), Connections: 2}}
	if diff := cmp.Diff(want, r.Traffic); diff != "" || r.Check() != nil {
		t.Errorf("decoded (-want +got), %v:\n%s", r.Check(), diff)
	}
	// A family of a later version is one that is not known.
	m.Traffic[0].Family = 9
	if got := decode(m).Traffic[0].Family; got != proxy.AnyFamily {
		t.Errorf("family 9 is read as %v", got)
	}
}

// FuzzDecode: whatever comes in is refused or taken; what is taken comes out of an encoder the same.
func FuzzDecode(f *testing.F) {
	seed := func(m *demandv1.ReportRequest) {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	seed(&demandv1.ReportRequest{})
	seed(
		&demandv1.ReportRequest{Node: "n", Zone: "a", Run: []byte("r"), Sequence: 1, ElapsedMilliseconds: 10_000, Traffic: []*demandv1.Traffic{
			{Namespace: "ns", Service: "x", Port: "http", Connections: 1, BytesIn: 2, BytesOut: 3}, {Namespace: "ns", Service: "y"}, {},
			{Namespace: "ns", Service: "x", Family: demandv1.Family_IPV6}, {Namespace: "ns", Service: "x", Family: 7},
		}},
	)
	seed(&demandv1.ReportRequest{
		Node: "n", Run: []byte("r"), Sequence: 1, ElapsedMilliseconds: 1,
		Traffic: []*demandv1.Traffic{{Namespace: "ns", Service: "x", Exchanges: []*demandv1.Exchange{
			{Zone: "b", Kept: true, Opened: 1, Closed: 2, BytesIn: 3, BytesOut: 4, EstimatedBytes: 5, Open: 6}, nil,
		}}},
		Accounting: &demandv1.Accounting{Quality: 2, Reason: "x", CoveredMilliseconds: 60_000},
	})
	seed(&demandv1.ReportRequest{Node: "n", Run: []byte("r"), Accounting: &demandv1.Accounting{Quality: -1, CoveredMilliseconds: 1 << 63}})
	seed(
		&demandv1.ReportRequest{
			Node:                "n",
			Run:                 []byte{0xff},
			Sequence:            1 << 63,
			ElapsedMilliseconds: 1 << 63,
			Traffic:             []*demandv1.Traffic{nil, {Connections: 1 << 63}},
		},
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &demandv1.ReportRequest{}
		if proto.Unmarshal(data, in) != nil {
			return
		}
		r := decode(in)
		if r.Check() != nil {
			return
		}
		if r.Elapsed <= 0 || len(r.Traffic) != len(in.GetTraffic()) {
			t.Fatalf("taken: %+v", r)
		}
		if diff := cmp.Diff(r, decode(encode(r))); diff != "" {
			t.Fatalf("encoded and decoded (-want +got):\n%s", diff)
		}
	})
}

// BenchmarkWire encodes and decodes a report of 10,000 service ports.
func BenchmarkWire(b *testing.B) {
	r := &demand.Report{Node: "n", Zone: "a", Run: "r", Sequence: 1, Elapsed: demand.Interval}
	for i := range 10_000 {
		r.Traffic = append(r.Traffic,
			demand.Traffic{Port: port("service-" + time.Duration(i).String()), Connections: 100, BytesIn: 100_000, BytesOut: 1_000_000})
	}
	var data []byte
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			data, _ = proto.Marshal(encode(r))
		}
		b.ReportMetric(float64(len(data)), "bytes")
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			in := &demandv1.ReportRequest{}
			if err := proto.Unmarshal(data, in); err != nil {
				b.Fatal(err)
			}
			if err := decode(in).Check(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

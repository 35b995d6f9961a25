package load

import (
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrs "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeStream is a stream whose client is the test.
type fakeStream struct {
	grpc.ServerStream
	ctx      context.Context
	messages chan *lrs.LoadStatsRequest
	answers  []*lrs.LoadStatsResponse
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) Send(m *lrs.LoadStatsResponse) error {
	s.answers = append(s.answers, m)
	return nil
}

func (s *fakeStream) Recv() (*lrs.LoadStatsRequest, error) {
	m, ok := <-s.messages
	if !ok {
		return nil, io.EOF
	}
	return m, nil
}

// open a stream of a proxy in a bubble; end ends it and returns its outcome.
func open(ctx context.Context, s *Server, name string) (stream *fakeStream, end func() error) {
	stream = &fakeStream{ctx: ctx, messages: make(chan *lrs.LoadStatsRequest, 16)}
	done := make(chan error, 1)
	go func() { done <- s.StreamLoadStats(stream) }()
	stream.messages <- &lrs.LoadStatsRequest{Node: &core.Node{Id: name}}
	return stream, func() error {
		close(stream.messages)
		return <-done
	}
}

func (s *fakeStream) send(clusters ...*endpoint.ClusterStats) {
	s.messages <- &lrs.LoadStatsRequest{ClusterStats: clusters}
	synctest.Wait()
}

// byNode takes the name that a stream says. A real one compares it with the credential.
func byNode(_ context.Context, n *core.Node) (Proxy, error) {
	switch n.GetId() {
	case "":
		return Proxy{}, status.Error(codes.PermissionDenied, "who?")
	case "gateway":
		return Proxy{Namespace: "shop", Name: "gateway", Gateway: true}, nil
	}
	return Proxy{Namespace: "shop", Name: n.GetId()}, nil
}

// taker notes reports, and may fail.
type taker struct {
	fail  error
	taken []*demand.Report
}

func (t *taker) Take(_ context.Context, r *demand.Report) error {
	if t.fail == nil {
		t.taken = append(t.taken, r)
	}
	return t.fail
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &taker{}
		registry := prometheus.NewPedanticRegistry()
		s := New(Config{Identify: byNode, Taker: to, Ports: fakePorts{}, Registerer: registry})
		stream, end := open(t.Context(), s, "web-1")
		synctest.Wait()
		if len(stream.answers) != 1 || !stream.answers[0].GetSendAllClusters() || stream.answers[0].GetReportEndpointGranularity() ||
			stream.answers[0].GetLoadReportingInterval().AsDuration() != demand.Interval {
			t.Errorf("settings %v", stream.answers)
		}
		if len(to.taken) != 0 {
			t.Error("the first message, without an interval, made a report")
		}
		time.Sleep(ten)
		stream.send(cluster("shop/web:80", ten, 5, 5, 0))
		// The leader is away for a while.
		to.fail = status.Error(codes.Unavailable, "no leader")
		for range 3 {
			time.Sleep(ten)
			stream.send(cluster("shop/web:80", ten, 10, 10, 0))
		}
		to.fail = nil
		time.Sleep(ten)
		stream.send(cluster("shop/web:80", ten, 1, 1, 0))
		// What is refused for good is given up.
		to.fail = status.Error(codes.InvalidArgument, "no")
		time.Sleep(ten)
		stream.send(cluster("shop/web:80", ten, 100, 100, 0))
		to.fail = nil
		// A message without clusters says that there was nothing in the time since the last.
		time.Sleep(ten)
		stream.send()
		var got []string
		for _, r := range to.taken {
			n := uint64(0)
			for _, x := range r.Traffic {
				n += x.Connections
			}
			got = append(got, fmt.Sprintf("%s %d %v %d", r.Proxy, r.Sequence, r.Elapsed, n))
		}
		want := []string{"shop/web-1 1 10s 5", "shop/web-1 2 10s 10", "shop/web-1 3 30s 21", "shop/web-1 5 10s 0"}
		if !slices.Equal(got, want) {
			t.Errorf("taken %q, want %q", got, want)
		}
		if err := end(); err != nil {
			t.Errorf("the stream ended with %v", err)
		}
		err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP proxima_xds_load_issued_total What proxies issued to service ports, by unit: connections (TCP) or requests (HTTP).
# TYPE proxima_xds_load_issued_total counter
proxima_xds_load_issued_total{unit="connections"} 0
proxima_xds_load_issued_total{unit="requests"} 136
# HELP proxima_xds_load_streams Streams of proxies that report their load.
# TYPE proxima_xds_load_streams gauge
proxima_xds_load_streams 0
`), "proxima_xds_load_issued_total", "proxima_xds_load_streams")
		if err != nil {
			t.Error(err)
		}
	})
}

// TestExcess: a stream that sends more than it was asked to is not listened to as often.
func TestExcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &taker{}
		s := New(Config{Identify: byNode, Taker: to, Ports: fakePorts{}})
		stream, end := open(t.Context(), s, "web-1")
		for range 100 {
			stream.send(cluster("shop/web:80", time.Millisecond, 1, 1, 0))
		}
		if n := len(to.taken); n != burst {
			t.Errorf("%d reports of 100 in no time", n)
		}
		time.Sleep(ten)
		stream.send(cluster("shop/web:80", time.Millisecond, 1, 1, 0))
		if n := len(to.taken); n != burst+1 {
			t.Errorf("%d reports a while later", n)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &taker{}
		s := New(Config{Identify: byNode, Taker: to, Ports: fakePorts{}})
		stream := &fakeStream{ctx: t.Context(), messages: make(chan *lrs.LoadStatsRequest, 1)}
		stream.messages <- &lrs.LoadStatsRequest{ClusterStats: []*endpoint.ClusterStats{cluster("shop/web:80", ten, 1, 1, 0)}}
		if err := s.StreamLoadStats(stream); status.Code(err) != codes.PermissionDenied {
			t.Errorf("without a name: %v", err)
		}
		// What a gateway carries, others report.
		gateway, end := open(t.Context(), s, "gateway")
		gateway.send(cluster("shop/web:80", ten, 1, 1, 0))
		if err := end(); err != nil {
			t.Error(err)
		}
		if len(to.taken) != 0 {
			t.Errorf("%d reports were taken", len(to.taken))
		}
	})
}

// twoZones has nodes and workloads with the zone that ends their name.
type twoZones struct{}

func zoneIn(name string) locality.Zone { return locality.Zone(name[len(name)-1:]) }

func (twoZones) Synced() bool                                { return true }
func (twoZones) Zone(node string) (locality.Zone, bool)      { return zoneIn(node), true }
func (twoZones) Proxy(workload string) (locality.Zone, bool) { return zoneIn(workload), true }
func (twoZones) Has(proxy.PortName) bool                     { return true }
func (twoZones) Family(proxy.PortName) (proxy.Family, bool)  { return proxy.IPv4, false }
func (twoZones) Nodes() iter.Seq2[string, locality.Zone] {
	return maps.All(map[string]locality.Zone{"node-a": "a", "node-b": "b"})
}

// turn is what happens to one proxy in one interval.
type turn struct {
	// moves to the other instance; fails: the report is not taken, or, with again, taken and not
	// answered.
	moves, fails, again bool
}

// course of a test: the rates of a zone's traffic by Service, and what happens.
type course struct {
	rates map[string]map[string]uint64
	turns []map[string]turn
}

func drawCourse(t *rapid.T) course {
	c := course{rates: map[string]map[string]uint64{}}
	for _, zone := range []string{"a", "b"} {
		c.rates[zone] = map[string]uint64{}
		for _, service := range []string{"web", "db"} {
			c.rates[zone][service] = uint64(rapid.IntRange(1, 500).Draw(t, service+" in "+zone))
		}
	}
	for range rapid.IntRange(30, 60).Draw(t, "intervals") {
		turns := map[string]turn{}
		for _, zone := range []string{"a", "b"} {
			turns[zone] = turn{
				moves: rapid.IntRange(0, 9).Draw(t, "moves") == 0,
				fails: rapid.IntRange(0, 4).Draw(t, "fails") == 0, again: rapid.Bool().Draw(t, "again"),
			}
		}
		c.turns = append(c.turns, turns)
	}
	return c
}

// source of traffic: a node whose agent reports it, and a workload whose proxy does.
type source struct {
	zone   string
	rates  map[string]uint64
	sums   map[proxy.PortName]proxy.Counts
	meter  *demand.Meter
	stream *fakeStream
	end    func() error
	at     int // of the instances
}

// run a course; it returns the demand by agents and by proxies.
func (c course) run(t *testing.T) (byAgents, byProxies map[string]demand.Estimate) {
	ctx, cancel := context.WithCancel(t.Context())
	of := map[bool]*demand.Aggregator{}
	done := make(chan error, 2)
	for _, proxies := range []bool{false, true} {
		aggregator := demand.NewAggregator(demand.Config{World: twoZones{}})
		of[proxies] = aggregator
		go func() { done <- aggregator.Run(ctx) }()
	}
	time.Sleep(demand.Interval + time.Second) // the first step is where time begins
	instances := []*flaky{{to: of[true]}, {to: of[true]}}
	var servers []*Server
	for _, x := range instances {
		servers = append(servers, New(Config{Identify: byNode, Taker: x, Ports: fakePorts{}}))
	}
	var sources []*source
	for _, zone := range []string{"a", "b"} {
		o := &source{zone: zone, rates: c.rates[zone], sums: map[proxy.PortName]proxy.Counts{}, meter: demand.NewMeter("node-"+zone, "m"+zone, nil)}
		o.meter.Read(time.Now(), maps.All(o.sums))
		o.stream, o.end = open(ctx, servers[0], "work-"+zone)
		sources = append(sources, o)
	}
	for _, turns := range c.turns {
		time.Sleep(demand.Interval)
		for _, o := range sources {
			turn := turns[o.zone]
			if turn.moves {
				if err := o.end(); err != nil {
					t.Error(err)
				}
				o.at = 1 - o.at
				o.stream, o.end = open(ctx, servers[o.at], "work-"+o.zone)
			}
			instances[o.at].set(turn.fails, turn.again)
			o.stream.send(cluster("shop/web:80", ten, o.rates["web"], o.rates["web"], 0), cluster("vip|10.96.0.5:80", ten, o.rates["db"], 0, 0))
			for service, n := range o.rates {
				o.sums[name(service)] = proxy.Counts{Connections: o.sums[name(service)].Connections + n}
			}
			o.meter.Read(time.Now(), maps.All(o.sums))
			r := o.meter.Next(zoneIn(o.zone))
			if _, err := of[false].Receive(r); err != nil {
				t.Error(err)
			}
			o.meter.Acknowledge(r.Sequence)
		}
	}
	byAgents, byProxies = map[string]demand.Estimate{}, map[string]demand.Estimate{}
	for _, service := range []string{"web", "db"} {
		byAgents[service] = of[false].Shares(name(service), proxy.IPv4, locality.Zones("a", "b"), nil, nil)
		byProxies[service] = of[true].Shares(name(service), proxy.IPv4, locality.Zones("a", "b"), nil, nil)
	}
	for _, o := range sources {
		if err := o.end(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return byAgents, byProxies
}

// TestSameAsAgents: of the same traffic, load reports make the same demand as agents do, though
// proxies have reports refused, repeat them, and change their control plane.
func TestSameAsAgents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCourse(rt)
		var byAgents, byProxies map[string]demand.Estimate
		synctest.Test(t, func(t *testing.T) { byAgents, byProxies = c.run(t) })
		for service, want := range byAgents {
			got := byProxies[service]
			for i := range want.Shares {
				if math.Abs(want.Shares[i]-got.Shares[i]) > 0.01 {
					rt.Errorf("%s: shares %.3f, by agents %.3f", service, got.Shares, want.Shares)
				}
			}
			if math.Abs(got.Rate/want.Rate-1) > 0.02 {
				rt.Errorf("%s: rate %.3f, by agents %.3f", service, got.Rate, want.Rate)
			}
		}
	})
}

// flaky hands reports over, unless it fails; again: it fails after it has.
type flaky struct {
	to wire.Receiver

	mu          sync.Mutex
	fail, again bool
}

func (f *flaky) set(fail, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.again = fail, again
}

func (f *flaky) Take(_ context.Context, r *demand.Report) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail && !f.again {
		return status.Error(codes.Unavailable, "no leader")
	}
	if _, err := f.to.Receive(r); err != nil {
		return err
	}
	if f.fail {
		return status.Error(codes.Unavailable, "the answer is lost")
	}
	return nil
}

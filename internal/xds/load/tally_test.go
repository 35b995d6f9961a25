package load

import (
	"math"
	"net/netip"
	"testing"
	"time"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrs "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func name(service string) proxy.PortName {
	return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: service}, Port: "main"}
}

// fakePorts has port 80 of every Service of namespace shop; those of web and api are HTTP. The
// virtual IP of db is 10.96.0.5.
type fakePorts struct{}

func (fakePorts) Named(service proxy.ServiceName, port int32) (Port, bool) {
	if service.Namespace != "shop" || port != 80 {
		return Port{}, false
	}
	return Port{Name: name(service.Name), HTTP: service.Name == "web" || service.Name == "api"}, true
}

func (f fakePorts) At(address netip.AddrPort) (Port, bool) {
	if address.Addr() != netip.MustParseAddr("10.96.0.5") {
		return Port{}, false
	}
	return f.Named(name("db").ServiceName, int32(address.Port()))
}

// cluster with counts of one locality.
func cluster(name string, interval time.Duration, issued, succeeded, failed uint64) *endpoint.ClusterStats {
	c := &endpoint.ClusterStats{ClusterName: name, LoadReportInterval: durationpb.New(interval)}
	if issued+succeeded+failed > 0 {
		c.UpstreamLocalityStats = []*endpoint.UpstreamLocalityStats{
			{TotalIssuedRequests: issued, TotalSuccessfulRequests: succeeded, TotalErrorRequests: failed},
		}
	}
	return c
}

const ten = 10 * time.Second

func TestAdd(t *testing.T) {
	orca := cluster("shop/web:80", ten, 10, 10, 0)
	orca.UpstreamLocalityStats[0].LoadMetricStats = []*endpoint.EndpointLoadMetricStats{
		{MetricName: "named_metrics.q", NumRequestsFinishedWithMetric: 9, TotalMetricValue: 1e9},
		{MetricName: "cpu_utilization", NumRequestsFinishedWithMetric: 10, TotalMetricValue: 6},
	}
	orca.UpstreamLocalityStats = append(orca.UpstreamLocalityStats, &endpoint.UpstreamLocalityStats{
		Priority: 1, TotalIssuedRequests: 5, CpuUtilization: &endpoint.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: 2, TotalMetricValue: 1},
	})
	nan := cluster("shop/web:80", ten, 1, 1, 0)
	nan.UpstreamLocalityStats[0].CpuUtilization = &endpoint.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: 1, TotalMetricValue: math.NaN()}
	asked := cluster("vip|10.96.0.99:80", ten, 3, 0, 0)
	asked.ClusterServiceName = "shop/web:80"
	for _, test := range []struct {
		what     string
		clusters []*endpoint.ClusterStats
		since    time.Duration
		want     *demand.Report
		seen     seen
	}{
		{"nothing yet", nil, 0, nil, seen{}},
		{"idle", nil, ten, &demand.Report{Elapsed: ten}, seen{}},
		{
			"HTTP and TCP; the longest interval counts",
			[]*endpoint.ClusterStats{cluster("shop/web:80", ten, 10, 7, 3), cluster("shop/mail:80", 3*time.Second, 4, 0, 0), cluster("shop/idle:80", ten, 0, 0, 0)},
			time.Minute,
			&demand.Report{Elapsed: ten, Traffic: []demand.Traffic{
				{Port: name("mail"), Connections: 4}, {Port: name("web"), Connections: 10, Requests: 10},
			}},
			seen{services: 3, connections: 4, requests: 10},
		},
		{
			"requests that last, of a port that is HTTP; by address it counts connections",
			[]*endpoint.ClusterStats{cluster("shop/api:80", ten, 8, 0, 0), asked},
			0,
			&demand.Report{Elapsed: ten, Traffic: []demand.Traffic{{Port: name("api"), Connections: 8, Requests: 8}, {Port: name("web"), Connections: 3}}},
			seen{services: 2, connections: 3, requests: 8},
		},
		{
			"by virtual IP",
			[]*endpoint.ClusterStats{cluster("vip|10.96.0.5:80", ten, 2, 0, 0), cluster("vip|[::ffff:10.96.0.5]:80", ten, 1, 0, 0)},
			0,
			&demand.Report{Elapsed: ten, Traffic: []demand.Traffic{{Port: name("db"), Connections: 3}}},
			seen{services: 2, connections: 3},
		},
		{
			"of a service outside", []*endpoint.ClusterStats{cluster("ext|shop/web:80", ten, 4, 0, 0)}, 0,
			&demand.Report{Elapsed: ten, Traffic: []demand.Traffic{{Port: name("web"), Connections: 4, Requests: 4}}},
			seen{services: 1, requests: 4},
		},
		{
			"of no Service",
			[]*endpoint.ClusterStats{
				cluster("local|8080", ten, 9, 9, 0), cluster("xds", ten, 1, 1, 0), cluster("passthrough", ten, 1, 0, 0),
				cluster("vip|10.9.9.9:80", ten, 1, 0, 0), cluster("vip|", ten, 1, 0, 0), cluster("shop/web:81", ten, 1, 0, 0),
				cluster("ext|shop/web", ten, 1, 0, 0), cluster("/:80", ten, 1, 0, 0), cluster("shop/web:99999", ten, 1, 0, 0),
			},
			0, &demand.Report{Elapsed: ten}, seen{others: 9},
		},
		{
			"utilisation of two localities", []*endpoint.ClusterStats{orca}, 0,
			&demand.Report{Elapsed: ten, Traffic: []demand.Traffic{
				{Port: name("web"), Connections: 15, Requests: 15, Utilisation: demand.Utilisation{Sum: 7, Reports: 12}},
			}},
			seen{services: 1, requests: 15},
		},
		{
			"counts that cannot be",
			[]*endpoint.ClusterStats{cluster("shop/web:80", ten, maxRate*11, 0, 0), cluster("shop/mail:80", ten, math.MaxUint64, math.MaxUint64, 1), nan},
			0, &demand.Report{Elapsed: ten}, seen{refused: 3},
		},
	} {
		t.Run(test.what, func(t *testing.T) {
			y := tally{proxy: "shop/web-1", run: "r"}
			if got := y.add(fakePorts{}, test.clusters, test.since); got != test.seen {
				t.Errorf("seen %+v, want %+v", got, test.seen)
			}
			got := y.next()
			if test.want != nil {
				test.want.Proxy, test.want.Run, test.want.Sequence = "shop/web-1", "r", 1
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestProtocolIsRemembered: in an interval in which none of its requests ends, a cluster still
// counts requests.
func TestProtocolIsRemembered(t *testing.T) {
	y := tally{}
	y.add(fakePorts{}, []*endpoint.ClusterStats{cluster("shop/slow:80", ten, 4, 1, 0)}, 0)
	y.add(fakePorts{}, []*endpoint.ClusterStats{cluster("shop/slow:80", ten, 4, 0, 0)}, 0)
	if got := y.next().Traffic[0]; got.Requests != 8 {
		t.Errorf("%d of %d are requests", got.Requests, got.Connections)
	}
}

// TestFixed: a report that was handed out does not change until it was taken, and nothing of what
// is reported meanwhile is lost.
func TestFixed(t *testing.T) {
	y := tally{proxy: "shop/web-1", run: "r"}
	add := func(n uint64) { y.add(fakePorts{}, []*endpoint.ClusterStats{cluster("shop/web:80", ten, n, n, 0)}, 0) }
	add(1)
	first := y.next()
	add(2)
	add(4)
	if again := y.next(); again != first || again.Traffic[0].Connections != 1 || again.Elapsed != ten {
		t.Errorf("handed out again: %+v", again)
	}
	y.taken()
	second := y.next()
	if second.Sequence != 2 || second.Traffic[0].Connections != 6 || second.Elapsed != 2*ten {
		t.Errorf("the one after: %+v", second)
	}
	y.taken()
	if y.next() != nil {
		t.Error("there is a third")
	}
}

// FuzzAdd: whatever a proxy sends, no count is made up, and what comes of it is a report that
// aggregators take.
func FuzzAdd(f *testing.F) {
	seed := func(clusters ...*endpoint.ClusterStats) {
		data, err := proto.Marshal(&lrs.LoadStatsRequest{ClusterStats: clusters})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, int64(ten))
	}
	seed(cluster("shop/web:80", ten, 10, 7, 3), cluster("vip|10.96.0.5:80", ten, 4, 0, 0))
	seed(cluster("shop/web:80", -ten, math.MaxUint64, 7, 3))
	f.Fuzz(func(t *testing.T, data []byte, since int64) {
		var message lrs.LoadStatsRequest
		if proto.Unmarshal(data, &message) != nil {
			return
		}
		y := tally{proxy: "shop/web-1", run: "r"}
		issued := uint64(0)
		for range 3 {
			saw := y.add(fakePorts{}, message.GetClusterStats(), time.Duration(since))
			issued += saw.connections + saw.requests
		}
		r := y.next()
		if r == nil {
			return
		}
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		counted := uint64(0)
		for _, x := range r.Traffic {
			counted += x.Connections
		}
		if counted != issued {
			t.Errorf("%d are counted of %d", counted, issued)
		}
	})
}

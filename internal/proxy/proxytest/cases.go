package proxytest

import (
	"math"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// testCase is a sequence of states and, in each, questions with answers.
type testCase struct {
	name     string
	needs    []Feature
	protocol proxy.Protocol
	backends []bool // one per backend: is it dead?
	steps    []step
}

type step struct {
	name     string
	services []service
	asks     []ask
}

// ask puts a question a number of times. shares says which part of the answers
// has to come from whom, give or take 0.1; sticky, that all come from one.
type ask struct {
	vip    int
	port   uint16
	times  int
	shares map[int]float64
	sticky bool
	node   bool // ask the node's address at the node port instead
	// counted: so many connections that shares have to be right within a point, and three
	// standard deviations of random picks. times is ignored.
	counted bool
}

// counted is the number of connections that shares are counted by; with PROXIMA_SOAK=1 it
// shows a share of 5 % within 0.5 points.
func counted() int {
	if os.Getenv("PROXIMA_SOAK") != "" {
		return 20_000
	}
	return 2_000
}

var alive3 = []bool{false, false, false}

func only(i int) map[int]float64 { return map[int]float64{i: 1} }

var cases = []testCase{
	{
		name: "TCP reaches every endpoint", protocol: proxy.TCP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1, 1: 1, 2: 1}}},
			asks:     []ask{{port: 8080, times: 60, shares: map[int]float64{0: 1. / 3, 1: 1. / 3, 2: 1. / 3}}},
		}},
	},
	{
		name: "UDP reaches every endpoint", protocol: proxy.UDP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1, 1: 1, 2: 1}}},
			asks:     []ask{{port: 8080, times: 60, shares: map[int]float64{0: 1. / 3, 1: 1. / 3, 2: 1. / 3}}},
		}},
	},
	{
		name: "weights are shares", protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 6, 1: 3, 2: 1}}},
				asks:     []ask{{port: 8080, times: 100, shares: map[int]float64{0: .6, 1: .3, 2: .1}}},
			},
			{
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1, 1: 1000000, 2: 1}}},
				asks:     []ask{{port: 8080, times: 50, shares: only(1)}},
			},
		},
	},
	{
		name: "a new version gets a few connections", protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				name:     "5 of 100",
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 5, 1: 95}}},
				asks:     []ask{{port: 8080, counted: true, shares: map[int]float64{0: .05, 1: .95}}},
			},
			{
				name:     "beside many",
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 5, 1: 1000, 2: 1000}}},
				asks:     []ask{{port: 8080, counted: true, shares: map[int]float64{0: 5. / 2005, 1: 1000. / 2005, 2: 1000. / 2005}}},
			},
		},
	},
	{
		name: "endpoints come and go", protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				name:     "one",
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1}}},
				asks:     []ask{{port: 8080, times: 5, shares: only(0)}},
			},
			{
				name:     "another",
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{2: 1}}},
				asks:     []ask{{port: 8080, times: 5, shares: only(2)}},
			},
			{
				name:     "none",
				services: []service{{name: "a", port: 8080, noCluster: proxy.Reject}},
				asks:     []ask{{port: 8080, times: 2, shares: only(refused)}},
			},
			{
				name:     "back again",
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{1: 1}}},
				asks:     []ask{{port: 8080, times: 5, shares: only(1)}},
			},
			{
				name: "service removed",
				asks: []ask{{port: 8080, times: 2, shares: only(refused)}},
			},
		},
	},
	{
		name: "UDP without endpoints is refused", protocol: proxy.UDP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, noCluster: proxy.Reject}},
			asks:     []ask{{port: 8080, times: 2, shares: only(refused)}},
		}},
	},
	{
		name: "another port of a known address is refused", protocol: proxy.TCP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1}}},
			asks:     []ask{{port: 8081, times: 2, shares: only(refused)}, {port: 8080, times: 2, shares: only(0)}},
		}},
	},
	{
		name: "services keep apart", protocol: proxy.TCP, backends: alive3,
		steps: []step{{
			services: []service{
				{name: "a", vip: 0, port: 8080, cluster: map[int]uint32{0: 1}},
				{name: "b", vip: 1, port: 8080, cluster: map[int]uint32{1: 1}},
				{name: "c", vip: 1, port: 8081, cluster: map[int]uint32{2: 1}},
			},
			asks: []ask{
				{vip: 0, port: 8080, times: 3, shares: only(0)},
				{vip: 1, port: 8080, times: 3, shares: only(1)},
				{vip: 1, port: 8081, times: 3, shares: only(2)},
			},
		}},
	},
	{
		name: "an address moves to another service within one call", protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				services: []service{{name: "z", port: 8080, cluster: map[int]uint32{0: 1}}},
				asks:     []ask{{port: 8080, times: 3, shares: only(0)}},
			},
			{
				services: []service{{name: "a", port: 8080, cluster: map[int]uint32{1: 1}}},
				asks:     []ask{{port: 8080, times: 3, shares: only(1)}},
			},
		},
	},
	{
		name: "internal policy Local uses the local list", protocol: proxy.TCP, backends: alive3,
		steps: []step{{
			services: []service{{
				name: "a", port: 8080, internalLocal: true,
				cluster: map[int]uint32{0: 1, 1: 1}, local: map[int]uint32{2: 1},
			}},
			asks: []ask{{port: 8080, times: 10, shares: only(2)}},
		}},
	},
	{
		name: "drop is silent, TCP", needs: []Feature{Drop}, protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				services: []service{{name: "a", port: 8080, internalLocal: true, noLocal: proxy.Drop}},
				asks:     []ask{{port: 8080, times: 1, shares: only(silent)}},
			},
			{
				name:     "a local endpoint appears",
				services: []service{{name: "a", port: 8080, internalLocal: true, local: map[int]uint32{1: 1}}},
				asks:     []ask{{port: 8080, times: 3, shares: only(1)}},
			},
		},
	},
	{
		name: "drop is silent, UDP", needs: []Feature{Drop}, protocol: proxy.UDP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, internalLocal: true, noLocal: proxy.Drop}},
			asks:     []ask{{port: 8080, times: 1, shares: only(silent)}},
		}},
	},
	{
		name: "a dead endpoint is passed over, TCP", needs: []Feature{Retry}, protocol: proxy.TCP,
		backends: []bool{true, false, true},
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 5, 1: 1, 2: 5}}},
			asks:     []ask{{port: 8080, times: 20, shares: only(1)}},
		}},
	},
	{
		name: "a dead endpoint is passed over, UDP", needs: []Feature{Retry}, protocol: proxy.UDP,
		backends: []bool{true, false, true},
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 5, 1: 1, 2: 5}}},
			asks:     []ask{{port: 8080, times: 20, shares: only(1)}},
		}},
	},
	{
		name: "all endpoints dead", protocol: proxy.TCP, backends: []bool{true, true},
		steps: []step{{
			services: []service{{name: "a", port: 8080, cluster: map[int]uint32{0: 1, 1: 1}}},
			asks:     []ask{{port: 8080, times: 3, shares: only(refused)}},
		}},
	},
	{
		name: "client affinity, TCP", protocol: proxy.TCP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, affinity: time.Hour, cluster: map[int]uint32{0: 1, 1: 1, 2: 1}}},
			asks:     []ask{{port: 8080, times: 20, sticky: true}},
		}},
	},
	{
		name: "client affinity, UDP", protocol: proxy.UDP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, affinity: time.Hour, cluster: map[int]uint32{0: 1, 1: 1, 2: 1}}},
			asks:     []ask{{port: 8080, times: 20, sticky: true}},
		}},
	},
	{
		name: "node port", needs: []Feature{NodePort}, protocol: proxy.TCP, backends: alive3,
		steps: []step{
			{
				services: []service{{name: "a", port: 8080, nodePort: true, cluster: map[int]uint32{0: 1, 1: 1}}},
				asks: []ask{
					{node: true, times: 20, shares: map[int]float64{0: .5, 1: .5}},
					{port: 8080, times: 20, shares: map[int]float64{0: .5, 1: .5}},
				},
			},
			{
				name: "policy Local, asked from the node itself",
				services: []service{{
					name: "a", port: 8080, nodePort: true, external: true,
					cluster: map[int]uint32{2: 1}, noLocal: proxy.Drop,
				}},
				asks: []ask{{node: true, times: 3, shares: only(2)}},
			},
			{
				name: "removed",
				asks: []ask{{node: true, times: 2, shares: only(refused)}},
			},
		},
	},
	{
		name: "node port, UDP", needs: []Feature{NodePort}, protocol: proxy.UDP, backends: alive3,
		steps: []step{{
			services: []service{{name: "a", port: 8080, nodePort: true, cluster: map[int]uint32{0: 1, 1: 1}}},
			asks:     []ask{{node: true, times: 20, shares: map[int]float64{0: .5, 1: .5}}},
		}},
	},
}

func (s *setup) ask(proto proxy.Protocol, step string, a ask) {
	s.Helper()
	to := netip.AddrPortFrom(s.vip(a.vip), a.port)
	if a.node {
		to = netip.AddrPortFrom(s.env.Node, s.nodePort)
	}
	wait := 5 * time.Second
	if _, quiet := a.shares[silent]; quiet {
		wait = timeout
	}
	if a.counted {
		a.times = counted()
	}
	got := map[int]int{}
	for range a.times {
		who := s.askOnce(proto, to, wait, a.counted)
		if got[who]++; who == silent && wait > timeout {
			s.Fatalf("step %q: %s is silent", step, to) // further questions would take as long
		}
	}
	if a.sticky {
		if len(got) != 1 || got[refused]+got[silent] > 0 {
			s.Errorf("step %q: %s answered by %v, want one endpoint", step, to, got)
		}
		return
	}
	for who := range got {
		if _, ok := a.shares[who]; !ok {
			s.Errorf("step %q: %s answered by %d (%d: refused, %d: silent), want %v", step, to, who, refused, silent, a.shares)
		}
	}
	for who, share := range a.shares {
		tolerance := 0.1
		if s.env.Random { // five standard deviations
			tolerance = max(tolerance, 5*math.Sqrt(share*(1-share)/float64(a.times)))
		}
		if a.counted {
			tolerance = 0.01 + 3*math.Sqrt(share*(1-share)/float64(a.times))
		}
		if real := float64(got[who]) / float64(a.times); math.Abs(real-share) > tolerance {
			s.Errorf("step %q: %s answered by %d in %.4f of cases, want %.4f", step, to, who, real, share)
		}
	}
}

// freePort finds a port number that is not in use.
func freePort(addr netip.Addr) (uint16, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(addr.String(), "0"))
	if err != nil {
		return 0, err
	}
	return ln.Addr().(*net.TCPAddr).AddrPort().Port(), ln.Close()
}

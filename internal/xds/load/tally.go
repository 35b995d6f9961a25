package load

import (
	"cmp"
	"math"
	"slices"
	"time"

	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// maxRate of requests and connections per second of one proxy. Envoy serves less than a
	// tenth of it on one core.
	maxRate = 1e6
	// metricCPU is ORCA's name of the utilisation of an endpoint's processors
	// (xds.data.orca.v3.OrcaLoadReport), 1 for fully used.
	metricCPU = "cpu_utilization"
	// maxUtilisation of one endpoint: beyond it the unit is another.
	maxUtilisation = 10
	// maxClusters whose protocol a stream remembers.
	maxClusters = 4096
)

// counts of a service port.
type counts struct {
	// connections and requests together, those of them that are requests, and what ended.
	connections, requests, finished uint64
	utilisation                     demand.Utilisation
}

// tally is what one stream reported. A report of demand is fixed when it is handed out, and
// handed out again, the same, until it was taken, while what is reported meanwhile goes into the
// one after. So it is counted once, though it be sent several times. Not for concurrent use.
type tally struct {
	proxy, run string
	pending    map[proxy.PortName]counts
	elapsed    time.Duration
	hand       *demand.Report
	sequence   uint64
	// http are clusters whose requests were seen to end.
	http map[string]struct{}
}

// seen counts what a message held.
type seen struct {
	// services are clusters of a service port, others those of none, and refused those with
	// counts that cannot be.
	services, others, refused int
	connections, requests     uint64
}

// add a message of the stream. since is the time since the message before, or since the
// stream began; it counts where the message itself says nothing.
func (t *tally) add(ports Ports, clusters []*endpoint.ClusterStats, since time.Duration) (s seen) {
	covered := interval(clusters)
	if covered == 0 {
		covered = since
	}
	if covered <= 0 {
		return s // Envoy's first message, which precedes any interval
	}
	t.elapsed = min(t.elapsed+covered, demand.MaxElapsed)
	for _, c := range clusters {
		port, ok := portOf(ports, c.GetClusterName(), c.GetClusterServiceName())
		if !ok {
			s.others++
			continue
		}
		n, ok := countsOf(c, covered)
		if _, known := t.pending[port.Name]; !ok || !known && len(t.pending) >= demand.MaxPorts {
			s.refused++
			continue
		}
		if t.overHTTP(c.GetClusterName(), n.finished > 0) || port.HTTP {
			n.requests = n.connections
		}
		s.services++
		s.connections += n.connections - n.requests
		s.requests += n.requests
		if n.connections > 0 || n.utilisation.Reports > 0 {
			t.note(port.Name, n)
		}
	}
	return s
}

// overHTTP says whether a cluster's requests were seen to end, now or before: a TCP proxy counts
// connections as issued, which neither succeed nor fail. Requests may last for longer than a report.
func (t *tally) overHTTP(cluster string, ended bool) bool {
	if _, known := t.http[cluster]; known || !ended {
		return known
	}
	if t.http == nil || len(t.http) >= maxClusters {
		t.http = map[string]struct{}{}
	}
	t.http[cluster] = struct{}{}
	return true
}

func (t *tally) note(name proxy.PortName, n counts) {
	if t.pending == nil {
		t.pending = map[proxy.PortName]counts{}
	}
	sum := t.pending[name]
	sum.connections += n.connections
	sum.requests += n.requests
	sum.utilisation.Sum += n.utilisation.Sum
	sum.utilisation.Reports += n.utilisation.Reports
	t.pending[name] = sum
}

// interval that a message covers: the longest of its clusters'. Those that were made
// meanwhile have shorter ones, and count for all of it, as with a service port that is new to
// an agent. 0: it says nothing.
func interval(clusters []*endpoint.ClusterStats) (longest time.Duration) {
	for _, c := range clusters {
		if d := c.GetLoadReportInterval(); d.CheckValid() == nil {
			longest = max(longest, d.AsDuration())
		}
	}
	return min(longest, demand.MaxElapsed)
}

// countsOf a cluster; ok is false if no proxy counts so much in that time.
func countsOf(c *endpoint.ClusterStats, covered time.Duration) (n counts, ok bool) {
	limit := uint64(maxRate * max(1, covered.Seconds()))
	for _, l := range c.GetUpstreamLocalityStats() {
		issued := l.GetTotalIssuedRequests()
		if issued > limit || n.connections+issued > limit || l.GetTotalSuccessfulRequests() > limit || l.GetTotalErrorRequests() > limit {
			return n, false
		}
		n.connections += issued
		n.finished += l.GetTotalSuccessfulRequests() + l.GetTotalErrorRequests()
		u, ok := utilisationOf(l)
		if !ok || u.Reports > limit || n.utilisation.Reports+u.Reports > limit {
			return n, false
		}
		n.utilisation.Sum += u.Sum
		n.utilisation.Reports += u.Reports
	}
	return n, true
}

// utilisationOf a locality's endpoints. A client fills either field.
func utilisationOf(l *endpoint.UpstreamLocalityStats) (u demand.Utilisation, ok bool) {
	take := func(number uint64, sum float64) (demand.Utilisation, bool) {
		if math.IsNaN(sum) || sum < 0 || sum > maxUtilisation*float64(number) {
			return u, false
		}
		return demand.Utilisation{Sum: sum, Reports: number}, true
	}
	if m := l.GetCpuUtilization(); m.GetNumRequestsFinishedWithMetric() > 0 {
		return take(m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue())
	}
	for _, m := range l.GetLoadMetricStats() {
		if m.GetMetricName() == metricCPU {
			return take(m.GetNumRequestsFinishedWithMetric(), m.GetTotalMetricValue())
		}
	}
	return u, true
}

// next report to hand over: the one that was not taken, else what was reported since; nil:
// nothing was. It is the tally's until taken is called, and never changes.
func (t *tally) next() *demand.Report {
	if t.hand != nil || t.elapsed == 0 {
		return t.hand
	}
	t.sequence++
	t.hand = &demand.Report{Proxy: t.proxy, Run: t.run, Sequence: t.sequence, Elapsed: t.elapsed}
	for name, n := range t.pending {
		t.hand.Traffic = append(t.hand.Traffic, demand.Traffic{
			Port: name, Connections: min(n.connections, demand.MaxCount), Requests: min(n.requests, demand.MaxCount), Utilisation: n.utilisation,
		})
	}
	slices.SortFunc(t.hand.Traffic, func(a, b demand.Traffic) int {
		return cmp.Or(cmp.Compare(a.Port.Namespace, b.Port.Namespace), cmp.Compare(a.Port.Name, b.Port.Name), cmp.Compare(a.Port.Port, b.Port.Port))
	})
	t.pending, t.elapsed = nil, 0
	return t.hand
}

// taken: the report in hand need not be handed over again.
func (t *tally) taken() { t.hand = nil }

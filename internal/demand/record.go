package demand

import (
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Interval between two reports of an agent, and between two steps of the
// estimate.
const Interval = 10 * time.Second

// Limits of one report. More ports wait for the next one; everything else that is
// beyond them cannot come from a Meter.
const (
	MaxPorts   = 100_000
	MaxElapsed = 24 * time.Hour
	// MaxCount of anything: a sum of many stays far from overflowing.
	MaxCount = 1e15
	maxRun   = 64
	// maxName of nodes and zones: RFC 1123 subdomains, as object names are.
	maxName = 253
	// maxLabel of namespaces, Services and ports: RFC 1123 labels.
	maxLabel = 63
	// maxExchanges of a port: its zones, other sites, unknown ones, and those kept.
	maxExchanges = 2 * (planner.MaxZones + 2)
	maxReason    = 1024
	// maxProxy is a namespace and a name.
	maxProxy = maxLabel + 1 + maxName
	// maxUtilisation of an endpoint that is fully used is 1; ten times that is a wrong unit.
	maxUtilisation = 10
)

// Report is what one agent, or one proxy, carried in a span of time.
type Report struct {
	// Node that reports, and its zone as far as it knows.
	Node string
	Zone locality.Zone
	// Proxy that reports for one workload of the node: NAMESPACE/NAME of its Dataplane or pod.
	// Empty: the node's agent does. With it, Node may be empty.
	Proxy string
	// Run names a life of the agent's Meter. Sequence counts its reports from 1.
	Run      string
	Sequence uint64
	// Elapsed is the time that the traffic covers, by a monotonic clock.
	Elapsed time.Duration
	// Traffic of ports that had any, or have open connections. None says that there was none.
	Traffic []Traffic
	// Accounting says how exchanges were counted.
	Accounting Accounting
}

// Accounting says how exchanges were counted. The zero value is that of an agent that does
// not count them by destination.
type Accounting struct {
	Quality proxy.Quality
	// Reason why they are not measured.
	Reason string
	// Covered is the time that the exchanges of a report cover. 0: they were not read again,
	// and what is open is what it was.
	Covered time.Duration
}

// Traffic of one service port.
type Traffic struct {
	Port proxy.PortName
	// Family of the addresses that clients connected to. A report may have a port once for each;
	// AnyFamily: who counted does not tell them apart.
	Family                         proxy.Family
	Connections, BytesIn, BytesOut uint64
	// Exchanges with the endpoints of zones, ordered; counted since the report before, but
	// for what is open. Their own Family is not set: it is that of the traffic.
	Exchanges []proxy.Exchange
	// Requests are those of Connections that are HTTP requests, which proxies count.
	Requests uint64
	// Utilisation that endpoints stated in their responses.
	Utilisation Utilisation
}

// Utilisation is how busy endpoints said to be, in a number of Reports: Sum is that of all
// reports, of which 1 is an endpoint that is fully used.
type Utilisation struct {
	Sum     float64
	Reports uint64
}

// Total is traffic of any port, or of several.
type Total struct {
	Connections uint64 `json:"connections"`
	BytesIn     uint64 `json:"bytesIn"`
	BytesOut    uint64 `json:"bytesOut"`
}

func (t *Total) add(u Total) {
	t.Connections += u.Connections
	t.BytesIn += u.BytesIn
	t.BytesOut += u.BytesOut
}

// since is what was added after before; 0 where it is less.
func (t Total) since(before Total) Total {
	return Total{
		Connections: t.Connections - min(before.Connections, t.Connections),
		BytesIn:     t.BytesIn - min(before.BytesIn, t.BytesIn),
		BytesOut:    t.BytesOut - min(before.BytesOut, t.BytesOut),
	}
}

// below reports whether any count is less than it was: the counters started over.
func (t Total) below(before Total) bool {
	return t.Connections < before.Connections || t.BytesIn < before.BytesIn || t.BytesOut < before.BytesOut
}

func (t *Traffic) counted() counted { return counted{t.Port, t.Family} }

func (t *Traffic) total() Total {
	return Total{Connections: t.Connections, BytesIn: t.BytesIn, BytesOut: t.BytesOut}
}

// FieldError says which part of a report was refused, and why.
type FieldError struct{ Field, Reason string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Check refuses, with a *FieldError, what no Meter reports.
func (r *Report) Check() error {
	refuse := func(field, format string, args ...any) error {
		return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.Node == "" && r.Proxy == "" || len(r.Node) > maxName:
		return refuse("node", "%d bytes, not 1 to %d", len(r.Node), maxName)
	case len(r.Proxy) > maxProxy:
		return refuse("proxy", "%d bytes, not up to %d", len(r.Proxy), maxProxy)
	case len(r.Zone) > maxName:
		return refuse("zone", "%d bytes, not up to %d", len(r.Zone), maxName)
	case r.Run == "" || len(r.Run) > maxRun:
		return refuse("run", "%d bytes, not 1 to %d", len(r.Run), maxRun)
	case r.Sequence == 0:
		return refuse("sequence", "0, not from 1")
	case r.Elapsed <= 0 || r.Elapsed > MaxElapsed:
		return refuse("elapsed", "%v, not above 0 to %v", r.Elapsed, MaxElapsed)
	case len(r.Traffic) > MaxPorts:
		return refuse("traffic", "%d service ports, not up to %d", len(r.Traffic), MaxPorts)
	}
	if a := r.Accounting; a.Quality > proxy.Measured || len(a.Reason) > maxReason || a.Covered < 0 || a.Covered > MaxElapsed {
		return refuse("accounting", "quality %d, %d bytes of a reason, or %v covered", a.Quality, len(a.Reason), a.Covered)
	}
	for i := range r.Traffic {
		t := &r.Traffic[i]
		n := t.Port
		switch {
		case n.Namespace == "" || n.Name == "" || len(n.Namespace) > maxLabel || len(n.Name) > maxLabel || len(n.Port) > maxLabel:
			return refuse(fmt.Sprintf("traffic[%d]", i), "the names of a service port have 1 to %d bytes each", maxLabel)
		case t.Connections > MaxCount || t.BytesIn > MaxCount || t.BytesOut > MaxCount:
			return refuse(fmt.Sprintf("traffic[%d]", i), "a count of %s is above %g", n, float64(MaxCount))
		case t.Family > proxy.IPv6:
			return refuse(fmt.Sprintf("traffic[%d]", i), "family %d of %s, not up to %d", t.Family, n, proxy.IPv6)
		case t.Requests > t.Connections:
			return refuse(fmt.Sprintf("traffic[%d]", i), "%d requests of %s are more than the %d connections and requests", t.Requests, n, t.Connections)
		case !t.Utilisation.valid():
			return refuse(fmt.Sprintf("traffic[%d]", i), "utilisation %g in %d reports of %s", t.Utilisation.Sum, t.Utilisation.Reports, n)
		case len(t.Exchanges) > maxExchanges:
			return refuse(fmt.Sprintf("traffic[%d]", i), "%d exchanges of %s, not up to %d", len(t.Exchanges), n, maxExchanges)
		}
		for k, x := range t.Exchanges {
			if len(x.Zone) > maxName || max(x.BytesIn, x.BytesOut, x.Estimated, x.Opened, x.Closed, x.Open) > MaxCount {
				return refuse(fmt.Sprintf("traffic[%d].exchanges[%d]", i, k), "a count is above %g, or the zone is too long", float64(MaxCount))
			}
		}
	}
	return nil
}

// valid: the mean is from 0 to maxUtilisation. The comparisons are false for NaN.
func (u Utilisation) valid() bool {
	return u.Reports <= MaxCount && u.Sum >= 0 && u.Sum <= maxUtilisation*float64(u.Reports)
}

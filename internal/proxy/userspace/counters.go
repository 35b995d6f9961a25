package userspace

import (
	"iter"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// counters of one service port.
type counters struct {
	retries, failures, rejected atomic.Uint64
	active                      atomic.Int64
	// arrived by the family of the frontend: that of proxy.Family less 1.
	arrived [2]arrivals

	mu        sync.Mutex
	exchanges map[exchangeKey]*exchange
}

// arrivals at the frontends of one address family.
type arrivals struct {
	connections atomic.Uint64
	// lostIn are bytes of datagrams for which there was no endpoint.
	lostIn atomic.Uint64
}

// at the frontends of a family.
func (c *counters) at(f proxy.Family) *arrivals { return &c.arrived[f-proxy.IPv4] }

// exchangeKey is whom a service port exchanges with: endpoints of a zone, chosen by a
// traffic policy Local or not, for frontends of a family.
type exchangeKey struct {
	family proxy.Family
	zone   locality.Zone
	kept   bool
}

// exchange counts exactly what goes to and from endpoints of one zone.
type exchange struct {
	bytesIn, bytesOut, opened, closed atomic.Uint64
	open                              atomic.Int64
}

// with an endpoint of a pool, for frontends of a family.
func (c *counters) with(family proxy.Family, from *pool, to netip.AddrPort) *exchange {
	key := exchangeKey{family, from.zoneOf(to), from.kept}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.exchanges[key]
	if x == nil {
		if c.exchanges == nil {
			c.exchanges = make(map[exchangeKey]*exchange, 1)
		}
		x = &exchange{}
		c.exchanges[key] = x
	}
	return x
}

func (x *exchange) begin() *exchange {
	x.opened.Add(1)
	x.open.Add(1)
	return x
}

// end of a connection; x may be nil: it had no endpoint.
func (x *exchange) end() {
	if x != nil {
		x.closed.Add(1)
		x.open.Add(-1)
	}
}

// all exchanges so far.
func (c *counters) all() []proxy.Exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]proxy.Exchange, 0, len(c.exchanges))
	for key, x := range c.exchanges {
		out = append(out, proxy.Exchange{
			Family: key.family, Zone: key.zone, Kept: key.kept, BytesIn: x.bytesIn.Load(), BytesOut: x.bytesOut.Load(),
			Opened: x.opened.Load(), Closed: x.closed.Load(), Open: uint64(max(x.open.Load(), 0)),
		})
	}
	return out
}

func (c *counters) snapshot() proxy.Counts {
	n := proxy.Counts{Retries: c.retries.Load(), Failures: c.failures.Load(), ByFamily: true}
	v4, v6 := c.at(proxy.IPv4), c.at(proxy.IPv6)
	n.IPv6 = proxy.FamilyCounts{Connections: v6.connections.Load(), BytesIn: v6.lostIn.Load()}
	n.Connections, n.BytesIn = n.IPv6.Connections+v4.connections.Load(), n.IPv6.BytesIn+v4.lostIn.Load()
	for _, x := range c.all() {
		n.BytesIn += x.BytesIn
		n.BytesOut += x.BytesOut
		if x.Family == proxy.IPv6 {
			n.IPv6.BytesIn += x.BytesIn
			n.IPv6.BytesOut += x.BytesOut
		}
	}
	return n
}

// Exchanges implements proxy.Accountant: this mode carries every byte, so it counts exactly,
// and without headers.
func (m *Mode) Exchanges() (proxy.Accounting, iter.Seq2[proxy.PortName, proxy.Exchange]) {
	ports := m.servicePorts()
	return proxy.Accounting{Quality: proxy.Measured, Covered: time.Since(m.begun)}, func(yield func(proxy.PortName, proxy.Exchange) bool) {
		for _, p := range ports {
			for _, x := range p.counters.all() {
				if !yield(p.name, x) {
					return
				}
			}
		}
	}
}

// servicePorts that there are.
func (m *Mode) servicePorts() []*servicePort {
	m.mu.Lock()
	defer m.mu.Unlock()
	ports := make([]*servicePort, 0, len(m.ports))
	for _, p := range m.ports {
		ports = append(ports, p)
	}
	return ports
}

// metrics reads the counters when it is scraped, so that traffic never waits
// for it and a removed port leaves no series behind.
type metrics struct{ mode *Mode }

var (
	portLabels = []string{"namespace", "service", "port"}

	descConnections = portDesc("connections_total", "New connections, for UDP new flows, to a service port.")
	descActive      = portDesc("active_connections", "Connections and flows being carried.")
	descBytesIn     = portDesc("received_bytes_total", "Bytes that came from clients.")
	descBytesOut    = portDesc("sent_bytes_total", "Bytes that went to clients.")
	descRetries     = portDesc("retries_total", "Attempts at a further endpoint after one did not answer.")
	descFailures    = portDesc("failures_total", "Connections for which no endpoint answered.")
	descRejected    = portDesc("rejected_total", "Connections turned away by a traffic policy or source range.")
)

func portDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("proxima_userspace_"+name, help, portLabels, nil)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descConnections, descActive, descBytesIn, descBytesOut, descRetries, descFailures, descRejected,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, p := range m.mode.servicePorts() {
		labels := []string{p.name.Namespace, p.name.Name, p.name.Port}
		count := func(d *prometheus.Desc, n uint64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
		}
		c := &p.counters
		n := c.snapshot()
		count(descConnections, n.Connections)
		to <- prometheus.MustNewConstMetric(descActive, prometheus.GaugeValue, float64(c.active.Load()), labels...)
		count(descBytesIn, n.BytesIn)
		count(descBytesOut, n.BytesOut)
		count(descRetries, n.Retries)
		count(descFailures, n.Failures)
		count(descRejected, c.rejected.Load())
	}
}

package userspace

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// counters of one service port.
type counters struct {
	connections, bytesIn, bytesOut, retries, failures, rejected atomic.Uint64
	active                                                      atomic.Int64
}

func (c *counters) snapshot() proxy.Counts {
	return proxy.Counts{
		Connections: c.connections.Load(),
		BytesIn:     c.bytesIn.Load(),
		BytesOut:    c.bytesOut.Load(),
		Retries:     c.retries.Load(),
		Failures:    c.failures.Load(),
	}
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
	m.mode.mu.Lock()
	ports := make([]*servicePort, 0, len(m.mode.ports))
	for _, p := range m.mode.ports {
		ports = append(ports, p)
	}
	m.mode.mu.Unlock()
	for _, p := range ports {
		labels := []string{p.name.Namespace, p.name.Name, p.name.Port}
		count := func(d *prometheus.Desc, v *atomic.Uint64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v.Load()), labels...)
		}
		c := &p.counters
		count(descConnections, &c.connections)
		to <- prometheus.MustNewConstMetric(descActive, prometheus.GaugeValue, float64(c.active.Load()), labels...)
		count(descBytesIn, &c.bytesIn)
		count(descBytesOut, &c.bytesOut)
		count(descRetries, &c.retries)
		count(descFailures, &c.failures)
		count(descRejected, &c.rejected)
	}
}

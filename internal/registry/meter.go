package registry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Meters count what the servers of registries do, for metrics and "proxima registry status". Make
// them with NewMeters. Safe for concurrent use.
type Meters struct {
	clients  *prometheus.GaugeVec
	requests *prometheus.CounterVec
	pushes   *prometheus.CounterVec
	lag      *prometheus.HistogramVec
	metadata *prometheus.CounterVec
	moved    *prometheus.CounterVec
	nodes    *prometheus.GaugeVec
	bytes    *prometheus.GaugeVec
	quota    *prometheus.GaugeVec

	mu    sync.Mutex
	state map[Protocol]*Status
}

// Status of a protocol's server in one instance of the control plane.
type Status struct {
	Protocol Protocol `json:"protocol"`
	// Address on which it listens.
	Address string `json:"address,omitempty"`
	// Clients that are connected, or whose leases run.
	Clients int `json:"clients"`
	// Limit of connections that are open at a time; 0: not known.
	Limit int `json:"limit,omitempty"`
	// Sessions that keep instances alive.
	Sessions int `json:"sessions"`
	// Instances that are registered by the protocol, at any instance of the control plane.
	Instances int `json:"instances"`
	// Imported are those of them that are copies, by the registry that they are from.
	Imported map[string]int `json:"imported,omitempty"`
	// Requests that failed, of all, and changes that clients were told of.
	Requests uint64 `json:"requests"`
	Failed   uint64 `json:"failed"`
	Pushes   uint64 `json:"pushes"`
	// LastLagSeconds is how long after a change in the tables the last client was told of it.
	LastLagSeconds float64 `json:"lastLagSeconds"`
	// Nodes that clients of ZooKeeper have beside instances and configuration; nil: they have none (--zookeeper-extra-quota).
	Nodes *Nodes `json:"nodes,omitempty"`
}

// Nodes are those of a tree that clients write beside instances and configuration, at all instances of the control plane.
type Nodes struct {
	Count int `json:"count"`
	// Bytes that count for the Quota.
	Bytes int64 `json:"bytes"`
	Quota int64 `json:"quotaBytes"`
}

// NewMeters makes them, and registers their metrics.
func NewMeters(r prometheus.Registerer) *Meters {
	m := &Meters{
		state: map[Protocol]*Status{},
		clients: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxima_registry_clients", Help: "Clients of a registry protocol that are connected here, or whose leases run.",
		}, []string{"protocol"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_registry_requests_total", Help: "Requests of registry clients, by outcome: ok or failed.",
		}, []string{"protocol", "outcome"}),
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_registry_pushes_total", Help: "Changes that registry clients were told of.",
		}, []string{"protocol"}),
		lag: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "proxima_registry_push_seconds", Help: "From a change in the tables to the message to a client.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"protocol"}),
		metadata: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_registry_metadata_fetches_total", Help: "Providers of Dubbo that were asked for the metadata of their revision, by outcome: ok or failed.",
		}, []string{"outcome"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxima_registry_moved_clients_total", Help: "Registry clients that were asked to connect to an instance of the control plane with fewer of them.",
		}, []string{"protocol"}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxima_registry_nodes", Help: "Nodes that registry clients have beside instances and configuration.",
		}, []string{"protocol"}),
		bytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxima_registry_node_bytes", Help: "Bytes of these nodes, as they count for their quota.",
		}, []string{"protocol"}),
		quota: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxima_registry_node_quota_bytes", Help: "Quota of these nodes.",
		}, []string{"protocol"}),
	}
	if r != nil {
		r.MustRegister(m.clients, m.requests, m.pushes, m.lag, m.metadata, m.moved, m.nodes, m.bytes, m.quota)
	}
	return m
}

func (m *Meters) of(p Protocol) *Status {
	s := m.state[p]
	if s == nil {
		s = &Status{Protocol: p}
		m.state[p] = s
	}
	return s
}

// Listens notes where a protocol is served.
func (m *Meters) Listens(p Protocol, address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.of(p); s.Address == "" { // the first one, by which clients are configured
		s.Address = address
	}
}

// Limit notes how many connections of a protocol are open at a time, at most.
func (m *Meters) Limit(p Protocol, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(p).Limit = n
}

// Client counts a client that came (1) or left (-1).
func (m *Meters) Client(p Protocol, n int) {
	m.clients.WithLabelValues(string(p)).Add(float64(n))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(p).Clients += n
}

// Request counts a request, and whether it failed by the client's fault or ours.
func (m *Meters) Request(p Protocol, err error) {
	m.requests.WithLabelValues(string(p), outcomeOf(err)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(p)
	s.Requests++
	if err != nil {
		s.Failed++
	}
}

func outcomeOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// Metadata counts a provider of Dubbo that was asked for its metadata.
func (m *Meters) Metadata(err error) { m.metadata.WithLabelValues(outcomeOf(err)).Inc() }

// Moved counts a client that was asked to connect to another instance of the control plane.
func (m *Meters) Moved(p Protocol) { m.moved.WithLabelValues(string(p)).Inc() }

// Nodes notes what clients have beside instances and configuration.
func (m *Meters) Nodes(p Protocol, n Nodes) {
	m.nodes.WithLabelValues(string(p)).Set(float64(n.Count))
	m.bytes.WithLabelValues(string(p)).Set(float64(n.Bytes))
	m.quota.WithLabelValues(string(p)).Set(float64(n.Quota))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(p).Nodes = &n
}

// Push counts a change that a client was told of, after a time.
func (m *Meters) Push(p Protocol, after time.Duration) {
	m.pushes.WithLabelValues(string(p)).Inc()
	m.lag.WithLabelValues(string(p)).Observe(after.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(p)
	s.Pushes++
	s.LastLagSeconds = after.Seconds()
}

// Status of the protocols that are served, in order of their names.
func (c *Core) Status() []Status {
	c.Meters.mu.Lock()
	var out []Status
	for _, p := range []Protocol{Eureka, Nacos, ZooKeeper} {
		if s := c.Meters.state[p]; s != nil {
			out = append(out, *s)
		}
	}
	c.Meters.mu.Unlock()
	count := c.Index.Count()
	for i := range out {
		out[i].Sessions, out[i].Instances = c.Registrar.Sessions(out[i].Protocol), count[out[i].Protocol]
		out[i].Imported = c.Index.Imported(out[i].Protocol)
	}
	return out
}

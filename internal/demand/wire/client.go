package wire

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// timeout of one report; the next attempt is at the next interval.
const timeout = 5 * time.Second

// ClientConfig configures a Client.
type ClientConfig struct {
	// Conn reaches the control plane. It stays the caller's.
	Conn grpc.ClientConnInterface
	// Node is this node's name, Zone returns its topology zone as far as it is known.
	Node string
	Zone func() locality.Zone
	// Counter is the mode. It is read from Start on (nil: at once), as the counters of the
	// first read are where counting begins.
	Counter proxy.Counter
	Start   <-chan struct{}
	// Accountant counts bytes and open connections by destination; nil: nothing does.
	Accountant proxy.Accountant
	// Source as in demand.NewMeter.
	Source func(proxy.PortName) proxy.PortName
	// File keeps what was counted and not delivered when Run ends, for the next process of
	// the agent; empty: it is lost. Its folder must exist.
	File   string
	Logger *slog.Logger // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Client reports a mode's traffic. Make it with NewClient.
type Client struct {
	config  ClientConfig
	service demandv1.DemandClient
	meter   *demand.Meter // of the goroutine of Run alone, as left
	left    left

	mu     sync.Mutex
	status Status
}

// Status describes a Client.
type Status struct {
	demand.MeterStats
	// Acknowledged reports, and attempts that failed.
	Acknowledged, Failed uint64
	// LastAcknowledged is when; zero: none was.
	LastAcknowledged time.Time
	// LastError is why the newest attempt failed; nil: it did not.
	LastError error
}

// NewClient makes a client.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	client := &Client{
		config: c, service: demandv1.NewDemandClient(c.Conn), meter: demand.NewMeter(c.Node, rand.Text(), c.Source), left: left{path: c.File},
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(client)
	}
	return client
}

// Status returns the state of the connection. Safe at any time.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Run reports until ctx ends, and returns nil then. Failures are logged once, and
// again when they are over. Call it once.
func (c *Client) Run(ctx context.Context) error {
	if c.config.Start != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-c.config.Start:
		}
	}
	if err := c.left.read(c.config.Node); err != nil {
		c.config.Logger.Warn("what an earlier process of this agent counted and did not report can't be read, and is lost", "file", c.config.File, "error", err)
	}
	c.read()
	// Agents that start together do not report together.
	timer := time.NewTimer(time.Duration(1 + mathrand.Int64N(int64(demand.Interval))))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.leave()
			return nil
		case <-timer.C:
		}
		timer.Reset(demand.Interval)
		c.read()
		c.deliver(ctx)
	}
}

// leave what is not delivered to the next process.
func (c *Client) leave() {
	if c.config.File == "" {
		return
	}
	c.read()
	if err := c.left.keep(c.meter, func() *demand.Report { return c.meter.Next(c.config.Zone()) }); err != nil {
		c.config.Logger.Warn("what was counted and not reported can't be written, and is lost", "file", c.config.File, "error", err)
	}
}

func (c *Client) read() {
	c.meter.Read(time.Now(), c.config.Counter.Counts())
	if c.config.Accountant != nil {
		c.meter.ReadExchanges(c.config.Accountant.Exchanges())
	}
}

// deliver sends what is to be sent: after an outage that is the report that was left
// over, and one of all that was counted since.
func (c *Client) deliver(ctx context.Context) {
	if err := c.left.deliver(ctx, c.service); err != nil {
		c.config.Logger.Debug("what an earlier process of this agent counted is not reported yet", "error", err)
	}
	for {
		r := c.meter.Next(c.config.Zone())
		if r == nil {
			return
		}
		err := c.send(ctx, r)
		if ctx.Err() != nil {
			return
		}
		c.note(r, err)
		if err != nil {
			return
		}
	}
}

// send returns nil if the report need not be sent again.
func (c *Client) send(ctx context.Context, r *demand.Report) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := c.service.Report(ctx, encode(r))
	switch {
	case status.Code(err) == codes.InvalidArgument:
		// Repeating it would block all that come after.
		lost := c.meter.Drop()
		return fmt.Errorf("report %d was refused, %d connections are not counted: %w", r.Sequence, lost, err)
	case err != nil:
		return fmt.Errorf("report %d: %w", r.Sequence, err)
	case !c.meter.Acknowledge(response.GetSequence()):
		return fmt.Errorf("report %d: answered as %d", r.Sequence, response.GetSequence())
	}
	return nil
}

func (c *Client) note(r *demand.Report, err error) {
	c.mu.Lock()
	before := c.status.LastError
	c.status.MeterStats, c.status.LastError = c.meter.Stats(), err
	if err != nil {
		c.status.Failed++
	} else {
		c.status.Acknowledged++
		c.status.LastAcknowledged = time.Now()
	}
	c.mu.Unlock()
	switch {
	case err != nil && (before == nil || status.Code(before) != status.Code(err)):
		c.config.Logger.Warn("demand not reported, it is kept for the next report", "error", err)
	case err == nil && before != nil:
		c.config.Logger.Info("demand is reported again", "sequence", r.Sequence, "covers", r.Elapsed)
	}
}

var (
	descReports = prometheus.NewDesc("proxima_demand_client_reports_total", "Reports of demand to the control plane, by outcome.",
		[]string{"outcome"}, nil)
	descAge = prometheus.NewDesc("proxima_demand_client_last_acknowledged_timestamp_seconds",
		"When a report was last acknowledged; 0: never.", nil, nil)
	descPending = prometheus.NewDesc("proxima_demand_client_pending_service_ports",
		"Service ports whose traffic waits for a report.", nil, nil)
	descDropped = prometheus.NewDesc("proxima_demand_client_dropped_connections_total",
		"Connections that were given up without being reported.", nil, nil)
	descRestart = prometheus.NewDesc("proxima_demand_client_resets_total",
		"Service ports whose counters started from zero between two reads.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Client) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descReports, descAge, descPending, descDropped, descRestart} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Client) Collect(to chan<- prometheus.Metric) {
	s := c.Status()
	value := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	at := 0.0
	if !s.LastAcknowledged.IsZero() {
		at = float64(s.LastAcknowledged.UnixMilli()) / 1000
	}
	value(descReports, prometheus.CounterValue, float64(s.Acknowledged), "acknowledged")
	value(descReports, prometheus.CounterValue, float64(s.Failed), "failed")
	value(descAge, prometheus.GaugeValue, at)
	value(descPending, prometheus.GaugeValue, float64(s.Pending))
	value(descDropped, prometheus.CounterValue, float64(s.Dropped))
	value(descRestart, prometheus.CounterValue, float64(s.Restarts))
}

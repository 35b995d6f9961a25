package account

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// Period between two dumps. It stays below 120 s, for which the kernel keeps a closed
	// connection in TIME_WAIT (nf_conntrack_tcp_timeout_time_wait): each is seen once.
	Period = 60 * time.Second
	// longest period. Where the share of a core below asks for more, a part is read.
	longest = 100 * time.Second
	// perCPU: a dump takes at most 1 % of a core.
	perCPU = 100
	// slack of the sample: so much more is read, so that flows that come into the sample
	// from beyond it are known.
	slack = 0.25
	// countEvery so many dumps of a sample the whole table is read, which shows what part
	// the sample is.
	countEvery = 30
	// compactEvery so many dumps, service ports that are gone are forgotten.
	compactEvery = 60
	// notable part of the bytes that is estimated; below it they count as measured.
	notable = 0.01
)

// Table is the connection tracking table; a *conntrack.Reader is one.
type Table interface {
	Dump(ctx context.Context, limit int, each func(*conntrack.Entry)) (conntrack.Dump, error)
	Accounting() (was bool, err error)
	Counting() (bool, error)
	Tracked() (int, error)
	Life() (uint64, error)
}

// Config of a Counter.
type Config struct {
	// Table to read, and Directory of whose flows they are.
	Table     Table
	Directory *Directory
	// Connections are the mode's exact counters.
	Connections proxy.Counter
	// Start is closed when the mode has its whole state; nil: it has it.
	Start <-chan struct{}
	// File keeps the flows for the next process; empty: none does.
	File string
	// Leave the kernel's setting: bytes are counted only if it counts them already.
	Leave  bool
	Logger *slog.Logger // nil: silence
	// Registerer of metrics; nil: none.
	Registerer prometheus.Registerer
}

// Counter reads the table and counts. It implements proxy.Accountant, whose method is safe
// for concurrent use.
type Counter struct {
	config Config
	log    *slog.Logger
	ledger *Ledger // of Run
	sample sample
	dumps  uint64
	broken bool // the last dump failed

	mu      sync.Mutex
	rows    []Row
	state   proxy.Accounting
	metrics metrics
}

// sample is which part of the table is read.
type sample struct {
	// limit of flows; 0: all are read.
	limit int
	// whole is how many translated flows there were when all were read, of tracked ones.
	whole, tracked int
}

// NewCounter makes a counter, which does nothing until Run.
func NewCounter(c Config) *Counter {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails
	hash := [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:]) | 1}
	counter := &Counter{
		config: c, log: c.Logger, ledger: NewLedger(hash, c.Directory),
		state: proxy.Accounting{Quality: proxy.Unavailable, Reason: "the connection tracking table was not read yet"},
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(counter)
	}
	return counter
}

// Exchanges implements proxy.Accountant.
func (c *Counter) Exchanges() (proxy.Accounting, iter.Seq2[proxy.PortName, proxy.Exchange]) {
	c.mu.Lock()
	rows, state := c.rows, c.state
	c.mu.Unlock()
	return state, func(yield func(proxy.PortName, proxy.Exchange) bool) {
		for i := range rows {
			if !yield(rows[i].Port, rows[i].Exchange) {
				return
			}
		}
	}
}

// Run reads until ctx ends, and returns nil then. Failures are logged once, and tried again.
func (c *Counter) Run(ctx context.Context) error {
	if c.config.Start != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-c.config.Start:
		}
	}
	if !c.prepare() {
		<-ctx.Done()
		return nil
	}
	life := c.restore()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		begin := time.Now()
		d, err := c.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.config.Directory.Age()
		if err == nil {
			c.publish(begin, last, d)
			last = begin
			c.save(life)
		}
		c.note(err)
		timer.Reset(max(0, c.period(d)-time.Since(begin)))
	}
}

// prepare the kernel. It returns false if bytes cannot be counted.
func (c *Counter) prepare() bool {
	var err error
	on := false
	if c.config.Leave {
		if on, err = c.config.Table.Counting(); err == nil && !on {
			c.unavailable("--accounting=off, and the kernel does not count by itself (net.netfilter.nf_conntrack_acct is 0)")
			return false
		}
	} else {
		_, err = c.config.Table.Accounting()
	}
	if err == nil {
		return true
	}
	reason := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		reason = "the kernel tracks no connections (nf_conntrack is not loaded)"
	}
	c.unavailable(reason)
	return false
}

func (c *Counter) unavailable(reason string) {
	c.log.Info("bytes and open connections are not counted", "reason", reason)
	c.config.Directory.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows, c.state = nil, proxy.Accounting{Quality: proxy.Unavailable, Reason: reason}
}

// restore flows of the process before. 0: they are not kept.
func (c *Counter) restore() (life uint64) {
	if c.config.File == "" {
		return 0
	}
	life, err := c.config.Table.Life()
	if err != nil {
		c.log.Warn("flows are not kept for the next start", "error", err)
		return 0
	}
	ok, err := c.ledger.Restore(c.config.File, life)
	if err != nil {
		c.log.Warn("flows of the last run are not known; what they carried until now is not counted", "error", err)
	}
	if ok {
		c.log.Info("counting goes on from the last run", "flows", c.ledger.Len())
	}
	return life
}

func (c *Counter) save(life uint64) {
	if life == 0 {
		return
	}
	if err := c.ledger.Save(c.config.File, life); err != nil {
		c.log.Warn("flows are not kept for the next start", "error", err)
	}
}

// read the table once.
func (c *Counter) read(ctx context.Context) (d conntrack.Dump, err error) {
	limit, scale := c.plan()
	read := limit
	if limit > 0 {
		read += int(float64(limit) * slack)
		if c.dumps%countEvery == 0 {
			read = 0
		}
	}
	c.dumps++
	c.ledger.Begin(scale)
	n := 0
	d, err = c.config.Table.Dump(ctx, read, func(e *conntrack.Entry) {
		n++
		c.ledger.Add(e, limit == 0 || n <= limit)
	})
	if err != nil {
		return d, err
	}
	if d.Whole {
		c.sample.whole = d.Flows
		c.sample.tracked, _ = c.config.Table.Tracked() // 0: the ratio is not known
	}
	c.ledger.End(d.Whole || limit > 0 && d.Flows >= limit, c.connections())
	if c.dumps%compactEvery == 0 {
		c.ledger.Compact(c.config.Directory.Has)
	}
	return d, nil
}

// plan what of the table is read: a limit of flows, 0 for all, and by how much they stand
// for the others.
func (c *Counter) plan() (limit int, scale float64) {
	if c.sample.limit == 0 {
		return 0, 1
	}
	whole := float64(c.sample.whole)
	if now, err := c.config.Table.Tracked(); err == nil && c.sample.tracked > 0 {
		whole *= float64(now) / float64(c.sample.tracked)
	}
	return c.sample.limit, max(1, whole/float64(c.sample.limit))
}

// period until the next dump, by the CPU time of this one.
func (c *Counter) period(d conntrack.Dump) time.Duration {
	wanted := perCPU * d.CPU
	if wanted <= longest || d.Flows == 0 {
		if c.sample.limit > 0 && 2*wanted < longest && d.Whole {
			c.sample.limit = 0
		}
		return max(Period, wanted)
	}
	if c.sample.limit == 0 {
		c.log.Info("the connection tracking table is too large to be read as a whole, a sample of it is", "flows", d.Flows, "cpu", d.CPU)
	}
	c.sample.limit = max(1, int(float64(d.Flows)*float64(longest)/float64(wanted)/(1+slack)))
	return longest
}

// connections counted by the mode, of ports that have endpoints: others are refused.
func (c *Counter) connections() iter.Seq2[proxy.PortName, uint64] {
	return func(yield func(proxy.PortName, uint64) bool) {
		for name, n := range c.config.Connections.Counts() {
			if c.config.Directory.Serves(name) && !yield(name, n.Connections) {
				return
			}
		}
	}
}

// publish what was counted.
func (c *Counter) publish(now, last time.Time, d conntrack.Dump) {
	rows := c.ledger.Exchanges(make([]Row, 0, len(c.rows)+8))
	state := proxy.Accounting{Quality: proxy.Measured}
	guessed, uncounted := c.ledger.Guessed(), c.ledger.Uncounted()
	switch {
	case c.sample.limit > 0 && d.Flows > 0:
		state.Quality = proxy.Estimated
		state.Reason = fmt.Sprintf("only a sample of %d connections is read", c.sample.limit)
	case uncounted > 0:
		state.Quality = proxy.Estimated
		state.Reason = fmt.Sprintf("%d connections are older than the kernel's counting of bytes", uncounted)
	case guessed > notable:
		state.Quality = proxy.Estimated
		state.Reason = fmt.Sprintf("%.1f %% of the bytes are those of connections that ended unseen, at the mean of others", 100*guessed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	state.Covered = c.state.Covered
	if !last.IsZero() {
		state.Covered += now.Sub(last)
	}
	c.rows, c.state = rows, state
	c.metrics = metrics{
		dumps: c.metrics.dumps + 1, cpu: c.metrics.cpu + d.CPU, flows: c.ledger.Len(), guessed: guessed, failures: c.metrics.failures,
	}
}

// note the outcome of a dump.
func (c *Counter) note(err error) {
	if err != nil {
		c.mu.Lock()
		c.metrics.failures++
		c.mu.Unlock()
		if !c.broken {
			c.log.Warn("bytes and open connections could not be read, trying again", "error", err)
		}
	} else if c.broken {
		c.log.Info("bytes and open connections are read again")
	}
	c.broken = err != nil
}

// metrics of a Counter.
type metrics struct {
	dumps, failures uint64
	cpu             time.Duration
	flows           int
	guessed         float64
}

var (
	descDumps = prometheus.NewDesc("proxima_accounting_reads_total",
		"Readings of the kernel's connection tracking table, by outcome.", []string{"outcome"}, nil)
	descCPU = prometheus.NewDesc("proxima_accounting_read_cpu_seconds_total",
		"Processor time of readings of the connection tracking table.", nil, nil)
	descFlows = prometheus.NewDesc("proxima_accounting_flows", "Translated flows at the last reading.", nil, nil)
	descError = prometheus.NewDesc("proxima_accounting_estimated_ratio",
		"Share of the bytes of the last readings that was estimated, as their connections ended unseen.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Counter) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDumps, descCPU, descFlows, descError} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Counter) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	m := c.metrics
	c.mu.Unlock()
	to <- prometheus.MustNewConstMetric(descDumps, prometheus.CounterValue, float64(m.dumps), "read")
	to <- prometheus.MustNewConstMetric(descDumps, prometheus.CounterValue, float64(m.failures), "failed")
	to <- prometheus.MustNewConstMetric(descCPU, prometheus.CounterValue, m.cpu.Seconds())
	to <- prometheus.MustNewConstMetric(descFlows, prometheus.GaugeValue, float64(m.flows))
	to <- prometheus.MustNewConstMetric(descError, prometheus.GaugeValue, m.guessed)
}

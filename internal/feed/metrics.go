package feed

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

type collector struct {
	feed                                         *Feed
	entries, bytes, segments, last, complete, up *prometheus.Desc
	rootBytes, rootUp                            *prometheus.Desc
	offloaded, pending, offloadUp                *prometheus.Desc
}

func newCollector(f *Feed) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("proxima_feed_"+name, help, labels, nil)
	}
	return &collector{
		feed:      f,
		entries:   desc("entries", "Changes that the change feed has."),
		bytes:     desc("bytes", "Size of the segments of the change feed in bytes, counted once for all copies."),
		segments:  desc("segments", "Segments of the change feed."),
		last:      desc("last_position", "Position of the newest change in the change feed."),
		complete:  desc("complete_position", "Revision of the store up to which the change feed has all changes."),
		up:        desc("up", "1 if changes are written to the change feed, 0 if they wait in the history of the store."),
		rootBytes: desc("root_bytes", "Size of the segments at a root of the change feed in bytes.", "root"),
		rootUp:    desc("root_up", "1 if a root of the change feed takes segments, else 0.", "root"),
		offloaded: desc("offloaded_segments", "Segments of this store at the target of --feed-offload."),
		pending:   desc("offload_pending_segments", "Sealed segments that are not yet at the target of --feed-offload."),
		offloadUp: desc("offload_up", "1 if segments are offloaded to the target of --feed-offload, 0 if that fails."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.entries, c.bytes, c.segments, c.last, c.complete, c.up, c.rootBytes, c.rootUp, c.offloaded, c.pending, c.offloadUp} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var entries, bytes int64
	segments := c.feed.Log.Segments()
	for i := range segments {
		entries += segments[i].Entries
		bytes += segments[i].Bytes
	}
	last, complete := c.feed.Log.End()
	gauge(c.entries, float64(entries))
	gauge(c.bytes, float64(bytes))
	gauge(c.segments, float64(len(segments)))
	gauge(c.last, float64(last))
	gauge(c.complete, float64(complete))
	c.feed.mu.Lock()
	ok := c.feed.problem == nil
	c.feed.mu.Unlock()
	gauge(c.up, one(ok))
	for _, r := range c.feed.Log.Roots() {
		gauge(c.rootBytes, float64(r.Bytes), r.Dir)
		gauge(c.rootUp, one(r.Problem == ""), r.Dir)
	}
	if o := c.feed.offloadStatus(segments); o != nil {
		gauge(c.offloaded, float64(o.Segments))
		gauge(c.pending, float64(o.Pending))
		gauge(c.offloadUp, one(o.Problem == ""))
	}
}

func newChanges() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "proxima_feed_changes_total", Help: "Changes that were written to the change feed, by resource and operation (create, update, delete).",
	}, []string{"resource", "operation"})
}

// count changes that were written.
func (f *Feed) count(entries []*seglog.Entry) {
	if f.cfg.ResourceOf == nil {
		return
	}
	for _, e := range entries {
		operation := "update"
		switch {
		case e.Kind == seglog.Delete:
			operation = "delete"
		case e.Prev == 0:
			operation = "create"
		}
		f.changes.WithLabelValues(f.cfg.ResourceOf(e.Key), operation).Inc()
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var _ prometheus.Collector = (*collector)(nil)

package mirror

import "github.com/prometheus/client_golang/prometheus"

var (
	descInstances = prometheus.NewDesc("proxima_mirror_instances",
		"Instances that are registered in a registry that is mirrored, without copies; registry: old or here.", []string{"registry"}, nil)
	descCopies = prometheus.NewDesc("proxima_mirror_copies",
		"Copies that the mirror has published in a registry; registry: old or here.", []string{"registry"}, nil)
	descWaiting = prometheus.NewDesc("proxima_mirror_services_waiting",
		"Services whose copies are not published yet, or not as they should be.", nil, nil)
	descSkipped = prometheus.NewDesc("proxima_mirror_instances_not_copied",
		"Instances that the other registry cannot have.", nil, nil)
	descChanges = prometheus.NewDesc("proxima_mirror_changes_total",
		"How often copies of a service were changed.", nil, nil)
	descLag = prometheus.NewDesc("proxima_mirror_last_change_lag_seconds",
		"How long after the change in the other registry copies were changed the last time.", nil, nil)
	descEntries = prometheus.NewDesc("proxima_mirror_entries",
		"Entries of the configuration; state: alike in both registries, waiting to be, or not_copied as they cannot be.", []string{"state"}, nil)
	descEntryWrites = prometheus.NewDesc("proxima_mirror_entry_writes_total",
		"How often an entry was written in a registry; registry: old or here.", []string{"registry"}, nil)
	descEntryRemovals = prometheus.NewDesc("proxima_mirror_entry_removals_total",
		"How often an entry was removed in either registry, as it was in the other.", nil, nil)
	descEntryConflicts = prometheus.NewDesc("proxima_mirror_entry_conflicts_total",
		"How often an entry was written over that was not known to be older.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Mirror) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, to) }

// Collect implements prometheus.Collector: what Status says.
func (m *Mirror) Collect(to chan<- prometheus.Metric) {
	s := m.Status()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	const old, here = "old", "here"
	gauge(descInstances, float64(s.Old), old)
	gauge(descInstances, float64(s.Here), here)
	gauge(descCopies, float64(s.Exported), old)
	gauge(descCopies, float64(s.Imported), here)
	gauge(descWaiting, float64(s.Waiting))
	gauge(descSkipped, float64(s.Skipped))
	counter(descChanges, s.Published)
	gauge(descLag, s.LastLag.Seconds())
	if m.entries == nil {
		return
	}
	gauge(descEntries, float64(s.Entries), "alike")
	gauge(descEntries, float64(s.EntriesWaiting), "waiting")
	gauge(descEntries, float64(s.EntriesSkipped), "not_copied")
	counter(descEntryWrites, s.EntriesExported, old)
	counter(descEntryWrites, s.EntriesImported, here)
	counter(descEntryRemovals, s.EntriesRemoved)
	counter(descEntryConflicts, s.EntryConflicts)
}

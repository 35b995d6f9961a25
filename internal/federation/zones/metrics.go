package zones

import (
	"github.com/prometheus/client_golang/prometheus"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

var (
	onlineDesc = prometheus.NewDesc("proxima_zone_online",
		"Whether a zone that has connected to this instance is online.", []string{"zone"}, nil)
	objectsDesc = prometheus.NewDesc("proxima_zone_objects",
		"Objects of a zone that global has, by type.", []string{"zone", "type"}, nil)
	heldDesc = prometheus.NewDesc("proxima_zone_held_deletions",
		"Deletions that wait for a confirmation, by type.", []string{"zone", "type"}, nil)
	refusedDesc = prometheus.NewDesc("proxima_zone_refused_objects",
		"Objects that the receiver refused or cannot apply yet, by type and direction.", []string{"zone", "type", "direction"}, nil)
	lagDesc = prometheus.NewDesc("proxima_zone_sync_lag_seconds",
		"Time from when global had a change for a zone until the zone confirmed that its store has it; not of what a connection begins with.", []string{"zone"}, nil)
)

// Describe implements prometheus.Collector.
func (z *Zones) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{onlineDesc, objectsDesc, heldDesc, refusedDesc, lagDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (z *Zones) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range z.global.Status() {
		z.mu.Lock()
		p := z.peers[s.Zone]
		z.mu.Unlock()
		online := 0.0
		if s.Online && p != nil {
			online = 1
		}
		gauge(onlineDesc, online, s.Zone)
		to <- prometheus.MustNewConstHistogram(lagDesc, s.Link.Count, s.Link.Sum, s.Link.Buckets, s.Zone)
		if p == nil {
			continue
		}
		for _, t := range z.types(p, s) {
			gauge(refusedDesc, float64(len(t.Refused)), s.Zone, t.Type, t.Direction)
			if t.Direction == meshv1alpha1.SyncToGlobal {
				gauge(objectsDesc, float64(t.Objects), s.Zone, t.Type)
				gauge(heldDesc, float64(t.Held), s.Zone, t.Type)
			}
		}
	}
}

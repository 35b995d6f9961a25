package workload

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status of one certificate.
type Status struct {
	// Subject as its String writes it.
	Subject string `json:"subject"`
	// ID is the SPIFFE ID.
	ID   string `json:"id"`
	Mesh string `json:"mesh,omitempty"`
	// NotBefore, NotAfter and RenewAt are zero if there is none.
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	RenewAt   time.Time `json:"renewAt,omitzero"`
	// Issuer is the ID of the authority that signed it.
	Issuer string `json:"issuer,omitempty"`
	// Problem is why the last request failed; empty: it did not.
	Problem string `json:"problem,omitempty"`
}

// Missing reports whether there is no certificate that holds.
func (s Status) Missing(now time.Time) bool { return !now.Before(s.NotAfter) }

// Ending reports whether less than a quarter of a certificate's life is left: it should
// have been renewed long ago.
func (s Status) Ending(now time.Time) bool {
	return now.After(s.NotAfter.Add(-s.NotAfter.Sub(s.NotBefore) / 4))
}

// Status of all certificates of meshes that issue some, ordered by subject.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Status
	for subject, e := range m.entries {
		b := m.bundleLocked(e.id)
		if e.svid == nil && (b == nil || b.Issuer == "") {
			continue // the mesh has no mTLS
		}
		s := Status{Subject: subject.String(), ID: e.id.String(), Issuer: e.issuer}
		if b != nil {
			s.Mesh = b.Mesh
		}
		if e.svid != nil {
			leaf := e.svid.Leaf()
			s.NotBefore, s.NotAfter, s.RenewAt = leaf.NotBefore, leaf.NotAfter, RenewAt(leaf)
		}
		if e.problem != nil {
			s.Problem = e.problem.Error()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Subject, b.Subject) })
	return out
}

var (
	descCertificates = prometheus.NewDesc("proxima_mesh_certificates",
		"Certificates of this node's workloads and of the node itself, by state: valid, ending (less than a quarter of the life is left) "+
			"or missing (none, or expired).", []string{"state"}, nil)
	descEnd = prometheus.NewDesc("proxima_mesh_certificate_expiry_timestamp_seconds",
		"When the first of this node's mesh certificates expires, as Unix time; 0: there is none.", nil, nil)
	descFailures = prometheus.NewDesc("proxima_mesh_certificate_failures_total",
		"Requests for certificates of workloads and of the node that failed.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(to chan<- *prometheus.Desc) {
	to <- descCertificates
	to <- descEnd
	to <- descFailures
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(to chan<- prometheus.Metric) {
	now := m.config.Now()
	count := map[string]int{"valid": 0, "ending": 0, "missing": 0}
	var end time.Time
	for _, s := range m.Status() {
		switch {
		case s.Missing(now):
			count["missing"]++
			continue
		case s.Ending(now):
			count["ending"]++
		default:
			count["valid"]++
		}
		if end.IsZero() || s.NotAfter.Before(end) {
			end = s.NotAfter
		}
	}
	for state, n := range count {
		to <- prometheus.MustNewConstMetric(descCertificates, prometheus.GaugeValue, float64(n), state)
	}
	at := 0.0
	if !end.IsZero() {
		at = float64(end.Unix())
	}
	m.mu.Lock()
	failures := m.failures
	m.mu.Unlock()
	to <- prometheus.MustNewConstMetric(descEnd, prometheus.GaugeValue, at)
	to <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue, float64(failures))
}

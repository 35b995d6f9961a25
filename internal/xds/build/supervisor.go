package build

import (
	"cmp"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// settingsOf the supervisor of a Dataplane's proxy; empty: nothing is said.
func (b *Builder) settingsOf(key catalog.Key, d *meshv1alpha1.Dataplane) []byte {
	var out wire.SupervisorSettings
	declared := d.Spec.Proxy != nil && d.Spec.Proxy.Metrics != nil
	if declared || b.policies.HasPolicies("WorkloadPolicy") {
		if w, ok := b.policies.Workload(policy.Ref{Kind: "Dataplane", Key: key}); ok {
			out.Metrics = metricsSettings(&w)
		}
	}
	if d.Spec.Proxy != nil {
		for i := range d.Spec.Proxy.Probes {
			out.Probes = append(out.Probes, probeSettings(&d.Spec.Proxy.Probes[i]))
		}
	}
	return out.Append(nil)
}

// metricsSettings by what policies and the Dataplane say; nil: they say nothing. A port that neither
// names is the supervisor's own choice.
func metricsSettings(w *policy.Workload) *wire.MetricsSettings {
	const port = "metrics.port"
	said, portSaid := false, false
	for field := range w.From {
		said = said || field == "metrics" || strings.HasPrefix(field, "metrics.")
		portSaid = portSaid || field == port
	}
	if !said {
		return nil
	}
	m := &w.Metrics
	out := &wire.MetricsSettings{Path: m.Path, MTLS: m.MTLS, Include: m.Include, Exclude: m.Exclude}
	if portSaid && m.Port != nil {
		out.Port = uint16(*m.Port) //nolint:gosec // validation has checked it
	}
	for _, a := range m.Apps {
		out.Apps = append(out.Apps, wire.AppSettings{Name: a.Name, Port: uint16(a.Port), Path: a.Path}) //nolint:gosec // as above
	}
	return out
}

func probeSettings(p *meshv1alpha1.DataplaneProbe) wire.ProbeSettings {
	out := wire.ProbeSettings{Path: p.Path, Kind: "http", Port: uint16(p.Port), Target: cmp.Or(p.TargetPath, p.Service)} //nolint:gosec // as above
	switch p.Type {
	case meshv1alpha1.CheckTCP:
		out.Kind = "tcp"
	case meshv1alpha1.CheckGRPC:
		out.Kind = "grpc"
	}
	return out
}

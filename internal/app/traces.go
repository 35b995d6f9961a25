package app

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/traced"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/tracing/otlp"
	"github.com/proxima-mesh/proxima/internal/version"
)

// TracesConfig is where traces of changes are sent. The zero value: nowhere.
type TracesConfig struct {
	// Endpoint of a collector, which must pass otlp.Check; empty: tracing is off.
	Endpoint string
	// Ratio of changes that a control plane samples, from 0 to 1.
	Ratio float64
}

// traces of a control plane or an agent; nil: tracing is off.
type traces struct {
	recorder *tracing.Recorder
	exporter *otlp.Exporter
	// remote: the objects are in the API of a cluster.
	remote bool
}

// Names of the services in traces.
const planeService, agentService = "proxima-control-plane", "proxima-node"

func newTraces(c TracesConfig, service, instance string, t tracing.Config, registerer prometheus.Registerer, log *slog.Logger) (*traces, error) {
	if c.Endpoint == "" {
		return nil, nil //nolint:nilnil // off, as the comment of the type says
	}
	exporter, err := otlp.New(otlp.Config{
		Endpoint: c.Endpoint, Ratio: c.Ratio, Service: service, Instance: instance, Version: version.Get().Version,
		Logger: log.With("component", "traces"), Registerer: registerer,
	})
	if err != nil {
		return nil, err
	}
	t.Ratio, t.Sink = c.Ratio, exporter.Sink
	return &traces{recorder: tracing.New(t), exporter: exporter, remote: t.Rootless}, nil
}

func (t *traces) tracer() *tracing.Recorder {
	if t == nil {
		return nil
	}
	return t.recorder
}

// wrap the client of controllers.
func (t *traces) wrap(c resource.Client) resource.Client {
	return resource.Wrap(c, traced.Wrapper(traced.Config{Recorder: t.tracer(), Remote: t != nil && t.remote}))
}

func (t *traces) components() []component {
	if t == nil {
		return nil
	}
	return []component{{Name: "traces", Run: t.exporter.Run}}
}

// status for admin; nil: tracing is off.
func (t *traces) status() *tracing.Status {
	if t == nil {
		return nil
	}
	s := t.exporter.Status()
	return &s
}

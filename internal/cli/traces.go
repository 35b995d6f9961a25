package cli

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/tracing/otlp"
)

// defaultTraceSample is the ratio of changes that are traced: of 100 changes a second, one.
const defaultTraceSample = 0.01

// traceFlags are those of traces. Both are of a control plane, the endpoint of an agent, too.
type traceFlags struct {
	endpoint string
	sample   float64
}

func (t *traceFlags) addEndpoint(f *pflag.FlagSet) {
	if f.Lookup("otlp-endpoint") != nil {
		return // of the control plane in the same process
	}
	f.StringVar(&t.endpoint, "otlp-endpoint", "", "collector of OpenTelemetry that gets traces of changes: http(s)://HOST:4318 (OTLP over HTTP) or grpc(s)://HOST:4317; headers and certificates come from OTEL_EXPORTER_OTLP_HEADERS, …_CERTIFICATE; empty: no traces, whatever OTEL_EXPORTER_OTLP_ENDPOINT says")
}

func (t *traceFlags) addSample(f *pflag.FlagSet) {
	f.Float64Var(&t.sample, "trace-sample", defaultTraceSample, "with --otlp-endpoint: the part of changes that are traced, from 0 to 1 (all). All instances of a control plane have the same")
}

func (t *traceFlags) config() (app.TracesConfig, error) {
	if err := tracing.CheckRatio(t.sample); err != nil {
		return app.TracesConfig{}, usagef("--trace-sample %w", err)
	}
	if t.endpoint != "" {
		if err := otlp.Check(t.endpoint); err != nil {
			return app.TracesConfig{}, usagef("--otlp-endpoint %q: %w", t.endpoint, err)
		}
	}
	return app.TracesConfig{Endpoint: t.endpoint, Ratio: t.sample}, nil
}

// tracesText is a line of status.
func tracesText(t *tracing.Status) string {
	text := fmt.Sprintf("%s, %g of the changes, %d spans sent", t.Endpoint, t.Ratio, t.Sent)
	if t.Dropped > 0 {
		text += fmt.Sprintf(", %d lost", t.Dropped)
	}
	if t.Error != "" {
		text += ": " + t.Error
	}
	return text
}

package app

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ServeMetrics serves /metrics of a collector and of the process at an address (HOST:PORT), which a flag gave, until end is
// called; end waits for it. An address that is in use is an error that names the flag.
func ServeMetrics(flag, address string, log *slog.Logger, of prometheus.Collector) (end func(), err error) {
	l, err := listen("metrics", flag, address, maxProbeConnections, log)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(of, goMetrics(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := serve(l, mux)(ctx); err != nil {
			log.Warn("metrics are not served any more", "error", err)
		}
	})
	return func() { cancel(); running.Wait() }, nil
}

// goMetrics of the Go runtime, with go_gc_heap_live_bytes: what the last collection left, which shows a leak where the size of the heap
// goes up and down.
func goMetrics() prometheus.Collector {
	return collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}))
}

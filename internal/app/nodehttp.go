package app

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
)

// listenHTTP opens the ports of health and metrics, if there are to be any.
func (a *agent) listenHTTP() (err error) {
	c := a.cfg
	if c.HealthPort != 0 {
		address := net.JoinHostPort(cmp.Or(c.HealthHost, c.Host), strconv.Itoa(c.HealthPort))
		if a.health, err = listen("health", "--health-port", address, maxProbeConnections, a.log); err != nil {
			return err
		}
	}
	if c.MetricsPort != 0 {
		address := net.JoinHostPort(cmp.Or(c.MetricsHost, c.Host), strconv.Itoa(c.MetricsPort))
		a.metrics, err = listen("metrics", "--metrics-port", address, maxProbeConnections, a.log)
	}
	return err
}

func (a *agent) httpComponents() (out []component) {
	if a.health != nil {
		out = append(out, component{Name: "health", Run: serve(a.health, a.agent.HealthHandler())})
	}
	if a.metrics != nil {
		out = append(out, component{Name: "metrics", Run: serve(a.metrics, a.agent.MetricsHandler(a.registry))})
	}
	return out
}

// serve HTTP on a listener until the context ends.
func serve(l net.Listener, handler http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		srv := listener.HTTPServer(handler)
		stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// registerFeed publishes how the view is followed.
func registerFeed(reg prometheus.Registerer, feed *fromview.Feed) {
	metric := func(name, help string, value func(fromview.FeedStatus) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "proxima", Subsystem: "view", Name: name, Help: help},
			func() float64 { return value(feed.Status()) }))
	}
	metric("connected", "1 while a stream to the control plane is open.", func(s fromview.FeedStatus) float64 {
		if s.Connected {
			return 1
		}
		return 0
	})
	metric("unsaved", "1 while the state on disk lacks the newest changes.", func(s fromview.FeedStatus) float64 {
		if s.Unsaved {
			return 1
		}
		return 0
	})
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: "proxima", Subsystem: "view", Name: "streams_total", Help: "Streams to the control plane that were admitted.",
	}, func() float64 { return float64(feed.Status().Streams) }))
	metric("received_bytes", "Payload received on the present stream, or on the last one.",
		func(s fromview.FeedStatus) float64 { return float64(s.BytesReceived) })
	metric("sent_bytes", "Payload sent on the present stream, or on the last one.",
		func(s fromview.FeedStatus) float64 { return float64(s.BytesSent) })
	metric("rejected_resources", "Resources of the view that this agent could not read.",
		func(s fromview.FeedStatus) float64 { return float64(len(s.Rejected)) })
}

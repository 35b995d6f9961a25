package app

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/listener"
)

// listenHealth opens the port of health; nil: there is to be none.
func (a *agent) listenHealth() (net.Listener, error) {
	c := a.cfg
	if c.HealthPort == 0 {
		return nil, nil //nolint:nilnil // see above
	}
	return listen("health", "--health-port", net.JoinHostPort(cmp.Or(c.HealthHost, c.Host), strconv.Itoa(c.HealthPort)), maxProbeConnections, a.log)
}

// listenHTTP opens the ports of health and metrics, if there are to be any.
func (a *agent) listenHTTP() (err error) {
	c := a.cfg
	if a.health, err = a.listenHealth(); err != nil {
		return err
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
		srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		}
		stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
		defer stop()
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

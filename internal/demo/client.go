package demo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

// Client passes on HTTP requests, each by a connection of its own, to the host that they are
// for, until ctx ends. They come by a Unix socket, so that whoever may use that can call as this
// process, whose connections may be led to a sidecar.
func Client(ctx context.Context, socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", r.In.Host
		},
		Transport: &http.Transport{DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: pass}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

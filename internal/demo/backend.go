package demo

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"time"
)

// answer of the sample service.
type answer struct {
	Name string `json:"name"`
	Zone string `json:"zone,omitempty"`
	PID  int    `json:"pid"`
}

// Backend serves the sample service at some addresses until ctx ends: every
// request is answered with the name, the zone and the process id, as JSON.
func Backend(ctx context.Context, listen []string, name, zone string) error {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // the server has closed those that it served
		}
	}()
	for _, address := range listen {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	body, err := json.Marshal(answer{Name: name, Zone: zone, PID: os.Getpid()})
	if err != nil {
		return err
	}
	srv := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(append(body, '\n'))
		}),
	}
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = srv.Shutdown(grace)
	})
	defer stop()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- srv.Serve(l) }()
	}
	var errs []error
	for range listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
			_ = srv.Close() // one address is not enough
		}
	}
	return errors.Join(errs...)
}

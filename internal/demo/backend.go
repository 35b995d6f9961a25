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
	Zone string `json:"zone"`
	PID  int    `json:"pid"`
}

// Backend serves the sample service until ctx ends: every request is answered
// with the name, the zone and the process id, as JSON.
func Backend(ctx context.Context, listen, name, zone string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
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
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

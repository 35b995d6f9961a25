package app

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/version"
)

// waiting answers for an agent that cannot begin yet: it is alive, it is not healthy, and its status says what it waits for.
// It ends before the agent opens the same ports.
type waiting struct {
	why     atomic.Pointer[string]
	end     context.CancelFunc
	serving sync.WaitGroup
}

// serveWaiting opens the port of health and the socket for local programs.
func (a *agent) serveWaiting() (*waiting, error) {
	w := &waiting{}
	w.set("")
	health, err := a.listenHealth()
	if err != nil {
		return nil, err
	}
	var programs net.Listener
	if a.gateway == nil {
		if programs, err = a.listenLocal(); err != nil {
			if health != nil {
				_ = health.Close()
			}
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+local.AlivePath, func(http.ResponseWriter, *http.Request) {})
	mux.Handle("GET "+local.StatusPath, admin.StatusHandler(func() admin.NodeStatus {
		return admin.NodeStatus{
			Version: version.Get(), PID: os.Getpid(), API: a.api(), Waiting: *w.why.Load(),
			Agent: node.Status{Mode: a.cfg.Mode, Node: node.Facts{Name: a.cfg.Name}},
		}
	}))
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "the agent waits: "+*w.why.Load(), http.StatusServiceUnavailable)
	})
	var ctx context.Context
	ctx, w.end = context.WithCancel(context.Background())
	for l, handler := range map[net.Listener]http.Handler{health: node.StartingHandler(), programs: mux} {
		if l != nil {
			w.serving.Go(func() { _ = serve(l, handler)(ctx) })
		}
	}
	return w, nil
}

// set what the agent waits for.
func (w *waiting) set(why string) { w.why.Store(&why) }

// close ends the answers, and closes the ports.
func (w *waiting) close() {
	if w != nil {
		w.end()
		w.serving.Wait()
	}
}

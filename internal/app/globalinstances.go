package app

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
)

// globalInstances are where a zone reaches the instances of global: the addresses that are
// configured, and those that global has told, which are kept on disk.
type globalInstances struct {
	// configured addresses of the API, the first of --global among them.
	configured []string
	path       string
	log        *slog.Logger

	mu   sync.Mutex
	told []stream.Instance
}

// instancesFile, in the directory of the credentials for global.
const instancesFile = "instances.json"

// openGlobalInstances reads what was told before. A file that cannot be read is ignored:
// global tells it again.
func openGlobalInstances(configured []string, dir string, log *slog.Logger) *globalInstances {
	g := &globalInstances{configured: configured, path: filepath.Join(dir, instancesFile), log: log}
	data, err := os.ReadFile(g.path)
	if err == nil {
		err = json.Unmarshal(data, &g.told)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the list of the instances of global is not used", "file", g.path, "error", err)
	}
	return g
}

// learn what global tells.
func (g *globalInstances) learn(all []stream.Instance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Equal(all, g.told) {
		return
	}
	g.told = slices.Clone(all)
	g.log.Info("instances of global", "instances", all)
	data, err := json.Marshal(all)
	if err == nil {
		err = atomicfile.Write(g.path, append(data, '\n'), 0o600)
	}
	if err != nil {
		g.log.Warn("the list of the instances of global is not kept", "file", g.path, "error", err)
	}
}

// apis are the addresses of the API besides the first one.
func (g *globalInstances) apis() []string {
	out := slices.Clone(g.configured)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range g.told {
		if !slices.Contains(out, i.API) {
			out = append(out, i.API)
		}
	}
	return out[1:]
}

// ports are the addresses of the gRPC port. joined is the one that is known from the
// certificate; instances of which nobody has told another one are assumed to have its port.
func (g *globalInstances) ports(joined string) []string {
	out := []string{joined}
	add := func(address string) {
		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	g.mu.Lock()
	for _, i := range g.told {
		add(i.GRPC)
	}
	g.mu.Unlock()
	for _, address := range withPort(g.configured, joined) {
		add(address)
	}
	return out
}

// attemptDelay is how long an address has to answer before the next one is tried as well
// (RFC 8305, section 5).
const attemptDelay = 250 * time.Millisecond

// dialFirst connects to the first of the addresses that answers, in their order.
func dialFirst(ctx context.Context, addresses []string) (*instanceConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn *instanceConn
		err  error
	}
	outcomes, running := make(chan outcome, len(addresses)), 0
	defer func() {
		go func(n int) { // those that were slower
			for range n {
				if o := <-outcomes; o.conn != nil {
					_ = o.conn.Close()
				}
			}
		}(running)
	}()
	var failures []error
	next := time.NewTimer(0)
	defer next.Stop()
	for left := addresses; len(left) > 0 || running > 0; {
		select {
		case <-next.C:
			if len(left) == 0 {
				continue
			}
			address := left[0]
			left, running = left[1:], running+1
			go func() {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
				if err != nil {
					outcomes <- outcome{err: err}
					return
				}
				outcomes <- outcome{conn: &instanceConn{conn.(*net.TCPConn), address}}
			}()
			next.Reset(attemptDelay)
		case o := <-outcomes:
			running--
			if o.err == nil {
				return o.conn, nil
			}
			failures = append(failures, o.err)
			next.Reset(0)
		}
	}
	return nil, errors.Join(failures...)
}

// instanceConn is a connection to one of several instances.
type instanceConn struct {
	*net.TCPConn // of which gRPC sets options
	address      string
}

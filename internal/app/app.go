// Package app wires Proxima's rooms together: one short file per role.
//
// It owns nothing but the order in which things start and stop. Enter at
// RunControlPlane, RunNode and RunUp; each blocks until its context ends and
// leaves nothing running. It is the only package that knows everybody.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"github.com/proxima-mesh/proxima/internal/listener"
)

// parts runs the goroutines of a role. The first that fails ends the others.
type parts struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

func newParts(ctx context.Context) *parts {
	ctx, cancel := context.WithCancelCause(ctx)
	return &parts{ctx: ctx, cancel: cancel}
}

// run starts a part. It must return when the context ends; returning earlier is
// a failure of the role.
func (p *parts) run(name string, f func(context.Context) error) {
	p.wg.Go(func() {
		err := f(p.ctx)
		if p.ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		p.cancel(fmt.Errorf("%s: %w", name, err))
	})
}

// wait blocks until all parts have ended, and returns why the first one failed;
// nil if the role was asked to end.
func (p *parts) wait(asked context.Context) error {
	p.wg.Wait()
	cause := context.Cause(p.ctx)
	if cause == nil || (asked.Err() != nil && errors.Is(cause, context.Cause(asked))) {
		return nil
	}
	return cause
}

// end stops all parts and waits for them.
func (p *parts) end() {
	p.cancel(context.Canceled)
	p.wg.Wait()
}

// listen on a TCP address; what it is for and its flag go into the error. At most
// limit connections are open at a time.
func listen(what, flag, address string, limit int, log *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &HintError{
			Err:  fmt.Errorf("%s: %w", what, err),
			Text: "is another one running on this machine? choose another address with " + flag,
		}
	}
	return listener.Limit(l, listener.Options{Name: what, MaxConnections: limit, Logger: log}), nil
}

// Connections that are open at a time at one listener.
const (
	// maxProbeConnections are those for health and metrics: probes and scrapes are
	// few.
	maxProbeConnections = 256
	// maxAPIConnections and maxViewConnections allow for some ten thousand nodes,
	// with the connections of an agent to each. Of the file descriptors that the
	// process may open they take apiShare and viewShare at most; the rest is for the
	// store, the files and the other listeners.
	maxAPIConnections  = 50_000
	maxViewConnections = 20_000
	apiShare           = 0.5
	viewShare          = 0.25
)

// beside is another port on the host of an address.
func beside(address string, port int) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("address %q: want HOST:PORT: %w", address, err)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// HintError is an error that knows what to do about it.
type HintError struct {
	Err  error
	Text string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *HintError) Hint() string { return e.Text }

func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

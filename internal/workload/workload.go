// Package workload runs a command as a member of the catalogue: a Dataplane that
// is ready while the command answers, and gone when it ends.
//
// It owns the life of the process (start, signals, exit code), the probing of
// its readiness and the upkeep of its Dataplane. Enter at Run. It never stands
// between the command and its clients, and never stops the command because a
// control plane is away.
package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// LeaseDuration by default, and how many times it is renewed meanwhile, follow the Node
	// lease of Kubernetes: renewed every 10 s, dead after 40 s.
	LeaseDuration = 40 * time.Second
	renewals      = 4
	// apiTimeout bounds one call of the API.
	apiTimeout = 5 * time.Second
	// drainCall bounds how long a signal waits for the catalogue to hear of it.
	drainCall = time.Second
)

// Config says what to run and as what.
type Config struct {
	// Client writes the Dataplane.
	Client resource.Client
	// Dataplane is the object to register: name, namespace, labels, spec. Its
	// probe decides readiness; without one, a TCP port of its that accepts a
	// connection does, and without such a port being alive is being ready.
	Dataplane *v1alpha1.Dataplane
	// Holder identifies this run in the lease, e.g. "host/pid".
	Holder string
	// Lease is how long the workload is taken to live after a renewal, in whole seconds; 0:
	// LeaseDuration. It is renewed four times as often.
	Lease time.Duration
	// Command and its arguments, without a shell.
	Command []string
	// Start changes how the command is started; nil: nothing is to be changed.
	Start func(*exec.Cmd)
	// Announced is called when the workload is registered, or cannot be now, just before the
	// command starts; nil: nobody waits for it.
	Announced func(context.Context)
	// Proxy before the command; nil: there is none.
	Proxy Proxy
	// Env is added to this process's environment.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals are passed through to the command.
	Signals <-chan os.Signal
	// Terminal says that the command shares a terminal with this process. The
	// terminal itself sends SIGINT and SIGQUIT to both, so those are not passed
	// on a second time.
	Terminal bool
	Logger   *slog.Logger
	Clock    clock.WithTicker
}

// Run registers, starts the command, waits for its end and deregisters. It
// returns the command's exit code (128+n if signal n ended it). An error means
// that the command was not started: it can't be found, or the catalogue refused
// the Dataplane. A control plane that can't be reached is no error: the command
// runs, and is registered as soon as one answers.
func Run(ctx context.Context, cfg Config) (exitCode int, err error) {
	if len(cfg.Command) == 0 {
		return 0, errors.New("no command to run: give one after --")
	}
	probe, err := newProber(cfg.Dataplane)
	if err != nil {
		return 0, err
	}
	reg := newRegistration(cfg)
	if err := reg.announce(ctx); err != nil {
		return 0, err
	}

	if cfg.Proxy != nil {
		probe.behind(cfg.Proxy)
		defer cfg.Proxy.Stop()
		if code, err := startProxy(ctx, cfg); err != nil || code != 0 {
			reg.withdraw()
			return code, err
		}
	}
	if cfg.Announced != nil {
		cfg.Announced(ctx)
	}
	proc, err := start(cfg)
	if err != nil {
		reg.withdraw()
		return 0, fmt.Errorf("start %q: %w", cfg.Command[0], err)
	}

	watch, stop := context.WithCancel(ctx)
	upkeep := make(chan struct{})
	go func() {
		defer close(upkeep)
		reg.keep(watch, probe.watch(watch, cfg.Clock))
	}()

	code := proc.wait(ctx, cfg.Signals, func(sig os.Signal) (pass bool) {
		if endsProcess(sig) {
			cfg.Logger.Info("draining", "signal", sig.String())
			reg.drain()
			if cfg.Proxy != nil {
				cfg.Proxy.Drain(ctx)
			}
		}
		return !cfg.Terminal || !fromTerminal(sig)
	})
	stop()
	<-upkeep
	reg.withdraw()
	return code, nil
}

// startProxy waits until the proxy serves. A signal ends the wait: the code is that of a command
// that it ended.
func startProxy(ctx context.Context, cfg Config) (code int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- cfg.Proxy.Start(ctx) }()
	for {
		select {
		case err := <-started:
			return 0, err
		case sig := <-cfg.Signals:
			if endsProcess(sig) {
				cancel()
				if err := <-started; err != nil {
					cfg.Logger.Debug("the wait for the proxy ended", "error", err)
				}
				return signalled(sig), nil
			}
		}
	}
}

package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// HeldError is returned by New for a kernel mode where another agent programs the kernel of
// this network namespace: two would undo each other's work.
type HeldError struct {
	// Holder describes the other agent.
	Holder string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("another agent carries the traffic of this network namespace: %s", e.Holder)
}

// Code implements problem.Coded.
func (e *HeldError) Code() problem.Code { return problem.KernelModeHeld }

// Hint says what to do.
func (e *HeldError) Hint() string {
	return "stop that agent, or run this one with --mode userspace, or in a network namespace of its own"
}

// heldByAgent is how long Exclusive waits for an agent that is about to end.
const heldByAgent = time.Second

// Exclusive keeps agents of kernel modes from starting in this network namespace, until release is called.
// It fails with a [HeldError] where one runs. owner describes the caller to agents that wait.
func Exclusive(ctx context.Context, owner string, log *slog.Logger) (release func(), err error) {
	l, err := takeLock(ctx, lockName, owner, heldByAgent, log)
	if err != nil {
		return nil, err
	}
	return l.release, nil
}

// exclusive takes the lock of the network namespace for a mode that programs its kernel. On
// failure the mode is closed.
func exclusive(ctx context.Context, m proxy.Mode, cfg Config) (*lock, error) {
	l, err := takeLock(ctx, lockName, cmp.Or(cfg.Owner, "an agent")+", mode "+m.Name(), cmp.Or(cfg.lockTimeout, lockTimeout), cfg.Logger)
	if err != nil {
		return nil, errors.Join(err, m.Close(ctx))
	}
	return l, nil
}

package pulsarsink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	plog "github.com/apache/pulsar-client-go/pulsar/log"
)

// notes is the logger of the client library. What it writes goes to the log of the sink at the level debug: the sink itself says at a warning's that it
// does not deliver, and why. The reason is in the library's log alone, so its newest warning is kept.
type notes struct {
	log    *slog.Logger
	err    error
	shared *newest
}

type newest struct {
	mu  sync.Mutex
	err error
}

func newNotes(log *slog.Logger) *notes {
	return &notes{log: log.With("library", "pulsar-client-go"), shared: &newest{}}
}

// last warning; nil: there was none.
func (n *notes) last() error {
	n.shared.mu.Lock()
	defer n.shared.mu.Unlock()
	return n.shared.err
}

func (n *notes) write(level, text string) {
	if level == "warn" || level == "error" {
		n.keep(text)
	}
	if !n.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	log := n.log
	if n.err != nil {
		log = log.With("error", n.err)
	}
	log.Debug(text, "libraryLevel", level)
}

// keep what tells a reason.
func (n *notes) keep(text string) {
	for _, noise := range []string{"Connection was closed", "Failed to close producer", "connection error"} {
		if strings.Contains(text, noise) {
			return
		}
	}
	err := errors.New(text)
	if n.err != nil {
		if strings.Contains(n.err.Error(), "connection error") || strings.Contains(n.err.Error(), "connection closed") {
			return
		}
		err = fmt.Errorf("%s: %w", text, n.err)
	}
	n.shared.mu.Lock()
	defer n.shared.mu.Unlock()
	n.shared.err = err
}

func (n *notes) with(args ...any) *notes {
	return &notes{log: n.log.With(args...), err: n.err, shared: n.shared}
}

func (n *notes) fields(fields plog.Fields) *notes {
	args := make([]any, 0, 2*len(fields))
	for name, value := range fields {
		args = append(args, name, value)
	}
	return n.with(args...)
}

// SubLogger implements log.Logger.
func (n *notes) SubLogger(fields plog.Fields) plog.Logger { return n.fields(fields) }

// WithFields implements log.Logger.
func (n *notes) WithFields(fields plog.Fields) plog.Entry { return n.fields(fields) }

// WithField implements log.Logger.
func (n *notes) WithField(name string, value any) plog.Entry { return n.with(name, value) }

// WithError implements log.Logger.
func (n *notes) WithError(err error) plog.Entry {
	out := n.with()
	out.err = err
	return out
}

// Debug implements log.Logger. The library formats whole messages for it; they are not wanted.
func (*notes) Debug(...any) {}

// Info implements log.Logger.
func (n *notes) Info(args ...any) { n.write("info", fmt.Sprint(args...)) }

// Warn implements log.Logger.
func (n *notes) Warn(args ...any) { n.write("warn", fmt.Sprint(args...)) }

// Error implements log.Logger.
func (n *notes) Error(args ...any) { n.write("error", fmt.Sprint(args...)) }

// Debugf implements log.Logger.
func (*notes) Debugf(string, ...any) {}

// Infof implements log.Logger.
func (n *notes) Infof(format string, args ...any) { n.write("info", fmt.Sprintf(format, args...)) }

// Warnf implements log.Logger.
func (n *notes) Warnf(format string, args ...any) { n.write("warn", fmt.Sprintf(format, args...)) }

// Errorf implements log.Logger.
func (n *notes) Errorf(format string, args ...any) { n.write("error", fmt.Sprintf(format, args...)) }

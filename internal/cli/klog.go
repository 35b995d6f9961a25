package cli

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// adoptKlog sends what the Kubernetes libraries log to our logger. Their
// informational chatter is for debugging; warnings and errors stay what they are.
// It sets a global of theirs, so only the program's own start calls it.
func adoptKlog(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quiet{log.With("component", "kubernetes").Handler()}))
}

// quiet makes debug messages of informational ones.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, lowered(level))
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }

func lowered(level slog.Level) slog.Level {
	if level == slog.LevelInfo {
		return slog.LevelDebug
	}
	return level
}

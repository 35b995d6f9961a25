package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/node/local"
)

// ownCgroup makes a cgroup for the command; nil: that is not wanted, or not possible, which a
// line of log says.
func ownCgroup(wanted bool, dp *v1alpha1.Dataplane, logger *slog.Logger) *cgroup.Group {
	if !wanted {
		return nil
	}
	level := slog.LevelInfo
	if os.Geteuid() != 0 {
		level = slog.LevelDebug // nobody else expects one
	}
	h, err := cgroup.Find()
	var g *cgroup.Group
	if err == nil {
		g, err = h.Create(dp.Namespace, dp.Name)
	}
	if err != nil {
		logger.Log(context.Background(), level, "the command gets no cgroup of its own: its connections are known by its address alone", "reason", err)
		return nil
	}
	return g
}

// placedTimeout is how long the start of a command waits until the agent knows whose the
// connections from its cgroup are.
const placedTimeout = 2 * time.Second

// awaitPlaced waits for the rules that tell the command's connections from those of others.
func awaitPlaced(ctx context.Context, client *local.Client, g *cgroup.Group, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, placedTimeout)
	defer cancel()
	if err := client.AwaitPlaced(ctx, g.Path()); err != nil {
		logger.Warn("the agent does not tell the connections of the command from those of others yet; it will once it knows the workload", "error", err)
	}
}

package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/workload"
)

// attestTimeout is how long the start of a command waits for the agent.
const attestTimeout = 2 * time.Second

// attested is what this machine's agent knows of the workload.
type attested struct {
	client *local.Client
	// env are environment variables for the command.
	env []string
	// toldApart: the agent tells connections from the cgroup apart from those of others.
	toldApart bool
	// socket of the SPIFFE Workload API, a path; "": the agent serves none, or there is no agent.
	socket string
}

// attest makes this process, and the cgroup, the workload for this machine's agent, until ctx
// ends and over restarts of the agent. The environment variable names the socket of the SPIFFE
// Workload API; there is none where the agent serves none, or is that of another node.
func (s *settings) attest(ctx context.Context, dp *v1alpha1.Dataplane, group *cgroup.Group, logger *slog.Logger) attested {
	out := attested{client: &local.Client{DataDir: s.dataDir, System: true}}
	var status admin.NodeStatus
	if err := out.client.Ask(ctx, local.StatusPath, nil, &status); err != nil {
		logger.Debug("no agent knows the command as a workload: it has no SPIFFE Workload API", "reason", err)
		return out
	}
	if status.Agent.Node.Name != dp.Spec.NodeName || status.SpiffeSocket == "" && (group == nil || !status.Cgroups) {
		logger.Debug("the command has no SPIFFE Workload API: the agent serves none, or is that of another node",
			"agent", status.Agent.Node.Name, "node", dp.Spec.NodeName)
		return out
	}
	var path string
	if group != nil && status.Cgroups {
		path = group.Path()
	}
	told := make(chan bool, 1)
	go func() {
		pause := backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}
		attest := func(ctx context.Context) error {
			return out.client.Attest(ctx, dp.Namespace, dp.Name, path, func(apart bool) {
				select {
				case told <- apart:
				default:
				}
			})
		}
		backoff.Retry(ctx, pause, attest, func(err error, delay time.Duration) {
			logger.Debug("the agent does not know this process as the workload; it is told again", "error", err, "retryIn", delay)
		})
	}()
	select {
	case out.toldApart = <-told:
	case <-time.After(attestTimeout):
		logger.Warn("the agent has not confirmed this process as the workload; the command may have to wait for its certificate")
	}
	if out.socket = status.SpiffeSocket; out.socket != "" {
		out.env = workload.Without([]string{"SPIFFE_ENDPOINT_SOCKET=unix://" + status.SpiffeSocket}, os.Environ())
	}
	return out
}

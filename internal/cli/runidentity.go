package cli

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/workload"
)

// attestTimeout is how long the start of a command waits for the agent.
const attestTimeout = 2 * time.Second

// workloadAPI makes this process the workload, for the SPIFFE Workload API of this
// machine's agent, until ctx ends and over restarts of the agent. It returns the
// environment variable that names the socket; nothing where there is no such agent.
func (s *settings) workloadAPI(ctx context.Context, dp *v1alpha1.Dataplane, logger *slog.Logger) []string {
	client := &local.Client{DataDir: s.dataDir, System: true}
	var status admin.NodeStatus
	if err := client.Ask(ctx, local.StatusPath, nil, &status); err != nil {
		logger.Debug("the command has no SPIFFE Workload API", "reason", err)
		return nil
	}
	if status.SpiffeSocket == "" || status.Agent.Node.Name != dp.Spec.NodeName {
		logger.Debug("the command has no SPIFFE Workload API: the agent serves none, or is that of another node",
			"agent", status.Agent.Node.Name, "node", dp.Spec.NodeName)
		return nil
	}
	attested := make(chan struct{}, 1)
	go func() {
		pause := backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}
		attest := func(ctx context.Context) error {
			return client.Attest(ctx, dp.Namespace, dp.Name, func() {
				select {
				case attested <- struct{}{}:
				default:
				}
			})
		}
		backoff.Retry(ctx, pause, attest, func(err error, delay time.Duration) {
			logger.Debug("the agent does not know this process as the workload; it is told again", "error", err, "retryIn", delay)
		})
	}()
	select {
	case <-attested:
	case <-time.After(attestTimeout):
		logger.Warn("the agent has not confirmed this process as the workload; the command may have to wait for its certificate")
	}
	return workload.Without([]string{"SPIFFE_ENDPOINT_SOCKET=unix://" + status.SpiffeSocket}, os.Environ())
}

package cli

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// localAgent is the agent of the data directory. An ordinary user who names no data
// directory means root's agent, if there is none of their own.
func (s *settings) localAgent() *local.Client {
	return &local.Client{DataDir: s.dataDir, System: s.dataDir == s.defaultDataDir()}
}

// thisAgent implements doctor.Agent by the agent's socket.
type thisAgent struct{ s *settings }

// State implements doctor.Agent.
func (t thisAgent) State(ctx context.Context) doctor.AgentState {
	var state doctor.AgentState
	var status admin.NodeStatus
	if state.Err = t.s.localAgent().Ask(ctx, local.StatusPath, nil, &status); state.Err == nil {
		state.Status = &status
	}
	if joined, err := identity.LoadCredentials(filepath.Join(t.s.dataDir, "node")); err == nil {
		state.Joined = joined
	}
	_, err := os.Stat(filepath.Join(t.s.dataDir, "kubeconfig"))
	state.Up = err == nil
	return state
}

// Dump implements doctor.Agent.
func (t thisAgent) Dump(ctx context.Context) (dump admin.NodeDump, err error) {
	return dump, t.s.ask(ctx, local.DumpPath, nil, &dump)
}

// ask sends a query to the agent of this machine.
func (s *settings) ask(ctx context.Context, path string, query url.Values, into any) error {
	return s.localAgent().Ask(ctx, path, query, into)
}

// agentConfig reaches the control plane through this machine's agent, which
// registers workloads with its node's credential.
func (s *settings) agentConfig(ctx context.Context) (*rest.Config, *admin.NodeStatus, error) {
	agent := thisAgent{s}.State(ctx)
	switch {
	case agent.Err != nil:
		return nil, nil, agent.Err
	case agent.Status.Cluster != nil:
		return nil, nil, &problem.Error{
			Code: problem.AgentNoWorkloads,
			Err:  errNoWorkloads,
			Hint: "name the kubeconfig of a control plane with --kubeconfig",
		}
	}
	return &rest.Config{
		Host: "http://agent", Transport: s.localAgent().Transport(), QPS: -1, Timeout: 30 * time.Second,
		WarningHandler: rest.NewWarningWriter(s.io.Err, rest.WarningWriterOptions{Deduplicate: true}),
	}, agent.Status, nil
}

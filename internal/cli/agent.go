package cli

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// localAgent is the agent of the data directory. An ordinary user who names no data
// directory means root's agent, if there is none of their own.
func (s *settings) localAgent() *local.Client {
	return &local.Client{DataDir: s.dataDir, System: s.dataDir == s.defaultDataDir()}
}

// agentAnswer is what this machine's agent says of itself, or why it says nothing.
type agentAnswer struct {
	status *admin.NodeStatus // nil: err says why
	err    error
	// joined are the credentials that an agent has left on disk; nil: none has
	// joined a control plane, or they belong to another user.
	joined *identity.Credentials
	// up: the data directory has a control plane's kubeconfig, too.
	up bool
}

func (s *settings) askAgent(ctx context.Context) agentAnswer {
	var a agentAnswer
	var status admin.NodeStatus
	if a.err = s.localAgent().Ask(ctx, local.StatusPath, nil, &status); a.err == nil {
		a.status = &status
	}
	if joined, err := identity.LoadCredentials(filepath.Join(s.dataDir, "node")); err == nil {
		a.joined = joined
	}
	_, err := os.Stat(filepath.Join(s.dataDir, "kubeconfig"))
	a.up = err == nil
	return a
}

// startCommand starts the agent that has joined.
func (a agentAnswer) startCommand() string {
	if a.up {
		return "\"proxima up\""
	}
	name, _ := identity.NodeName(a.joined.Subject.User, a.joined.Subject.Groups)
	return fmt.Sprintf("\"proxima node --server %s --node-name %s\"", a.joined.Server, name)
}

// fixDisk is what to do about files that cannot be written.
const fixDisk = "make room on the disk, or mount it so that it can be written"

// absent: no agent runs here. An agent that does not answer, or belongs to another
// user, is there.
func (a agentAnswer) absent() bool { return a.err != nil && local.IsNoAgent(a.err) }

func (a agentAnswer) hung() bool { return local.IsHung(a.err) }

// api is the address of the control plane that the agent joined, as far as it is
// known; empty: it is not.
func (a agentAnswer) api() string {
	switch {
	case a.status != nil:
		return a.status.API
	case a.joined != nil:
		return "https://" + a.joined.Server
	}
	return ""
}

// hungGrace is how long a control plane may take to answer once the agent of this
// machine turned out to hang: they may be one process. With local.AliveTimeout it
// is less than 2 s.
const hungGrace = 300 * time.Millisecond

// meanwhile asks this machine's agent while do runs. If the agent hangs, the
// context of do ends soon after. It returns when both have ended.
func (s *settings) meanwhile(ctx context.Context, do func(context.Context)) agentAnswer {
	doing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(doing)
	}()
	agent := s.askAgent(ctx)
	if agent.hung() {
		select {
		case <-done:
		case <-time.After(hungGrace):
			cancel(context.DeadlineExceeded)
		}
	}
	<-done
	return agent
}

// ask the agent of this machine.
func (s *settings) ask(ctx context.Context, path string, query url.Values, into any) error {
	return s.localAgent().Ask(ctx, path, query, into)
}

// agentConfig reaches the control plane through this machine's agent, which
// registers workloads with its node's credential.
func (s *settings) agentConfig(ctx context.Context) (*rest.Config, *admin.NodeStatus, error) {
	agent := s.askAgent(ctx)
	switch {
	case agent.err != nil:
		return nil, nil, agent.err
	case agent.status.Cluster != nil:
		return nil, nil, &problem.Error{
			Code: problem.AgentNoWorkloads,
			Err:  errNoWorkloads,
			Hint: "name the kubeconfig of a control plane with --kubeconfig",
		}
	}
	return &rest.Config{
		Host: "http://agent", Transport: s.localAgent().Transport(), QPS: -1, Timeout: 30 * time.Second,
		WarningHandler: rest.NewWarningWriter(s.io.Err, rest.WarningWriterOptions{Deduplicate: true}),
	}, agent.status, nil
}

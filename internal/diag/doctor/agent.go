package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// AgentState is what this machine's agent reports, or why it reports nothing.
type AgentState struct {
	// Status of the agent; nil: Err says why.
	Status *admin.NodeStatus
	Err    error
	// Joined are the credentials that an agent has left on disk; nil: none has joined a
	// control plane, or they belong to another user.
	Joined *identity.Credentials
	// Up: the data directory has a control plane's kubeconfig, too.
	Up bool
}

// Absent reports whether no agent runs here. An agent that does not answer, or
// belongs to another user, is not absent.
func (a AgentState) Absent() bool { return a.Err != nil && local.IsNoAgent(a.Err) }

// Hung reports whether the agent's process is there and does not answer.
func (a AgentState) Hung() bool { return local.IsHung(a.Err) }

// API is the address of the control plane that the agent joined, as far as it is
// known; empty: it is not.
func (a AgentState) API() string {
	switch {
	case a.Status != nil:
		return a.Status.API
	case a.Joined != nil:
		return "https://" + a.Joined.Server
	}
	return ""
}

// StartCommand is the quoted command that starts the agent that has joined. Joined
// must not be nil.
func (a AgentState) StartCommand() string {
	if a.Up {
		return "\"proxima up\""
	}
	name, _ := identity.NodeName(a.Joined.Subject.User, a.Joined.Subject.Groups)
	return fmt.Sprintf("\"proxima node --server %s --node-name %s\"", a.Joined.Server, name)
}

// hungGrace is how long a control plane may take to answer after this machine's
// agent was found to hang: they may be one process. With local.AliveTimeout it is
// less than 2 s.
const hungGrace = 300 * time.Millisecond

// Meanwhile reads the agent's state while do runs. If the agent hangs, the context
// of do ends soon after. It returns when both have ended.
func Meanwhile(ctx context.Context, agent Agent, do func(context.Context)) AgentState {
	doing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(doing)
	}()
	state := agent.State(ctx)
	if state.Hung() {
		select {
		case <-done:
		case <-time.After(hungGrace):
			cancel(context.DeadlineExceeded)
		}
	}
	<-done
	return state
}

// agentState is about the agent as a whole.
func (x examiner) agentState(state AgentState) Finding {
	f := Finding{ID: checkAgent, Check: "agent"}
	agent := state.Status
	var denied *local.DeniedError
	switch {
	case state.Absent() && state.Joined != nil:
		f.fail(problem.AgentNotRunning, "it is not running, though it has joined "+state.Joined.Server, "start it with "+state.StartCommand())
	case state.Absent():
		f.Note = "none with data directory " + x.DataDir + " runs on this machine; --data-dir names another one"
	case errors.As(state.Err, &denied):
		f.Note = state.Err.Error() + ": " + denied.Hint()
	case state.Err != nil:
		f.failWith(state.Err, problem.AgentNotAnswering, "see its log")
	case agent.Waiting != "":
		f.fail(problem.AgentWaiting, "it waits, and serves nothing yet: "+agent.Waiting,
			"see kubectl get node -o yaml: the kubelet or the cloud's controller writes the addresses and the pod range")
	case agent.Cluster != nil:
		f.Note = "mode " + agent.Agent.Mode + ", following a Kubernetes API: TCPRoutes, BackendPolicies and TrafficPermissions have no effect on this node"
	case agent.Fallback != nil && agent.Fallback.Direct:
		f.fail(problem.AgentDisconnected, "it has no connection to the control plane, and follows the cluster's API without plans, with the routes and policies that it knew last, since "+
			agent.Fallback.Since.Local().Format(time.DateTime),
			"see its log; are the pods of the control plane ready, and is its port for node views (6444) reachable from here?")
	case agent.View == nil || !agent.View.Connected:
		f.fail(problem.AgentDisconnected, "it has no connection to the control plane, and serves by the last state that it received",
			"see its log; is the control plane's port for node views (6444) reachable from here?")
	default:
		f.Note = "mode " + agent.Agent.Mode + ", connected"
	}
	return f
}

// unsavedState is about the files that the agent needs for its next start.
func unsavedState(agent *admin.NodeStatus) Finding {
	f := Finding{ID: checkAgentState, Check: "agent's state on disk", Note: "saved"}
	if len(agent.Unsaved) == 0 {
		return f
	}
	var problems []string
	for _, u := range agent.Unsaved {
		problems = append(problems, fmt.Sprintf("%s cannot be written since %s: %s", u.File, u.Since.Local().Format(time.DateTime), u.Error))
	}
	f.fail(problem.AgentStateUnsaved, strings.Join(problems, "; "),
		finding.FixDisk+"; the agent serves from memory, and a restart would begin with what is on disk")
	return f
}

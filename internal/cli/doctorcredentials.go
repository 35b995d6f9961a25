package cli

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/app"
)

// credentialFindings are about how the control plane recognises this machine: the
// agent's certificate, and the node name that no other machine may have.
func credentialFindings(agent *app.NodeStatus) []finding {
	if agent == nil || agent.Certificate == nil {
		return nil
	}
	c := agent.Certificate
	certificate := finding{Check: "certificate", Problem: c.Problem, Fix: c.Fix}
	if c.Problem == "" {
		certificate.Note = c.User + ", for " + duration.HumanDuration(time.Until(c.NotAfter))
		if c.RenewalError != "" {
			certificate.Note += "; not renewed since " + c.FailingSince.Format(time.RFC3339) + ": " + c.RenewalError
		}
	}
	name := finding{Check: "node name " + agent.Agent.Node.Name}
	// Without a connection it cannot be otherwise, and that is said elsewhere.
	if m := agent.Membership; m != nil && agent.View != nil && agent.View.Connected {
		switch {
		case m.Problem != "":
			name.Problem = m.Problem
			name.Fix = "the agent tries again every 10 s; if another machine has the name, stop the agent on one of them, or give it another --node-name and token"
		case m.Conflict != "":
			name.Problem = m.Conflict
			name.Fix = "find that machine: the control plane's log names it; stop its agent, or give it another --node-name and token"
		case m.MachineID != "":
			name.Note = "machine " + m.MachineID
		}
	}
	return []finding{certificate, name}
}

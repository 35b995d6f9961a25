package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// kernelFindings are about what the agent's kernel mode relies on; none for
// another mode.
func (s *settings) kernelFindings(ctx context.Context, d doctorFlags, agent *admin.NodeStatus) []finding {
	if agent == nil {
		return nil
	}
	if _, inKernel := modes.RequirementOf(agent.Agent.Mode); !inKernel {
		return nil
	}
	findings := []finding{forwarding(d.root)}
	if tables, ok := s.kernelTables(ctx); ok {
		findings = append(findings, tables)
	}
	return findings
}

// forwarding is needed for clients on other machines only, so that it is off is
// no problem by itself.
func forwarding(root string) finding {
	f := finding{Check: "forwarding", Note: "on"}
	data, err := os.ReadFile(filepath.Join("/", root, "proc/sys/net/ipv4/ip_forward"))
	switch {
	case err != nil:
		f.Note = "can't be read: " + err.Error()
	case strings.TrimSpace(string(data)) == "0":
		f.Note = "off: clients on other machines, and on workload networks of this one, are not carried; net.ipv4.ip_forward=1 turns it on"
	}
	return f
}

// kernelTables compares what the kernel has with what the mode wants. ok is false
// for a mode that does not compare.
func (s *settings) kernelTables(ctx context.Context) (f finding, ok bool) {
	f.Check = "kernel tables"
	var dump admin.NodeDump
	if err := s.ask(ctx, local.DumpPath, nil, &dump); err != nil {
		f.Problem, f.Fix = err.Error(), problem.HintOf(err, "see the agent's log")
		return f, true
	}
	if len(dump.Missing)+len(dump.Foreign) == 0 {
		f.Note = fmt.Sprintf("%d objects, all as they should be", len(dump.Kernel))
		return f, dump.Compared
	}
	f.Problem = fmt.Sprintf("%d objects are missing in the kernel and %d are foreign, the first is %q", len(dump.Missing), len(dump.Foreign), append(dump.Missing, dump.Foreign...)[0])
	f.Fix = "the agent repairs that in a moment; if it stays, something else keeps changing the table proxima: see \"proxima node dump\""
	return f, true
}

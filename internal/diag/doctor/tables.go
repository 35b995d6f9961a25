package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// kernel is about what the agent's kernel mode relies on; none for
// another mode.
func (x examiner) kernel(ctx context.Context, agent *admin.NodeStatus) []Finding {
	if agent == nil {
		return nil
	}
	if !modes.InKernel(agent.Agent.Mode) {
		return nil
	}
	dump, err := x.Agent.Dump(ctx)
	if _, ofLinux := modes.RequirementOf(agent.Agent.Mode); !ofLinux {
		f, _ := kernelTables(&dump, err)
		if f.Problem != "" {
			return []Finding{f}
		}
		return []Finding{f, limits(agent)}
	}
	findings := []Finding{forwarding(x.Root, &dump), connections(x.Root)}
	if agent.Layer != nil {
		findings = append(findings, Finding{ID: checkLayer, Check: "eBPF layer", Note: agent.Layer.String()})
	} else if agent.LayerEstimate != nil {
		findings = append(findings, Finding{ID: checkLayer, Check: "eBPF layer", Note: agent.LayerEstimate.String()})
	}
	if tables, ok := kernelTables(&dump, err); ok {
		findings = append(findings, tables)
	}
	return findings
}

// limits of a mode are no failure: Services that ask for more have Events.
func limits(agent *admin.NodeStatus) Finding {
	f := Finding{ID: checkKernelLimits, Check: "what the mode does not do", Note: "nothing that a service port asks for"}
	if n := len(agent.Limits); n > 0 {
		f.Note = fmt.Sprintf("of %d service ports, the first is %s; \"proxima status\" lists them", n, agent.Limits[0])
	}
	return f
}

// forwarding is needed for clients on other machines only, so that it is off is
// no problem by itself. Where it is on, chains of other programs may block it.
func forwarding(root string, dump *admin.NodeDump) Finding {
	f := Finding{ID: checkForwarding, Check: "forwarding", Note: "on"}
	data, err := os.ReadFile(filepath.Join("/", root, "proc/sys/net/ipv4/ip_forward"))
	switch {
	case err != nil:
		f.Note = "can't be read: " + err.Error()
	case strings.TrimSpace(string(data)) == "0":
		f.Note = "off: clients on other machines, and on workload networks of this one, are not proxied; net.ipv4.ip_forward=1 turns it on"
	case len(dump.Blocking) > 0:
		f.fail(problem.ForwardBlocked,
			"of the connections that this machine forwards to Services' endpoints, these chains of other programs drop those that no rule there accepts: "+strings.Join(dump.Blocking, ", "),
			acceptTranslated(dump.Blocking))
	case dump.BlockingError != "":
		f.Note = "on; which chains of other programs block it can't be read: " + dump.BlockingError
	}
	return f
}

// acceptTranslated is the rule that lets connections to Services pass such chains.
func acceptTranslated(chains []string) string {
	var commands []string
	for _, c := range chains {
		words := strings.Fields(c) // FAMILY TABLE CHAIN [of iptables-legacy] (…)
		// Behind a policy the rule is the last, so that rules that refuse some of it come first.
		add, appended := "insert", "-I"
		if strings.HasSuffix(c, "(policy)") {
			add, appended = "add", "-A"
		}
		command := "nft " + add + " rule " + strings.Join(words[:min(3, len(words))], " ") + " ct status dnat accept"
		if len(words) > 2 && words[1] == "filter" && words[2] == "FORWARD" {
			command = map[string]string{"ip": "iptables", "ip6": "ip6tables"}[words[0]]
			if strings.Contains(c, "iptables-legacy") {
				command += "-legacy"
			}
			command += " " + appended + " FORWARD -m conntrack --ctstate DNAT -j ACCEPT"
		}
		commands = append(commands, "\""+command+"\"")
	}
	return "where that is not what you want, accept translated connections there, and keep the rule over a restart: " + strings.Join(commands, ", ")
}

// nearlyFull is the use of the table of connections, in percent, that is a problem: a full one
// drops new connections of all programs.
const nearlyFull = 80

// connections are those that the kernel tracks.
func connections(root string) Finding {
	f := Finding{ID: checkConnections, Check: "table of connections"}
	flows, limit, err := conntrack.Use(filepath.Join("/", root, conntrack.Settings))
	switch {
	case err != nil:
		f.Note = "can't be read: " + err.Error()
	case limit > 0 && flows >= limit*nearlyFull/100:
		f.fail(problem.ConnectionsFull, fmt.Sprintf("the kernel tracks %d connections, and %d at most: further ones are dropped", flows, limit),
			"raise net.netfilter.nf_conntrack_max, or find who makes so many connections; conntrack.min of the kube-proxy configuration raises it at each start")
	default:
		f.Note = fmt.Sprintf("%d of %d", flows, limit)
	}
	return f
}

// kernelTables compares the kernel's state with the desired state of the mode. ok is false
// for a mode that does not compare.
func kernelTables(dump *admin.NodeDump, err error) (f Finding, ok bool) {
	f.ID, f.Check = checkKernelTables, "kernel tables"
	if err != nil {
		f.failWith(err, problem.AgentNotAnswering, "see the agent's log")
		return f, true
	}
	if len(dump.Missing)+len(dump.Foreign) == 0 {
		f.Note = fmt.Sprintf("%d objects, all as they should be", len(dump.Kernel))
		return f, dump.Compared
	}
	first := append(dump.Missing, dump.Foreign...)[0]
	f.fail(problem.KernelTablesDiffer,
		fmt.Sprintf("%d objects are missing in the kernel and %d are foreign, the first is %q", len(dump.Missing), len(dump.Foreign), first),
		"the agent repairs that in a moment; if it stays, something else keeps changing the table proxima: see \"proxima node dump\"")
	return f, true
}

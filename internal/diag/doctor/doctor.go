// Package doctor examines a machine, its agent and the control plane that it can
// reach, for what is wrong or could go wrong, and names the fix.
//
// It owns the checks and their codes (Checks). Enter at Examine. It reads what it
// examines through the interfaces Agent and ControlPlane, through the file system
// and through read-only commands of the system; it changes nothing, except the
// machine's resolver when Config.Fix is set. It never prints: the command and the
// console show Findings.
package doctor

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/version"

	"github.com/proxima-mesh/proxima/internal/admin"
	noderanges "github.com/proxima-mesh/proxima/internal/node/ranges"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Finding is the result of one check. Problem is empty if nothing is wrong; then
// Note may say what was found.
type Finding struct {
	// ID of the check, one of Checks.
	ID string `json:"id"`
	// Check is what was checked, with names and addresses of this machine.
	Check string `json:"check"`
	// Code of the problem; empty without one.
	Code    problem.Code `json:"code,omitempty"`
	Problem string       `json:"problem,omitempty"`
	Fix     string       `json:"fix,omitempty"`
	Note    string       `json:"note,omitempty"`
}

// fail makes the finding a problem.
func (f *Finding) fail(code problem.Code, text, fix string) {
	f.Code, f.Problem, f.Fix, f.Note = code, text, fix, ""
}

// failWith makes the finding a problem that is an error, with the code and the hint
// of the error if it has them.
func (f *Finding) failWith(err error, code problem.Code, fix string) {
	if p, _ := problem.Of(err); p.Code != "" {
		code = p.Code
	}
	f.fail(code, err.Error(), problem.HintOf(err, fix))
}

// Agent is this machine's agent.
type Agent interface {
	// State reads what the agent reports. It blocks for 2 s at most.
	State(ctx context.Context) AgentState
	// Dump reads the kernel's tables and what the mode expects in them.
	Dump(ctx context.Context) (admin.NodeDump, error)
}

// ControlPlane is the API server that this machine's configuration names. Errors have
// a code and a hint where they can.
type ControlPlane interface {
	// Host is the server's URL.
	Host() string
	// Version of the server, and its clock; zero if it does not send the time.
	Version(ctx context.Context) (version.Info, time.Time, error)
	// Status of a Proxima control plane.
	Status(ctx context.Context) (*admin.Status, error)
	// ServiceRanges are those of all ServiceCIDRs.
	ServiceRanges(ctx context.Context) ([]netip.Prefix, error)
	// Proxies of workloads, as they are observed.
	Proxies(ctx context.Context) ([]Proxy, error)
	// Refusals of proxies within a moment, as far as they could be asked. It blocks for that moment.
	Refusals(ctx context.Context, proxies []Proxy) []Refusal
}

// Port is one that "proxima up" listens on unless it is configured otherwise.
type Port struct {
	Number int
	// Flag that chooses another one, with its dashes.
	Flag string
	// Agent: it is the agent's, not the control plane's.
	Agent bool
}

// Config of an examination.
type Config struct {
	// DataDir of the control plane and of the agent.
	DataDir string
	Agent   Agent
	// ControlPlane; nil: there is no usable configuration, and ConfigErr says why.
	ControlPlane ControlPlane
	ConfigErr    error
	// Unconfigured: ConfigErr is that no configuration was named and none is in the
	// data directory, which is no problem on a machine that has an agent only.
	Unconfigured bool
	// Ports to check.
	Ports []Port
	// ProbePort is the default UDP port of agents' probes.
	ProbePort int
	// Fix points the machine's resolver at the agent. Fixed is called with what was
	// changed.
	Fix   bool
	Fixed func(text string)
	// DNSAddress (ADDRESS:PORT) takes the place of the agent's DNS server.
	DNSAddress string
	// Root of the file system that is examined, without a slash in front; empty: /.
	Root string
}

type examiner struct{ Config }

// Examine runs all checks and returns their findings, in the order in which they
// should be read. It blocks for some seconds at most per thing that does not answer.
// Later checks use what earlier ones found out about the agent and the control plane.
func Examine(ctx context.Context, cfg Config) []Finding {
	x := examiner{cfg}
	findings := []Finding{x.dataDirectory(), x.privateFiles(), openFiles(), lowPorts()}
	var server Finding
	var plane []Finding
	var ranges []netip.Prefix
	state := Meanwhile(ctx, x.Agent, func(ctx context.Context) {
		if server = x.server(ctx); server.Problem == "" {
			ranges, _ = x.ControlPlane.ServiceRanges(ctx) // an API that refuses: the agent's are used
			plane = x.planeState(ctx)
		}
	})
	if x.Unconfigured && state.API() != "" {
		server = Finding{
			ID:    checkControlPlane,
			Check: "control plane " + state.API(),
			Note:  "on another machine, and no kubeconfig here: what follows is what the agent reports",
		}
	}
	if ranges == nil {
		ranges, _ = noderanges.Read(filepath.Join(x.DataDir, "node")) // none, or another user's
	}
	agent := state.Status
	findings = append(append(findings, server), append(plane, x.agentState(state))...)
	if agent != nil {
		findings = append(findings, traces(checkAgentTraces, "traces of the agent", agent.Traces)...)
		findings = append(findings, unsavedState(agent), tunnel(agent.Tunnel), isolated(agent.Isolation), permitted(agent.Permissions))
	}
	findings = append(findings, credentials(ctx, agent)...)
	if !state.Hung() { // a hung agent has ports, which its process may share with a control plane
		findings = append(findings, x.ports(server.Problem != "", state.Absent())...)
	}
	if state.Hung() {
		findings = append(findings, Finding{ID: checkResolver, Check: resolverTitle, Note: "not checked: this machine's agent does not answer"})
	} else {
		findings = append(findings, x.resolver(ctx, agent, ranges))
	}
	findings = append(findings, serviceRanges(ranges, agent)...)
	findings = append(findings, x.kernel(ctx, agent)...)
	return append(findings, otherProxies(ctx, x.Root), kernelModes(x.Root))
}

package app

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/version"
)

// agentState is an agent, as an admin.Agent.
type agentState struct{ *agent }

// Status implements admin.Agent.
func (a agentState) Status() admin.NodeStatus {
	status := admin.NodeStatus{
		Version: version.Get(), Agent: a.agent.agent.Status(), DNS: a.dns.address(),
		PID: os.Getpid(), API: a.api(), Unsaved: a.unsavedFiles(), Traces: a.traces.status(),
	}
	if a.cluster != nil {
		followed := a.cluster.Status()
		status.Cluster = &followed
	}
	if a.feed != nil {
		followed, certificate := admin.ViewStatusOf(a.feed.Status()), a.renewer.Status()
		status.View, status.Certificate = &followed, &certificate
	}
	if a.direct != nil {
		direct := a.direct.Status()
		status.Fallback = &direct
	}
	if a.member != nil {
		member := a.member.Status()
		status.Membership = &member
	}
	if a.identity != nil {
		status.Identities, status.SpiffeSocket = a.identity.manager.Status(), a.identity.socketPath()
	}
	status.Cgroups, status.IPVS = a.cgroups != nil, modes.IPVSOf(a.mode)
	if layer := modes.LayerOf(a.mode); layer != nil {
		s := layer.Status()
		status.Layer = &s
	}
	status.LayerEstimate = a.estimate.Load()
	status.Tunnel, status.Isolation, status.Permissions = a.tunnel.status(), a.isolation.Status(), a.permissionStatus()
	if a.dns.server != nil {
		status.Capture = a.dns.capture.status(a.dns.server.Captured())
	}
	status.Limits, status.ModeProblem = a.limits()
	for _, f := range a.checks.Failures() {
		status.HealthCheckNodePorts = append(status.HealthCheckNodePorts,
			fmt.Sprintf("%d of service %s is not served: %v", f.Port, f.Service, f.Err))
	}
	return status
}

// Trace implements admin.Agent.
func (a agentState) Trace(c diag.Connection) *diag.Trace {
	status := a.agent.agent.Status()
	t := &diag.Trace{
		To: c.To.String(), Protocol: strings.ToLower(string(c.Protocol)), From: c.From.String(),
		Node: status.Node.Name, Zone: status.Node.Zone, Mode: status.Mode,
	}
	here := modes.LocalAddresses([]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)})
	vantage := diag.Vantage{
		Addresses: here, NodePorts: here, Workloads: a.cfg.WorkloadCIDRs, Interfaces: a.cfg.WorkloadInterfaces,
		MasqueradeAll: a.cfg.MasqueradeAll,
	}
	if primary := a.primaryAddresses(); a.cfg.NodePortAddresses == nil && !a.cfg.AllNodePorts && byNftables(t.Mode) && len(primary) > 0 {
		vantage.NodePorts = primary
	}
	if len(a.cfg.NodePortAddresses) > 0 {
		vantage.NodePorts = modes.LocalAddresses(a.cfg.NodePortAddresses)
	}
	states := a.agent.agent.AllStates()
	if len(a.cfg.WorkloadInterfaces) > 0 && !slices.Contains(here, c.From) {
		c.By = modes.InterfaceTo(c.From)
	}
	state := t.Trace(c, states, vantage)
	a.mode.Trace(t, c, state, states)
	if why := a.isolation.Refusal(c.From, c.To.Addr(), state); why != "" {
		t.Outcome, t.Reason = "reject", why
		t.List, t.Rule, t.Endpoints, t.Spare = "", "", []diag.TraceEndpoint{}, nil
	}
	known := a.agent.agent.Slices()
	t.Locate(known, vantage)
	t.FindUnused(state, c.To.Addr(), known, a.agent.agent.Node())
	if _, inKernel := modes.RequirementOf(t.Mode); inKernel && t.Forwards(vantage) {
		blocking, err := modes.BlockingForward(context.Background())
		if err != nil {
			a.log.Debug("reading which chains block forwarded connections", "error", err)
		}
		t.Blocking = blocking
	}
	for _, p := range status.Pending {
		if p.Port == t.Service {
			t.Pending = cmp.Or(strings.TrimSpace(p.Error+" "+p.Hint), "the newest change is on its way")
		}
	}
	return t
}

// Dump implements admin.Agent.
func (a agentState) Dump(ctx context.Context) (*admin.NodeDump, error) {
	c := a.clusters()
	d := &admin.NodeDump{Node: c.Node, Mode: c.Mode, Ports: c.Ports}
	kernel, err := a.mode.Dump(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's tables: %w", err)
	}
	d.Kernel, d.Compared, d.Missing, d.Foreign = kernel.Objects, kernel.Compared, kernel.Missing, kernel.Foreign
	if _, inKernel := modes.RequirementOf(d.Mode); inKernel {
		if d.Blocking, err = modes.BlockingForward(ctx); err != nil {
			d.BlockingError = err.Error()
		}
	}
	return d, nil
}

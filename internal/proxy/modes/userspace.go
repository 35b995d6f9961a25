package modes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

const userspaceName = "userspace"

type userspaceMode struct{ *userspace.Mode }

func newUserspace(_ context.Context, cfg Config) (Mode, error) {
	opts := userspace.Options{
		Logger: cfg.Logger.With("component", userspaceName), Registerer: cfg.Registerer,
		NodePortAddresses: LocalAddresses(cfg.NodePortAddresses),
	}
	for _, p := range cfg.ServiceCIDRs {
		if !p.Addr().IsLoopback() {
			opts.LocalRanges = append(opts.LocalRanges, p)
		}
	}
	m, err := userspace.New(opts)
	if err != nil {
		return nil, err
	}
	return userspaceMode{m}, nil
}

// cleanUserspace removes the routes of a process that was killed: connections to virtual IPs
// would end at this host in place of going on to the rules of a kernel mode.
func cleanUserspace(_ context.Context, next string) error {
	if next == userspaceName {
		return nil
	}
	return userspace.Cleanup()
}

// Trace names the socket: the mode has no rules.
func (m userspaceMode) Trace(t *diag.Trace, c diag.Connection, state *proxy.PortState, _ []*proxy.PortState) {
	if t.Service == "" {
		return
	}
	t.Masquerade = true
	step := diag.TraceStep{Object: fmt.Sprintf("socket %s %s", t.Protocol, c.To), Does: t.Outcome}
	switch {
	case t.Reason != "":
		t.Outcome, step.Does = excludedBySocket(c, state)
	case t.Outcome == "endpoint":
		step.Does = "the agent accepts, and connects to one of the endpoints; to another one if that does not answer"
	}
	t.Steps = append(t.Steps, step)
	for _, e := range slices.Concat(t.Endpoints, t.Spare) {
		if to, err := netip.ParseAddrPort(e.Address); err == nil {
			m.noteOwnSocket(t, to, c.Protocol)
		}
	}
}

// noteOwnSocket notes an endpoint where the mode itself listens.
func (m userspaceMode) noteOwnSocket(t *diag.Trace, to netip.AddrPort, protocol proxy.Protocol) {
	if name, own := m.AnswersAt(to, protocol); own {
		t.Unused = append(t.Unused, diag.TraceUnused{
			Address: to.String(), Why: "the agent itself answers there, for " + name.String() + ": it is not dialed",
		})
	}
}

// excludedBySocket is what the mode does with a client that the source ranges do
// not admit: a socket cannot distinguish clients before it accepts.
func excludedBySocket(c diag.Connection, state *proxy.PortState) (outcome, does string) {
	ranges, _ := state.Service.SourcesOf(c.To.Addr().Is4())
	choice := state.For(c.To.Addr())
	switch {
	case len(ranges) == 0:
		return "drop", "ignores what arrives: no client of this family is admitted"
	case len(choice.Cluster)+len(choice.Local) == 0:
		return "reject", "closed, as there is no endpoint: the kernel refuses, admitted clients, too"
	case c.Protocol == proxy.TCP:
		return "reject", "the agent accepts the connection, then resets it"
	}
	return "drop", "the agent ignores the datagram"
}

// Dump returns nothing: the mode has no state in the kernel.
func (m userspaceMode) Dump(context.Context) (Kernel, error) { return Kernel{}, nil }

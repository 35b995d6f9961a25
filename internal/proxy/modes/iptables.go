package modes

import (
	"context"
	"net/netip"
	"strings"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
)

const iptablesName = "iptables"

type iptablesMode struct {
	*iptables.Mode
	lock *lock
}

func newIptables(ctx context.Context, cfg Config) (Mode, error) {
	opts := iptables.Options{
		Logger: cfg.Logger.With("component", iptablesName), Registerer: cfg.Registerer, ServiceCIDRs: cfg.ServiceCIDRs,
		WorkloadCIDRs: cfg.WorkloadCIDRs, WorkloadInterfaces: cfg.WorkloadInterfaces, MasqueradeAll: cfg.MasqueradeAll,
		NodePortAddresses: cfg.NodePortAddresses, MasqueradeMark: cfg.MasqueradeMark,
	}
	if err := iptables.Check(ctx, opts); err != nil {
		return nil, err
	}
	m, err := iptables.New(opts)
	if err != nil {
		return nil, err
	}
	l, err := exclusive(ctx, m, cfg)
	if err != nil {
		return nil, err
	}
	return iptablesMode{m, l}, nil
}

// Close releases the network namespace for another agent, too.
func (m iptablesMode) Close(ctx context.Context) error {
	defer m.lock.release()
	return m.Mode.Close(ctx)
}

func cleanIptables(ctx context.Context, next string) error {
	if next == iptablesName {
		return nil
	}
	return iptables.Cleanup(ctx, iptables.Options{})
}

// Trace adds the rules of the service port.
func (m iptablesMode) Trace(t *diag.Trace, c diag.Connection, state *proxy.PortState, _ []*proxy.PortState) {
	t.Spare = nil // a packet is sent to one endpoint only
	if state != nil {
		t.Kernel = m.RulesOf(state.Name)
		return
	}
	t.Outcome, t.Kernel = ruleWithoutService(m.Mode.Dump(), c.To.Addr())
}

// ruleWithoutService is what the mode does with an address and port that no
// service port has: a cluster address refuses its other ports, and what is not
// allocated in the service ranges is dropped.
func ruleWithoutService(dump string, to netip.Addr) (outcome string, rule []string) {
	for _, verdict := range []struct{ chain, outcome string }{{"PROXIMA-REJECT", "reject"}, {"PROXIMA-DROP", "drop"}} {
		for line := range strings.SplitSeq(dump, "\n") {
			words := strings.Fields(line) // -A CHAIN -d PREFIX -g CHAIN
			if len(words) != 6 || words[0] != "-A" || words[2] != "-d" || words[5] != verdict.chain {
				continue
			}
			if p, err := netip.ParsePrefix(words[3]); err == nil && p.Contains(to) {
				return verdict.outcome, []string{line}
			}
		}
	}
	return "pass", nil
}

// Dump lists the rules that the mode wants in the kernel.
func (m iptablesMode) Dump(context.Context) (Kernel, error) {
	return Kernel{Objects: strings.Split(strings.TrimSpace(m.Mode.Dump()), "\n")}, nil
}

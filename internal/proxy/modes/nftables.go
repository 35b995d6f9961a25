package modes

import (
	"context"
	"errors"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const nftablesName = "nftables"

type nftablesMode struct {
	*nftables.Mode
	lock *lock
}

func nftablesOptions(cfg Config) nftables.Options {
	return nftables.Options{
		Logger: cfg.Logger.With("component", nftablesName), Registerer: cfg.Registerer, ServiceCIDRs: cfg.ServiceCIDRs,
		WorkloadCIDRs: cfg.WorkloadCIDRs, WorkloadInterfaces: cfg.WorkloadInterfaces, MasqueradeAll: cfg.MasqueradeAll,
		NodePortAddresses: cfg.NodePortAddresses, PrimaryAddresses: cfg.PrimaryAddresses, MasqueradeMark: cfg.MasqueradeMark,
	}
}

func newNftables(ctx context.Context, cfg Config) (Mode, error) {
	opts := nftablesOptions(cfg)
	if err := nftables.Check(opts); err != nil {
		return nil, err
	}
	m, err := nftables.New(opts)
	if err != nil {
		return nil, err
	}
	l, err := exclusive(ctx, m, cfg)
	if err != nil {
		return nil, err
	}
	return nftablesMode{m, l}, nil
}

// Close releases the network namespace for another agent, too.
func (m nftablesMode) Close(ctx context.Context) error {
	defer m.lock.release()
	return m.Mode.Close(ctx)
}

// cleanNftables also decides about established connections of any kernel mode:
// when the userspace mode follows, the kernel keeps carrying them.
func cleanNftables(ctx context.Context, next string) error {
	if nftables.Check(nftables.Options{}) != nil {
		return nil
	}
	var errs []error
	if next == userspaceName {
		errs = append(errs, nftables.KeepFlows(nftables.Options{}))
	}
	if next != nftablesName {
		errs = append(errs, nftables.Cleanup(ctx, nftables.Options{}))
	}
	if next != userspaceName {
		errs = append(errs, nftables.ForgetFlows(nftables.Options{}))
	}
	return errors.Join(errs...)
}

// Trace replaces what the model says by what the kernel has: that is what happens
// to the connection.
func (m nftablesMode) Trace(t *diag.Trace, c diag.Connection, _ *proxy.PortState, states []*proxy.PortState) {
	p := m.Path(c.To.Addr(), c.Protocol, c.To.Port(), c.From, c.By)
	rule := t.Rule
	t.Service, t.Role, t.Rule, t.Endpoints, t.Spare = "", "", "", []diag.TraceEndpoint{}, nil
	t.Outcome, t.List, t.Masquerade = p.Outcome, p.List, p.Masquerade
	if p.Outcome != "drop" {
		t.Reason = ""
	}
	if p.Service != nil {
		t.Service, t.Role, t.AffinitySeconds = p.Service.String(), p.Role, int(p.Affinity.Seconds())
	}
	if p.Outcome == "endpoint" {
		t.Rule = rule
	}
	weights := weightsOf(states, t.Service)
	for _, s := range p.Shares {
		t.Endpoints = append(t.Endpoints, diag.TraceEndpoint{
			Address: s.Endpoint.String(), Weight: weights[s.Endpoint],
			Share: float64(s.Slots) / float64(max(s.Of, 1)), Local: s.Local,
		})
	}
	for _, s := range p.Steps {
		t.Steps = append(t.Steps, diag.TraceStep{Object: s.Object, Does: s.Does})
	}
}

// weightsOf the endpoints of a service port.
func weightsOf(states []*proxy.PortState, name string) map[netip.AddrPort]uint32 {
	out := map[netip.AddrPort]uint32{}
	for _, s := range states {
		if s.Name.String() != name {
			continue
		}
		for _, list := range [][]proxy.Target{s.IPv4.Local, s.IPv6.Local, s.IPv4.Cluster, s.IPv6.Cluster} {
			for _, e := range list {
				out[e.Addr] = e.Weight
			}
		}
	}
	return out
}

// Dump compares the kernel's tables with those that the mode wants.
func (m nftablesMode) Dump(ctx context.Context) (Kernel, error) {
	d, err := m.Mode.Dump(ctx)
	if err != nil {
		return Kernel{}, err
	}
	return Kernel{Objects: d.Kernel, Compared: true, Missing: d.Missing, Foreign: d.Foreign}, nil
}

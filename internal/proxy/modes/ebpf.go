package modes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

// Names of the layer: above nftables, which --mode asks for, and where that does not work above iptables, which
// obeys fewer policies. The second one is a name in status and on Nodes; nobody asks for it.
const (
	ebpfName       = ebpf.Name
	ebpfAboveOther = ebpf.Name + "-" + iptablesName
)

// Layered reports whether a mode has the eBPF layer above another one.
func Layered(name string) bool { return name == ebpfName || name == ebpfAboveOther }

// TakesLayer reports whether the layer can be above a mode.
func TakesLayer(name string) bool { return name == nftablesName || name == iptablesName }

// ebpfMode is the layer, and traces what it and the mode below do.
type ebpfMode struct {
	*ebpf.Mode
	name  string
	below Mode
}

// newEbpf makes the layer above nftables or, where that does not work, iptables.
func newEbpf(ctx context.Context, cfg Config) (Mode, error) {
	if err := ebpf.Check(ebpf.Options{PeerIsVIP: cfg.PeerIsVIP}); err != nil {
		return nil, err
	}
	if cfg.Cgroup == "" || cfg.HostOnly {
		host, err := ebpf.OnHost()
		if cfg.HostOnly && err == nil && !host {
			return nil, &problem.Error{
				Code: problem.Usage, Err: errors.New("--ebpf-host-only: this agent is not in the network namespace of the host, whose sockets alone would be translated"),
				Hint: "leave the flag out, or run the agent in that namespace",
			}
		}
		if err != nil || !host {
			return nil, &problem.Error{
				Code: problem.Usage, Err: errors.Join(errors.New("--mode ebpf: this agent is not in the network namespace of the host, and programs at a cgroup see the sockets of all"), err),
				Hint: "give --cgroup the cgroup of the programs that are of this namespace, or use --mode nftables",
			}
		}
	}
	name := ebpfName
	below, err := newNftables(ctx, cfg)
	if held := new(HeldError); errors.As(err, &held) {
		return nil, err
	}
	if err != nil {
		cfg.Logger.Warn("nftables does not work here: iptables serves what the eBPF layer passes", "error", err)
		var other error
		if below, other = newIptables(ctx, cfg); other != nil {
			return nil, fmt.Errorf("the eBPF layer needs nftables or iptables below: %w", errors.Join(err, other))
		}
		name = ebpfAboveOther
	}
	m, err := ebpf.New(ebpf.Options{
		Logger: cfg.Logger.With("component", ebpfName), Registerer: cfg.Registerer, Cgroup: cfg.Cgroup, MasqueradeAll: cfg.MasqueradeAll,
		PeerIsVIP: cfg.PeerIsVIP, HostOnly: cfg.HostOnly,
		NodePortAddresses: func() []netip.Addr { return nodePortAddresses(cfg, below.Name()) },
	}, below)
	if err != nil {
		return nil, errors.Join(err, below.Close(ctx))
	}
	return ebpfMode{m, name, below}, nil
}

// nodePortAddresses are those that the mode below serves, but for addresses that are others in each network
// namespace.
func nodePortAddresses(cfg Config, below string) []netip.Addr {
	ranges := cfg.NodePortAddresses
	if ranges == nil {
		ranges = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	var primary []netip.Addr
	if cfg.NodePortAddresses == nil && cfg.PrimaryAddresses != nil && below == nftablesName {
		primary = cfg.PrimaryAddresses()
	}
	return slices.DeleteFunc(LocalAddresses(ranges), func(a netip.Addr) bool {
		return a.IsLoopback() || a.IsLinkLocalUnicast() || len(primary) > 0 && !slices.Contains(primary, a)
	})
}

// Name says what is below where that makes a difference.
func (m ebpfMode) Name() string { return m.name }

// cleanEbpf detaches the layer. The mode below is cleaned up by its own entry.
func cleanEbpf(_ context.Context, next string) error {
	if next == ebpfName {
		return nil
	}
	return ebpf.Cleanup(ebpf.Options{})
}

// Trace tells what the layer does with sockets of this machine, and then what the mode below does with packets.
func (m ebpfMode) Trace(t *diag.Trace, c diag.Connection, state *proxy.PortState, states []*proxy.PortState) {
	m.below.Trace(t, c, state, states)
	t.Mode = m.name
	s := m.Status()
	step := diag.TraceStep{Object: "ebpf programs at cgroup " + s.Cgroup}
	if s.Cgroup == "" {
		step.Object = "ebpf"
	}
	why := ebpf.NotTCP
	if c.Protocol == proxy.TCP {
		w := m.WayOf(c.To)
		if why = w.Why; why == ebpf.Translated {
			step.Does = fmt.Sprintf("a socket below that cgroup gets one of %d endpoints of %s at connect, and no rule below sees the address; connections of others go on", len(w.Endpoints), w.Port)
			if w.Sticky > 0 {
				step.Does += fmt.Sprintf("; a network namespace remembered within %d s goes where it went before", int(w.Sticky.Seconds()))
			}
		}
	}
	if why != ebpf.Translated {
		step.Does = "passes: " + string(why)
	}
	t.Steps = slices.Insert(t.Steps, 0, step)
}

// Dump is that of the mode below, and what the layer has.
func (m ebpfMode) Dump(ctx context.Context) (Kernel, error) {
	k, err := m.below.Dump(ctx)
	k.Objects = append(m.Mode.Dump(), k.Objects...)
	return k, err
}

// LayerOf a mode; nil: it has none.
func LayerOf(m Mode) *ebpf.Mode {
	if l, ok := m.(ebpfMode); ok {
		return l.Mode
	}
	return nil
}

// belowOf a mode that stays when it does: its own name where there is none below.
func belowOf(name string) string {
	if name == ebpfName {
		return nftablesName
	}
	return strings.TrimPrefix(name, ebpfName+"-")
}

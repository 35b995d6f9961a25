package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// newMode makes the data path that --mode names.
func (a *agent) newMode(ctx context.Context) (modes.Mode, error) {
	if a.gateway != nil {
		return a.gateway.mode(), nil
	}
	primary := a.primaryAddresses
	if a.cfg.AllNodePorts {
		primary = nil
	}
	windows := a.cfg.Windows
	windows.NodeAddresses, windows.HealthPort = a.primaryAddresses, uint16(a.cfg.HealthPort)
	return modes.New(ctx, a.cfg.Mode, modes.Config{
		Logger: a.log, Registerer: a.registry,
		ServiceCIDRs: a.cfg.ServiceCIDRs, WorkloadCIDRs: a.cfg.WorkloadCIDRs, WorkloadInterfaces: a.cfg.WorkloadInterfaces,
		MasqueradeAll: a.cfg.MasqueradeAll, MasqueradeMark: a.cfg.MasqueradeMark,
		NodePortAddresses: a.cfg.NodePortAddresses, PrimaryAddresses: primary, Cgroup: a.cfg.Cgroup, IPVS: a.cfg.IPVS,
		PeerIsVIP: a.cfg.PeerIsVIP, HostOnly: a.cfg.HostOnly,
		Windows: windows,
		Owner:   fmt.Sprintf("node %s, data directory %s", a.cfg.Name, a.cfg.DataDir),
	})
}

// primaryAddresses are the internal ones of this machine's Node where the kubelet writes it, and else those that
// this agent writes into it: by which others reach the machine. At most one per family.
func (a *agent) primaryAddresses() []netip.Addr {
	if own := a.ofNode.Load(); own != nil && len(*own) > 0 {
		return *own
	}
	return machine.Addresses(a.cfg.Server)
}

// ownPortsOnly reports whether names below "mesh" answer on the ports of their Services
// alone: the userspace mode opens sockets, and port 80 may need a privilege.
func (a *agent) ownPortsOnly() bool {
	if a.gateway != nil || a.mode.Name() != userspaceMode {
		return false
	}
	l, err := net.Listen("tcp", net.JoinHostPort(loopbackProbe, strconv.Itoa(proxy.CommonPort)))
	if err == nil {
		_ = l.Close()
		return false
	}
	if !errors.Is(err, syscall.EACCES) {
		return false // it is in use there
	}
	a.log.Info("names below \"mesh\" answer on the ports of their Services alone, not on port 80", "error", err,
		"hint", "run as root, grant CAP_NET_BIND_SERVICE, or lower the sysctl net.ipv4.ip_unprivileged_port_start")
	return true
}

// userspaceMode is the mode that opens sockets, and loopbackProbe an address at which
// hardly anything listens.
const (
	userspaceMode = "userspace"
	nftablesMode  = "nftables"
	ebpfMode      = "ebpf"
	ipvsMode      = "ipvs"
	loopbackProbe = "127.97.255.254"
)

// byNftables reports whether nftables carries the traffic, or what the eBPF layer above it passes, or decides what IPVS gets.
func byNftables(mode string) bool {
	return mode == nftablesMode || mode == ebpfMode || mode == ipvsMode
}

// modeGrace is how long open connections may finish when the agent ends.
const modeGrace = 5 * time.Second

// closeMode ends the mode with ctx.
func (a *agent) closeMode(ctx context.Context) error {
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), modeGrace)
	defer cancel()
	return a.mode.Close(grace)
}

// cleanOthers removes what another kernel mode of an earlier run left, once this one
// serves the traffic: there is no moment without rules, and connections that exist go on by
// their entries in the kernel.
func (a *agent) cleanOthers(ctx context.Context) error {
	if a.gateway != nil {
		<-ctx.Done() // the rules are those of the machine's agent
		return nil
	}
	select {
	case <-a.agent.Ready():
		if err := modes.Cleanup(ctx, a.mode.Name()); err != nil && ctx.Err() == nil {
			a.log.Warn("rules of another mode could not be removed; they may still match", "error", err,
				"hint", "stop the agent, run \"proxima node --cleanup\", and start it again")
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// estimateLayer finds out, once the agent serves, what mode ebpf would save where the mode was not asked for by name.
func (a *agent) estimateLayer(ctx context.Context) error {
	if a.cfg.Mode == modes.Auto && a.gateway == nil && len(a.cfg.SelfTest) > 0 && modes.TakesLayer(a.mode.Name()) {
		select {
		case <-a.agent.Ready():
			e := modes.EstimateLayer(ctx, a.cfg.SelfTest, a.mode.Name(), a.cfg.Cgroup)
			if ctx.Err() == nil {
				a.estimate.Store(&e)
				a.log.Info(e.String())
			}
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return nil
}

// CleanNode removes what agents of any mode left in this machine's kernel, and restores its
// resolver, whose files are below root (empty: those of the machine). It fails while an agent of a kernel
// mode runs, which would repair it. What is absent is no error.
func CleanNode(ctx context.Context, root string, log *slog.Logger) error {
	log = orDiscard(log)
	release, err := modes.Exclusive(ctx, "proxima node --cleanup", log)
	if held := new(modes.HeldError); errors.As(err, &held) {
		return &problem.Error{Code: held.Code(), Err: err, Hint: "stop that agent first: it would put back what is removed"}
	} else if err != nil {
		return err
	}
	defer release()
	if err := modes.Cleanup(ctx, ""); err != nil {
		if os.Geteuid() > 0 { // else each table's tool would report it
			err = errors.New("this user can't read or change the kernel's rules")
		}
		return &problem.Error{Code: problem.PrivilegeMissing, Err: err, Hint: "this needs root (CAP_NET_ADMIN)"}
	}
	log.Info("nothing of an agent is left in the kernel: no tables, chains or local routes")
	undone, err := resolvconf.System{Root: root}.Undo(ctx)
	if err != nil {
		return &problem.Error{Code: problem.PrivilegeMissing, Err: fmt.Errorf("the machine's resolver could not be restored: %w", err),
			Hint: "\"proxima doctor --undo\" tries it again"}
	}
	if undone {
		log.Info("the machine's resolver is as it was before the agent")
	}
	return nil
}

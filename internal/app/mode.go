package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// Modes that --mode names.
const (
	modeAuto      = "auto"
	modeNftables  = "nftables"
	modeIptables  = "iptables"
	modeUserspace = "userspace"
)

// Modes lists what --mode takes.
func Modes() []string { return []string{modeAuto, modeNftables, modeIptables, modeUserspace} }

// newMode makes the data path that --mode names. Auto is the first of nftables,
// iptables and userspace that works here; the log says why.
func newMode(ctx context.Context, cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	switch cfg.Mode {
	case modeAuto:
		return newBest(ctx, cfg, reg, log)
	case modeNftables:
		return newNftables(cfg, reg, log)
	case modeIptables:
		return newIptables(ctx, cfg, reg, log)
	case modeUserspace:
		return newUserspace(cfg, reg, log)
	case "ipvs", "ebpf":
		return nil, fmt.Errorf("--mode %s: not in this version; use nftables, iptables or userspace", cfg.Mode)
	}
	return nil, fmt.Errorf("--mode %q: use auto, nftables, iptables or userspace", cfg.Mode)
}

func newBest(ctx context.Context, cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	mode, why := newNftables(cfg, reg, log)
	if why == nil {
		log.Info("mode chosen", "mode", modeNftables, "why", "it is the fastest, and works here")
		return mode, nil
	}
	mode, whyNot := newIptables(ctx, cfg, reg, log)
	if whyNot == nil {
		log.Info("mode chosen", "mode", modeIptables, "why", "nftables does not work here", "nftables", why)
		return mode, nil
	}
	log.Info("mode chosen", "mode", modeUserspace, "why", "it works anywhere; the kernel's modes do not work here", "nftables", why, "iptables", whyNot)
	return newUserspace(cfg, reg, log)
}

func newNftables(cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	opts := nftables.Options{
		Logger: log.With("part", modeNftables), Registerer: reg, ServiceCIDRs: cfg.ServiceCIDRs,
		WorkloadCIDRs: cfg.WorkloadCIDRs, MasqueradeAll: cfg.MasqueradeAll,
		NodePortAddresses: cfg.NodePortAddresses, MasqueradeMark: cfg.MasqueradeMark,
	}
	if err := nftables.Check(opts); err != nil {
		return nil, err
	}
	return nftables.New(opts)
}

func newIptables(ctx context.Context, cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	opts := iptables.Options{
		Logger: log.With("part", modeIptables), Registerer: reg, ServiceCIDRs: cfg.ServiceCIDRs,
		WorkloadCIDRs: cfg.WorkloadCIDRs, MasqueradeAll: cfg.MasqueradeAll,
		NodePortAddresses: cfg.NodePortAddresses, MasqueradeMark: cfg.MasqueradeMark,
	}
	if err := iptables.Check(ctx, opts); err != nil {
		return nil, err
	}
	return iptables.New(opts)
}

func newUserspace(cfg NodeConfig, reg prometheus.Registerer, log *slog.Logger) (proxy.Mode, error) {
	opts := userspace.Options{Logger: log.With("part", modeUserspace), Registerer: reg, NodePortAddresses: localAddresses(cfg.NodePortAddresses)}
	for _, p := range cfg.ServiceCIDRs {
		if !p.Addr().IsLoopback() {
			opts.LocalRanges = append(opts.LocalRanges, p)
		}
	}
	return userspace.New(opts)
}

// cleanOthers removes what another kernel mode of an earlier run left, once this
// one carries the traffic: there is no moment without rules, and connections
// that exist go on by what the kernel remembers of them.
func (a *agent) cleanOthers(ctx context.Context) error {
	select {
	case <-a.agent.Ready():
		if err := cleanModes(ctx, a.mode.Name()); err != nil && ctx.Err() == nil {
			a.log.Warn("rules of another mode could not be removed; they may still match", "error", err, "hint", "stop the agent, run \"proxima node --cleanup\", and start it again")
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// CleanNode removes what agents of any mode left in this machine's kernel.
// Agents must not be running: they would repair it. What is absent is no error.
func CleanNode(ctx context.Context, log *slog.Logger) error {
	if err := cleanModes(ctx, ""); err != nil {
		if os.Geteuid() > 0 { // a tool for each table would say so
			err = errors.New("this user can't read or change the kernel's rules")
		}
		return &HintError{Err: err, Text: "this needs root (CAP_NET_ADMIN)"}
	}
	orDiscard(log).Info("nothing of an agent is left in the kernel")
	return nil
}

// cleanModes cleans up after all kernel modes but one. Modes that can't work
// here have left nothing. Open connections of the mode before go on, in the
// userspace mode by what is left of that mode.
func cleanModes(ctx context.Context, but string) error {
	var errs []error
	nft := nftables.Check(nftables.Options{}) == nil
	if nft && but == modeUserspace {
		errs = append(errs, nftables.KeepFlows(nftables.Options{}))
	}
	if nft && but != modeNftables {
		errs = append(errs, nftables.Cleanup(ctx, nftables.Options{}))
	}
	if nft && but != modeUserspace {
		errs = append(errs, nftables.ForgetFlows(nftables.Options{}))
	}
	if but != modeIptables {
		errs = append(errs, iptables.Cleanup(ctx, iptables.Options{}))
	}
	return errors.Join(errs...)
}

// localAddresses lists this machine's addresses within ranges; nil for no
// ranges, which is all.
func localAddresses(ranges []netip.Prefix) []netip.Addr {
	if len(ranges) == 0 {
		return nil
	}
	out := []netip.Addr{}
	addresses, _ := net.InterfaceAddrs() // none, then
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) }) {
			out = append(out, p.Addr())
		}
	}
	return out
}

package modes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

const ipvsName = ipvs.Name

// IPVS is what the ipvs mode is told in addition; the zero value is the default of each.
type IPVS struct {
	// Scheduler of Linux, such as wrr; empty: rr where the weights of a list are equal, else wrr.
	Scheduler string
	// StrictARP: this machine does not answer ARP for virtual addresses.
	StrictARP bool
	// SysctlDir has the kernel parameters that are written; empty: /proc/sys.
	SysctlDir string
	// TCPTimeout of idle connections, TCPFinTimeout of closing ones, and UDPTimeout of flows; 0: as the kernel has it.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// Check refuses a scheduler that Linux does not have, and timeouts below 0.
func (c IPVS) Check() error {
	if min(c.TCPTimeout, c.TCPFinTimeout, c.UDPTimeout) < 0 {
		return errors.New("timeouts of IPVS: none may be below 0; 0 leaves what the kernel has")
	}
	return ipvs.CheckScheduler(c.Scheduler)
}

// ipvsMode is the table of nftables with IPVS behind it.
type ipvsMode struct {
	nftablesMode
	ipvs *ipvs.Mode
}

// Modes that run because the kernel lacks something of IPVS. They have all that the mode has otherwise.
type (
	iptablesInstead struct {
		iptablesMode
		instead
	}
	nftablesInstead struct {
		nftablesMode
		instead
	}
)

// instead says why, also in metrics.
type instead struct {
	status     ipvs.Status
	registerer prometheus.Registerer // nil: no metrics
}

func (i instead) metrics() ipvs.Metrics {
	return ipvs.Metrics{Status: func() ipvs.Status { return i.status }}
}

func (i instead) forget() {
	if i.registerer != nil {
		i.registerer.Unregister(i.metrics())
	}
}

// Close takes the metrics back, too.
func (m iptablesInstead) Close(ctx context.Context) error {
	m.forget()
	return m.iptablesMode.Close(ctx)
}

// Close takes the metrics back, too.
func (m nftablesInstead) Close(ctx context.Context) error {
	m.forget()
	return m.nftablesMode.Close(ctx)
}

func newIpvs(ctx context.Context, cfg Config) (Mode, error) {
	if err := cfg.IPVS.Check(); err != nil {
		return nil, err
	}
	tables := nftablesOptions(cfg)
	tables.Logger = cfg.Logger.With("component", ipvsName)
	err := ipvs.Check(cfg.IPVS.Scheduler)
	if err == nil {
		err = nftables.Check(tables)
	}
	if err != nil {
		return newInstead(ctx, cfg, err)
	}
	m, err := ipvs.New(ipvs.Options{
		Tables: tables, Scheduler: cfg.IPVS.Scheduler, StrictARP: cfg.IPVS.StrictARP, SysctlDir: cfg.IPVS.SysctlDir,
		TCPTimeout: cfg.IPVS.TCPTimeout, TCPFinTimeout: cfg.IPVS.TCPFinTimeout, UDPTimeout: cfg.IPVS.UDPTimeout,
	})
	if err != nil {
		return nil, err
	}
	l, err := exclusive(ctx, m, cfg)
	if err != nil {
		return nil, err
	}
	return ipvsMode{nftablesMode{m.Mode, l}, m}, nil
}

// newInstead makes the mode that takes the place of IPVS where the kernel lacks a part: iptables or, where that does not work,
// nftables. Other errors are not made up for.
func newInstead(ctx context.Context, cfg Config, why error) (Mode, error) {
	var coded problem.Coded
	if !errors.As(why, &coded) || coded.Code() != problem.ModeUnavailable {
		return nil, why
	}
	m, err := newIptables(ctx, cfg)
	if held := new(HeldError); errors.As(err, &held) {
		return nil, err
	}
	if err != nil {
		var other error
		if m, other = newNftables(ctx, cfg); other != nil {
			return nil, errors.Join(why, err, other)
		}
	}
	status := ipvs.Status{Instead: m.Name(), Why: why.Error()}
	if missing := new(ipvs.MissingError); errors.As(why, &missing) {
		status.Missing = missing.Modules
	}
	cfg.Logger.Warn("IPVS does not work here: another mode carries the traffic", "mode", m.Name(), "error", why)
	i := instead{status, cfg.Registerer}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(i.metrics()); err != nil {
			return nil, errors.Join(fmt.Errorf("registering metrics of the ipvs mode: %w", err), m.Close(ctx))
		}
	}
	switch m := m.(type) {
	case iptablesMode:
		return iptablesInstead{m, i}, nil
	case nftablesMode:
		return nftablesInstead{m, i}, nil
	}
	return m, nil
}

// Name of the mode.
func (m ipvsMode) Name() string { return ipvsName }

// SetRanges implements proxy.Ranged: the ranges are routed, too.
func (m ipvsMode) SetRanges(ranges []netip.Prefix) error { return m.ipvs.SetRanges(ranges) }

// Exchanges implements proxy.Accountant: none is known.
func (ipvsMode) Exchanges() (proxy.Accounting, iter.Seq2[proxy.PortName, proxy.Exchange]) {
	return proxy.Accounting{Reason: ipvs.NotAccounted}, func(func(proxy.PortName, proxy.Exchange) bool) {}
}

// Close releases the network namespace for another agent, too.
func (m ipvsMode) Close(ctx context.Context) error {
	defer m.lock.release()
	return m.ipvs.Close(ctx)
}

// Dump compares the table and the services with those that the mode wants.
func (m ipvsMode) Dump(ctx context.Context) (Kernel, error) {
	k, err := m.nftablesMode.Dump(ctx)
	if err != nil {
		return k, err
	}
	objects, missing, foreign, err := m.ipvs.Services()
	k.Objects, k.Missing, k.Foreign = append(k.Objects, objects...), append(k.Missing, missing...), append(k.Foreign, foreign...)
	return k, err
}

// leaveEvery is how often IPVS is asked whether its connections have ended, after a switch to another mode.
const leaveEvery = 10 * time.Second

// cleanIpvs removes services and routes; the table in front is cleaned up by its own entry. Where another mode follows, what
// has connections is removed when they have ended, unless ctx ends before.
func cleanIpvs(ctx context.Context, next string) error {
	switch next {
	case ipvsName:
		return nil
	case "":
		return ipvs.Cleanup()
	}
	left, err := ipvs.Leave()
	if left {
		go func() {
			tick := time.NewTicker(leaveEvery)
			defer tick.Stop()
			for left {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if again, err := ipvs.Leave(); err == nil {
					left = again
				}
			}
		}()
	}
	return err
}

// IPVSOf a mode: what it has in IPVS, or why it runs in the place of that mode; nil: neither.
func IPVSOf(m Mode) *ipvs.Status {
	switch m := m.(type) {
	case ipvsMode:
		s := m.ipvs.Status()
		return &s
	case iptablesInstead:
		return &m.status
	case nftablesInstead:
		return &m.status
	}
	return nil
}

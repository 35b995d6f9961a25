package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/dns/capture"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// nameCapture leads questions of port 53 to an agent's DNS server while it runs; nil: off.
type nameCapture struct {
	sockets *capture.Sockets
	rules   capture.Rules
}

// openCapture opens the sockets that questions are led to, and finds out whether the machine
// can do it, so that the agent refuses to start if not.
func (a *agent) openCapture(upstreams []string) (*nameCapture, error) {
	if len(upstreams) == 0 {
		return nil, &problem.Error{
			Code: problem.CaptureUnavailable,
			Err:  errors.New("--dns-capture: this machine has no resolver for names of others"),
			Hint: "name one in /etc/resolv.conf, or with --dns-upstream",
		}
	}
	sockets, err := capture.Listen()
	if err != nil {
		return nil, &problem.Error{Code: problem.ListenFailed, Err: fmt.Errorf("--dns-capture: %w", err), Hint: "stop what uses the port"}
	}
	c := &nameCapture{sockets: sockets, rules: capture.Rules{Port: sockets.Port, Only: a.capturedServers(upstreams), Workloads: a.cfg.WorkloadCIDRs}}
	if err := c.try(); err != nil {
		sockets.Close()
		return nil, err
	}
	return c, nil
}

// capturedServers are those to which questions of this machine's programs are captured; nil:
// all. A resolver of this machine that the agent asks has others to ask in turn: if these
// questions were captured, too, they would go round.
func (a *agent) capturedServers(upstreams []string) []netip.Addr {
	if !slices.ContainsFunc(upstreams, onThisMachine) {
		return nil
	}
	servers, err := a.cfg.Resolver.Nameservers()
	if err != nil {
		a.log.Warn("name servers of this machine are not known", "error", err)
	}
	for _, u := range upstreams {
		if at, err := netip.ParseAddrPort(u); err == nil && onThisMachine(u) && !slices.Contains(servers, at.Addr()) {
			servers = append(servers, at.Addr())
		}
	}
	return servers
}

// onThisMachine reports whether a server (ADDRESS:PORT) is.
func onThisMachine(server string) bool {
	at, err := netip.ParseAddrPort(server)
	if err != nil {
		return false
	}
	if at.Addr().IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == at.Addr().WithZone("")
	})
}

// try puts the rules into effect for a moment.
func (c *nameCapture) try() error {
	got, err := capture.Install(0, c.rules)
	if err != nil {
		return captureProblem(err)
	}
	return got.Close()
}

func captureProblem(err error) error {
	p := &problem.Error{
		Code: problem.CaptureUnavailable, Err: fmt.Errorf("--dns-capture: %w", err),
		Hint: "run the agent without it, and point the machine's resolver at it: \"proxima doctor --fix\"",
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		p.Err = errors.New("--dns-capture: this process may not change the kernel's rules")
		p.Code, p.Hint = problem.PrivilegeMissing, "run the agent as root, or with CAP_NET_ADMIN; without, \"proxima doctor --fix\" points the machine's resolver at it"
	case errors.Is(err, capture.ErrTaken):
		p.Hint = "stop the other agent, or run this one without --dns-capture"
	}
	return p
}

// component answers what is captured. The rules go before the sockets do.
func (c *nameCapture) component(a *agent) component {
	return component{Name: "DNS capture", Run: func(ctx context.Context) error {
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		var servers sync.WaitGroup
		defer servers.Wait()
		defer stop()
		for _, u := range c.sockets.UDP {
			servers.Go(func() { _ = a.dns.server.ServeCapturedUDP(serving, u) })
		}
		for _, l := range c.sockets.TCP {
			servers.Go(func() {
				if err := a.dns.server.ServeCapturedTCP(serving, l); err != nil {
					a.log.Error("captured DNS over TCP is not answered any more", "error", err)
				}
			})
		}
		rules, err := capture.Install(0, c.rules)
		if err != nil {
			return captureProblem(err)
		}
		a.log.Info("questions of port 53 are captured", "port", c.rules.Port, "only_to", c.rules.Only, "workloads", c.rules.Workloads)
		c.endFlows(a)
		<-ctx.Done()
		err = rules.Close()
		c.endFlows(a)
		return err
	}}
}

// endFlows of clients that keep their port. They come by themselves within minutes.
func (c *nameCapture) endFlows(a *agent) {
	if err := capture.EndFlows(0); err != nil {
		a.log.Warn("flows of DNS go their old way until they end", "error", err)
	}
}

func (c *nameCapture) close() {
	if c != nil {
		c.sockets.Close()
	}
}

// status for people; nil: off.
func (c *nameCapture) status(questions uint64) *admin.CaptureStatus {
	if c == nil {
		return nil
	}
	s := &admin.CaptureStatus{Port: c.rules.Port, Questions: questions}
	for _, o := range c.rules.Only {
		s.Only = append(s.Only, o.String())
	}
	for _, w := range c.rules.Workloads {
		s.Workloads = append(s.Workloads, w.String())
	}
	return s
}

// ParseUpstreams reads a user's resolvers: addresses, with the port where it is not 53.
func ParseUpstreams(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		text = strings.TrimSpace(text)
		at, err := netip.ParseAddrPort(text)
		if addr, plain := netip.ParseAddr(text); plain == nil {
			at, err = netip.AddrPortFrom(addr, 53), nil
		}
		if err != nil || at.Port() == 0 || at.Addr().IsUnspecified() {
			return nil, fmt.Errorf("--dns-upstream %q: not an address such as 192.0.2.53 or 192.0.2.53:5353", text)
		}
		out = append(out, at.String())
	}
	return out, nil
}

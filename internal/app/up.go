package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/controller/virtualip"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// UpConfig configures a control plane and an agent in one process.
type UpConfig struct {
	ControlPlane ControlPlaneConfig
	Node         NodeConfig
}

// RunUp runs a standalone control plane and this machine's agent until ctx ends, and calls
// ready once both serve. The agent joins over the network like any other, with a token
// that lives for that moment only. It ends before the control plane does.
func RunUp(ctx context.Context, cfg UpConfig, ready func(Serving)) error {
	if cfg.ControlPlane.GRPCPort == 0 {
		return &problem.Error{
			Code: problem.NodeViewOff,
			Err:  errors.New("the agent follows its view over gRPC, which --grpc-port 0 turns off"),
			Hint: "choose a port, or run \"proxima control-plane\" without an agent",
		}
	}
	cp, err := newStandalone(ctx, cfg.ControlPlane)
	if err != nil {
		return err
	}
	defer cp.close()
	agent := component{Name: "agent", Run: func(ctx context.Context) error { return cp.runAgent(ctx, cfg.Node, ready) }}
	return run(ctx, cp.election, append(cp.components(), agent))
}

// runAgent runs this process's own agent.
func (cp *standalone) runAgent(ctx context.Context, node NodeConfig, ready func(Serving)) error {
	node.Server = reachable(cp.api.address)
	token, err := cp.joinToken(ctx, node)
	if err != nil {
		return err
	}
	node.Token = token
	// Its Node may be deleted while it runs. This is the control plane's own machine, so it
	// comes back.
	node.NewToken = func(ctx context.Context) (string, error) { return cp.ownToken(ctx, node.Name) }
	return RunNode(ctx, node, func(s Serving) {
		serving := cp.serving()
		serving.Node, serving.Mode, serving.DNS = s.Node, s.Mode, s.DNS
		ready(serving)
	})
}

// joinToken makes a token for this process's own agent, if its credentials will not be
// accepted. It registers everywhere: the owner of this process has the administrator's
// kubeconfig.
func (cp *standalone) joinToken(ctx context.Context, node NodeConfig) (string, error) {
	dir := filepath.Join(node.DataDir, "node")
	c, err := identity.LoadCredentials(dir)
	if err == nil && c.Server == node.Server && c.Trusts(cp.storage.ca.Pin()) && time.Until(c.NotAfter) > time.Minute {
		name, _ := identity.NodeName(c.Subject.User, c.Subject.Groups)
		if name == node.Name && cp.storage.revocations.Check(ctx, c.Subject) == nil && c.Subject.Bounds.Everywhere() {
			return "", nil
		}
		// The agent would go on with what it has, whatever token it is given.
		if err := identity.RemoveCredentials(dir); err != nil {
			return "", err
		}
	}
	return cp.ownToken(ctx, node.Name)
}

// ownToken makes a token that lives for the moment of joining.
func (cp *standalone) ownToken(ctx context.Context, name string) (string, error) {
	bounds := identity.Bounds{Namespaces: []string{identity.EveryNamespace}}
	token, _, err := cp.storage.tokens.CreateBounded(ctx, identity.Node, name, bounds, time.Minute, "system:proxima:up")
	if err != nil {
		return "", fmt.Errorf("token for the agent: %w", err)
	}
	return token.Reveal(), nil
}

// DefaultServiceCIDRs are the ranges at the first start: loopback addresses where
// a process without privileges can serve them, Kubernetes' usual ones for root.
func DefaultServiceCIDRs(privileged bool) []netip.Prefix {
	if !privileged {
		return []netip.Prefix{netip.MustParsePrefix("127.96.0.0/16")}
	}
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}
}

// DefaultMeshCIDRs are the ranges of virtual IPs of names below "mesh" at the first start:
// those of Kuma for root, loopback addresses otherwise, and on Windows, which routes no
// addresses of class E, a part of the range for shared address space (RFC 6598). IPv6 only
// where Services have it.
func DefaultMeshCIDRs(privileged bool, services []netip.Prefix) []netip.Prefix {
	switch {
	case runtime.GOOS == "windows":
		return []netip.Prefix{netip.MustParsePrefix("100.96.0.0/11")}
	case !privileged:
		return []netip.Prefix{netip.MustParsePrefix("127.97.0.0/16")}
	}
	out := []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4")}
	if slices.ContainsFunc(services, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		out = append(out, netip.MustParsePrefix("fd00:240::/64"))
	}
	return out
}

// ParseMeshCIDRs reads a user's ranges for names below "mesh": one per IP family.
func ParseMeshCIDRs(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err == nil {
			err = virtualip.CheckRange(p)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("--mesh-cidr %q: %w", text, err)
		case len(out) == 2 || (len(out) == 1 && out[0].Addr().Is4() == p.Addr().Is4()):
			return nil, errors.New("--mesh-cidr: one range of IPv4 and one of IPv6 at the most")
		}
		out = append(out, p)
	}
	return out, nil
}

// ParseServiceCIDRs reads a user's ranges: one per IP family.
func ParseServiceCIDRs(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--service-cidr %q: not a CIDR such as 10.96.0.0/16", text)
		case p != p.Masked():
			return nil, fmt.Errorf("--service-cidr %s: has host bits; did you mean %s?", text, p.Masked())
		case len(out) == 2 || (len(out) == 1 && out[0].Addr().Is4() == p.Addr().Is4()):
			return nil, errors.New("--service-cidr: one range of IPv4 and one of IPv6 at the most")
		}
		out = append(out, p)
	}
	return out, nil
}

// HostOf an address HOST:PORT.
func HostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

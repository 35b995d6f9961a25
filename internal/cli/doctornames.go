package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const resolverCheck = "names through this machine's resolver"

// resolverPatience bounds one look through a resolver; a stub waits as long
// (resolv.conf(5), timeout).
const resolverPatience = 6 * time.Second

func (s *settings) undoResolver(ctx context.Context, d doctorFlags) error {
	undone, err := resolvconf.System{Root: d.root}.Undo(ctx)
	if err != nil {
		return asRoot(err)
	}
	if undone {
		fmt.Fprintln(s.io.Err, "this machine's resolver is as it was before")
	} else {
		fmt.Fprintln(s.io.Err, "this machine's resolver was not set by proxima; nothing to undo")
	}
	return nil
}

func asRoot(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &problem.Error{Code: problem.PrivilegeMissing, Err: err, Hint: "run it as root"}
	}
	return err
}

// resolver looks whether this machine's programs find the names of Services, and
// with --fix sees to it.
func (s *settings) resolver(ctx context.Context, d doctorFlags, agent *admin.NodeStatus, ranges []netip.Prefix) finding {
	f := finding{Check: resolverCheck}
	system := resolvconf.System{Root: d.root}
	address := d.dnsAddress
	if address == "" && agent != nil {
		address = agent.DNS
	}
	server, err := netip.ParseAddrPort(address)
	if err != nil {
		return withoutNames(ctx, f, system, agent, d.dnsAddress)
	}
	server = resolvconf.Reachable(server)
	f.Check += " (" + string(system.Manner()) + ")"
	if _, err := askServer(ctx, server); err != nil {
		f.Problem = fmt.Sprintf("the agent's own DNS server does not tell them: %v", err)
		f.Fix = "see the agent's log"
		if d.dnsAddress != "" {
			f.Fix = "is --dns-address right, and led to the agent?"
		}
		return f
	}
	if d.fix {
		if err := s.fixResolver(ctx, system, server, ranges); err != nil {
			f.Problem, f.Fix = err.Error(), problem.HintOf(asRoot(err), "set the machine's resolver by hand: see docs/how-to/names.md")
			return f
		}
	}
	looking, cancel := context.WithTimeout(ctx, resolverPatience)
	defer cancel()
	err = system.Lookup(looking, app.ClusterDomain)
	if err == nil {
		f.Note = "found, by " + server.String()
		return f
	}
	f.Problem = fmt.Sprintf("programs do not find names in %s: %v", app.ClusterDomain, err)
	f.Fix = "run \"proxima doctor --fix\" as root"
	if system.Manner() == resolvconf.ResolvConf && server.Port() != 53 {
		f.Fix = (&resolvconf.PortError{Server: server}).Hint() + "; then \"proxima doctor --fix\""
	}
	return f
}

// withoutNames is the finding where no agent tells names: then the resolver must
// not point at one.
func withoutNames(ctx context.Context, f finding, system resolvconf.System, agent *admin.NodeStatus, given string) finding {
	if given != "" {
		f.Problem, f.Fix = fmt.Sprintf("--dns-address %q is not ADDRESS:PORT", given), "give it as in 127.0.0.1:53"
		return f
	}
	if server, ok := system.Current(); ok {
		if answered, err := askServer(ctx, server); !answered {
			f.Problem = fmt.Sprintf("this machine's resolver was pointed at %s, where no agent answers: %v", server, err)
			f.Fix = "start the agent, or run \"proxima doctor --undo\" as root"
			return f
		}
		f.Note = "found, by " + server.String()
		return f
	}
	f.Note = "not looked at: no agent of this machine tells names"
	if agent != nil {
		f.Note = "not looked at: this machine's agent runs without DNS (--dns-port)"
	}
	return f
}

func askServer(ctx context.Context, server netip.AddrPort) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return resolvconf.Ask(ctx, server, app.ClusterDomain)
}

func (s *settings) fixResolver(ctx context.Context, system resolvconf.System, server netip.AddrPort, ranges []netip.Prefix) error {
	manner, err := system.Set(ctx, resolvconf.Setting{Server: server, Domain: app.ClusterDomain, Ranges: ranges})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.io.Err, "%s asks %s for names in %s now; undone when the agent ends, or by \"proxima doctor --undo\"\n", manner, server, app.ClusterDomain)
	return nil
}

// serviceRanges of the control plane; none if it does not tell.
func (s *settings) serviceRanges(ctx context.Context) []netip.Prefix {
	cfg, _, err := s.restConfig()
	if err != nil {
		return nil
	}
	cfg.Timeout = 5 * time.Second
	client, err := kubeclient.New(cfg, []*resource.Descriptor{kind.ServiceCIDR})
	if err != nil {
		return nil
	}
	list, _, err := client.List(ctx, kind.ServiceCIDR, resource.ListOptions{})
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, obj := range list {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, p)
			}
		}
	}
	return out
}

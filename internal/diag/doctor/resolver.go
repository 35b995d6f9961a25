package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/dns"
	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/problem"
)

const resolverTitle = "names through this machine's resolver"

// resolverTimeout bounds one query through a resolver; a stub waits as long
// (resolv.conf(5), timeout).
const resolverTimeout = 6 * time.Second

// UndoResolver restores the machine's resolver as it was before Config.Fix changed it.
// undone is false if it was not changed. root is Config.Root.
func UndoResolver(ctx context.Context, root string) (undone bool, err error) {
	undone, err = resolvconf.System{Root: root}.Undo(ctx)
	return undone, asRoot(err)
}

func asRoot(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &problem.Error{Code: problem.PrivilegeMissing, Err: err, Hint: "run it as root"}
	}
	return err
}

// resolver checks whether this machine's programs can resolve names of Services, and
// with --fix sees to it.
func (x examiner) resolver(ctx context.Context, agent *admin.NodeStatus, ranges []netip.Prefix) Finding {
	f := Finding{ID: checkResolver, Check: resolverTitle}
	system := resolvconf.System{Root: x.Root}
	if agent != nil && agent.Capture != nil {
		return x.captured(ctx, f, agent.Capture)
	}
	address := x.DNSAddress
	if address == "" && agent != nil {
		address = agent.DNS
	}
	server, err := netip.ParseAddrPort(address)
	if err != nil {
		return withoutNames(ctx, f, system, agent, x.DNSAddress)
	}
	server = resolvconf.Reachable(server)
	f.Check += " (" + string(system.Manner()) + ")"
	if _, err := askServer(ctx, server); err != nil {
		fix := "see the agent's log"
		if x.DNSAddress != "" {
			fix = "is --dns-address right, and redirected to the agent?"
		}
		f.fail(problem.DNSNotAnswering, fmt.Sprintf("the agent's own DNS server does not resolve them: %v", err), fix)
		return f
	}
	if x.Fix {
		if err := x.fixResolver(ctx, system, server, ranges); err != nil {
			f.failWith(asRoot(err), problem.ResolverFailed, "set the machine's resolver by hand: see \"proxima docs how-to/names\"")
			return f
		}
	}
	looking, cancel := context.WithTimeout(ctx, resolverTimeout)
	defer cancel()
	domain, err := lookUp(looking, system)
	if err == nil {
		f.Note = "found, by " + server.String()
		return f
	}
	fix := "run \"proxima doctor --fix\" as root"
	if system.Manner() == resolvconf.ResolvConf && server.Port() != 53 {
		fix = (&resolvconf.PortError{Server: server}).Hint() + "; then \"proxima doctor --fix\""
	}
	f.fail(problem.ResolverNotSet, fmt.Sprintf("programs do not find names in %s: %v", domain, err), fix)
	return f
}

// captured is the finding where the agent captures port 53: then whatever the machine's
// resolver is does, and there is nothing to fix in its files.
func (x examiner) captured(ctx context.Context, f Finding, capture *admin.CaptureStatus) Finding {
	f.Check += " (captured)"
	looking, cancel := context.WithTimeout(ctx, resolverTimeout)
	defer cancel()
	if domain, err := lookUp(looking, resolvconf.System{Root: x.Root}); err != nil {
		f.fail(problem.ResolverNotSet, fmt.Sprintf("programs do not find names in %s, although the agent captures port 53 of %s: %v", domain, Captured(capture), err),
			"is there another program that redirects port 53? see \"nft list ruleset\"")
		return f
	}
	f.Note = "found: the agent captures port 53 of " + Captured(capture)
	return f
}

// Captured says whose questions an agent captures.
func Captured(c *admin.CaptureStatus) string {
	local, passing := "this machine's programs", "what passes through it"
	if len(c.Only) > 0 {
		local += " to " + strings.Join(c.Only, ", ")
	}
	if len(c.Workloads) > 0 {
		passing += " from " + strings.Join(c.Workloads, ", ")
	}
	return local + " and " + passing
}

// withoutNames is the finding where no agent serves names: then the resolver must
// not point at one.
func withoutNames(ctx context.Context, f Finding, system resolvconf.System, agent *admin.NodeStatus, given string) Finding {
	if given != "" {
		f.fail(problem.Usage, fmt.Sprintf("--dns-address %q is not ADDRESS:PORT", given), "give it as in 127.0.0.1:53")
		return f
	}
	if server, ok := system.Current(); ok {
		if answered, err := askServer(ctx, server); !answered {
			f.fail(problem.ResolverStale, fmt.Sprintf("this machine's resolver was pointed at %s, where no agent answers: %v", server, err),
				"start the agent, or run \"proxima doctor --undo\" as root")
			return f
		}
		f.Note = "found, by " + server.String()
		return f
	}
	f.Note = "not checked: no agent of this machine serves names"
	if agent != nil {
		f.Note = "not checked: this machine's agent runs without DNS (--dns-port)"
	}
	return f
}

func askServer(ctx context.Context, server netip.AddrPort) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return resolvconf.Ask(ctx, server, app.ClusterDomain)
}

// domains that the agent answers for.
func domains() []string {
	return []string{app.ClusterDomain, dns.ClusterSetDomain, dns.MeshDomain}
}

// lookUp asks for a name of each domain as the machine's programs do, and returns the first
// domain that is not routed to an agent.
func lookUp(ctx context.Context, system resolvconf.System) (domain string, err error) {
	if err := system.Lookup(ctx, app.ClusterDomain); err != nil {
		return app.ClusterDomain, err
	}
	for _, domain := range domains()[1:] {
		if err := system.LookupZone(ctx, domain); err != nil {
			return domain, err
		}
	}
	return "", nil
}

func (x examiner) fixResolver(ctx context.Context, system resolvconf.System, server netip.AddrPort, ranges []netip.Prefix) error {
	manner, err := system.Set(ctx, resolvconf.Setting{Server: server, Domains: domains(), Ranges: ranges})
	if err != nil {
		return err
	}
	if x.Fixed != nil {
		x.Fixed(fmt.Sprintf("%s sends queries for names in %s to %s now; undone when the agent ends, or by \"proxima doctor --undo\"",
			manner, strings.Join(domains(), ", "), server))
	}
	return nil
}

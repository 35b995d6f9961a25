package resolvconf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// maxServers of a resolv.conf are asked (resolv.conf(5), MAXNS).
const maxServers = 3

// probeName exists in every cluster domain (Kubernetes DNS specification, 2.2).
const probeName = "dns-version."

// ErrNotFound: the resolver that was asked does not know the names of Services.
var ErrNotFound = errors.New("it does not know the names of Services")

// Lookup asks for a name of the cluster domain as the machine's programs do: of
// the servers of /etc/resolv.conf in their order, the next only if one does not
// answer. nil: names of Services are found.
func (s System) Lookup(ctx context.Context, domain string) error { return s.lookup(ctx, domain, Ask) }

// LookupZone is Lookup for a domain without that name: it asks whether the agent's zone is
// what the resolver knows.
func (s System) LookupZone(ctx context.Context, domain string) error {
	return s.lookup(ctx, domain, askZone)
}

// asker asks one server, as Ask.
type asker func(ctx context.Context, server netip.AddrPort, domain string) (answered bool, err error)

func (s System) lookup(ctx context.Context, domain string, ask asker) error {
	data, err := os.ReadFile(s.path(resolvConf))
	if err != nil {
		return fmt.Errorf("resolvers of this machine: %w", err)
	}
	servers := nameservers(string(data))
	if len(servers) == 0 {
		servers = []netip.Addr{loopback(netip.IPv4Unspecified())} // resolv.conf(5)
	}
	var last error
	for _, a := range servers[:min(len(servers), maxServers)] {
		var answered bool
		if answered, last = ask(ctx, netip.AddrPortFrom(a, s.port()), domain); answered {
			return last
		}
	}
	return last
}

// Ask one server for a name of the cluster domain. answered: it said yes (nil) or
// no (ErrNotFound); else the error reports why there was no answer.
func Ask(ctx context.Context, server netip.AddrPort, domain string) (answered bool, err error) {
	return exchange(ctx, server, probeName+domain, dns.TypeTXT, func(dns.RR) bool { return true })
}

// askZone asks for the SOA record of a domain: only an agent's names such a server.
func askZone(ctx context.Context, server netip.AddrPort, domain string) (answered bool, err error) {
	return exchange(ctx, server, domain, dns.TypeSOA, func(rr dns.RR) bool {
		soa, ok := rr.(*dns.SOA)
		return ok && strings.EqualFold(soa.Ns, "ns.dns."+dns.Fqdn(domain))
	})
}

func exchange(
	ctx context.Context, server netip.AddrPort, name string, qtype uint16, ours func(dns.RR) bool,
) (answered bool, err error) {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), qtype)
	r, _, err := new(dns.Client).ExchangeContext(ctx, q, server.String())
	switch {
	case err != nil:
		return false, fmt.Errorf("resolver %s: %w", server, err)
	case r.Rcode == dns.RcodeServerFailure || r.Rcode == dns.RcodeRefused || r.Rcode == dns.RcodeNotImplemented:
		return false, fmt.Errorf("resolver %s: %s", server, dns.RcodeToString[r.Rcode])
	case r.Rcode != dns.RcodeSuccess || !slices.ContainsFunc(r.Answer, ours):
		return true, fmt.Errorf("resolver %s: %w", server, ErrNotFound)
	}
	return true, nil
}

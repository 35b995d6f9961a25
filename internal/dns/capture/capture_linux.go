package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Chains of the table. Those of NAT come before those of modes (-100), so that questions to
// a virtual IP are captured, too.
const (
	chainForwarded = "forwarded"
	chainLocal     = "local"
	chainGuard     = "guard"

	natPriority   = -110
	guardPriority = -10
)

// dnsPort is that of questions (RFC 1035, 4.2).
const dnsPort = 53

func table() nfnl.Table { return nfnl.Table{Family: unix.NFPROTO_INET, Name: TableName} }

// Capture is in effect until Close, or until the process ends.
type Capture struct{ conn *nfnl.Conn }

// Install puts rules into effect in the network namespace of a file descriptor, or of the
// calling thread if it is 0. Flows that exist stay as they are: see EndFlows. The error is
// ErrTaken, ErrUnsupported, or unix.EPERM without CAP_NET_ADMIN; nothing is in effect then.
func Install(namespace int, rules Rules) (*Capture, error) {
	conn, err := nfnl.Open(namespace)
	if err != nil {
		return nil, err
	}
	if err := conn.Commit(rules.batch()); err != nil {
		return nil, errors.Join(explain(conn, err), conn.Close())
	}
	return &Capture{conn: conn}, nil
}

// explain an error of the kernel, which says EPERM for a lack of privileges as well as for a
// table of another process.
func explain(conn *nfnl.Conn, err error) error {
	if there, _, unknown := conn.HasTable(table()); unknown == nil && there {
		return ErrTaken
	}
	for _, lacking := range []error{unix.EOPNOTSUPP, unix.EINVAL, unix.ENOENT, unix.EAFNOSUPPORT} {
		if errors.Is(err, lacking) {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
	}
	return err
}

// Close ends the capture.
func (c *Capture) Close() error { return c.conn.Close() } // the kernel deletes the table with it

// EndFlows has UDP clients that keep their port come under the rules that are in effect:
// NAT is decided by the first packet of a flow. Namespace as in Install.
func EndFlows(namespace int) error {
	flows, err := conntrack.Open(namespace)
	if err != nil {
		return err
	}
	_, err = flows.EndTo(proxy.UDP, dnsPort)
	return errors.Join(err, flows.Close())
}

// Control marks a socket, so that what it asks is not captured. It is for net.Dialer and
// needs CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17.
func Control(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, Mark) })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("mark a socket: %w", err)
	}
	return nil
}

// batch is the transaction that adds the table.
func (r Rules) batch() *nfnl.Batch {
	b, t := &nfnl.Batch{}, table()
	b.AddOwnedTable(t)
	for _, c := range []nfnl.Chain{
		{Name: chainForwarded, Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: natPriority},
		{Name: chainLocal, Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: natPriority},
		{Name: chainGuard, Type: "filter", Hook: unix.NF_INET_LOCAL_IN, Priority: guardPriority},
	} {
		b.AddChain(t, c)
	}
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, from := range orAny(r.Workloads) {
			rule := forwarded(question(protocol))
			if from.IsValid() {
				rule = rule.SourceIn(from)
			}
			b.AddRule(t, chainForwarded, r.redirect(rule))
		}
		for _, to := range orAny(exact(r.Only)) {
			rule := unmarked(question(protocol))
			if to.IsValid() {
				rule = rule.DestinationIn(to)
			}
			b.AddRule(t, chainLocal, r.redirect(rule))
		}
		b.AddRule(t, chainGuard, r.guard(protocol))
	}
	return b
}

// orAny is the zero prefix, for everything, if there are none.
func orAny(prefixes []netip.Prefix) []netip.Prefix {
	if len(prefixes) == 0 {
		return []netip.Prefix{{}}
	}
	return prefixes
}

func exact(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a.WithZone(""), a.BitLen()))
	}
	return out
}

// to matches packets of a protocol to a port.
func to(protocol byte, port uint16, comment string) *nfnl.Rule {
	return (&nfnl.Rule{Comment: comment}).
		Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{protocol})).
		Transport(2, 2, 0).Equal(0, nfnl.Port(port))
}

// question matches questions of programs. Resolvers that follow referrals by themselves ask
// without RD (RFC 1035, 4.1.1), and what they ask is for the server that they ask alone.
func question(protocol byte) *nfnl.Rule {
	r := to(protocol, dnsPort, "")
	if protocol == unix.IPPROTO_UDP {
		const udpHeader, flags, recursionDesired = 8, 2, "\x01"
		r.Transport(udpHeader+flags, 1, 0).Mask(0, recursionDesired, "\x00").Equal(0, recursionDesired)
	}
	return r
}

// forwarded matches what is not for this machine itself.
func forwarded(r *nfnl.Rule) *nfnl.Rule {
	return r.DestinationType(0).NotEqual(0, nfnl.Host(unix.RTN_LOCAL))
}

// unmarked matches what has not the Mark.
func unmarked(r *nfnl.Rule) *nfnl.Rule {
	return r.Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(Mark), nfnl.Host(0)).NotEqual(0, nfnl.Host(Mark))
}

func (r Rules) redirect(rule *nfnl.Rule) *nfnl.Rule {
	return rule.Load(0, nfnl.Port(r.Port)).Redirect(0)
}

// guard drops what comes to the port without having been captured.
func (r Rules) guard(protocol byte) *nfnl.Rule {
	const statusDNAT = 1 << 5 // IPS_DST_NAT, linux/netfilter/nf_conntrack_common.h
	return to(protocol, r.Port, "").
		Conntrack(unix.NFT_CT_STATUS, 0).Mask(0, nfnl.Host(statusDNAT), nfnl.Host(0)).NotEqual(0, nfnl.Host(statusDNAT)).
		Do(nfnl.Drop())
}

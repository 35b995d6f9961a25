package redirect

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

const (
	chainOut    = "output"
	chainIn     = "prerouting"
	chainStrict = "input"
	ownerChain  = "owner-"
	rulesChain  = "rules-"
	// layout changes with what is made of Rules: a table of an earlier version of this program does not stand.
	layout = 3
	// priority comes before that of kernel modes (-100): the proxy sees the virtual IP, not an
	// endpoint that was chosen for it.
	priority = -105
	// dnsPort is where resolvers are asked.
	dnsPort = 53
)

// strictPorts are the ports that take connections through the proxy alone. Each counts the
// connections that were refused.
var strictPorts = nfnl.Set{
	Name: "strict", KeyType: nfnl.TypePort, KeyLen: 2, Counter: true,
	UserData: nfnl.SetUserData(nfnl.NetworkOrder, "", nfnl.NoOrder, ""),
}

func table() nfnl.Table { return nfnl.Table{Family: unix.NFPROTO_INET, Name: TableName} }

// Install puts rules into effect in the network namespace of the calling thread, in place of those
// that are there, at once: no connection passes in between. Connections that exist stay as they
// are. The error is ErrTaken, ErrUnsupported, or unix.EPERM without CAP_NET_ADMIN; nothing has
// changed then.
func Install(r Rules) error { return r.commit((*nfnl.Conn).Commit) }

// Check returns the error that Install would, and changes nothing.
func Check(r Rules) error { return r.commit((*nfnl.Conn).Check) }

func (r Rules) commit(by func(*nfnl.Conn, *nfnl.Batch) error) error {
	conn, err := nfnl.Open(0)
	if err != nil {
		return err
	}
	defer conn.Close()
	owner, there, err := ownerOf(conn)
	switch {
	case err != nil:
		return explain(err)
	case there && owner != ownerName(r.Owner):
		return ErrTaken
	}
	var strict []string
	if there {
		if strict, err = strictOf(conn); err != nil {
			return explain(err)
		}
	}
	return explain(by(conn, r.batch(strict)))
}

// Remove the rules of a workload. None, or those of another one, is no error.
func Remove(owner string) error {
	conn, err := nfnl.Open(0)
	if err != nil {
		return err
	}
	defer conn.Close()
	have, there, err := ownerOf(conn)
	if err != nil || !there || have != ownerName(owner) {
		return explain(err)
	}
	var b nfnl.Batch
	b.DeleteTable(table())
	return explain(conn.Commit(&b))
}

// Stands reports whether the rules are in effect in the network namespace of the calling thread,
// exactly as Install puts them there. Errors are those of Install.
func Stands(r Rules) (bool, error) {
	conn, err := nfnl.Open(0)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	there, _, err := conn.HasTable(table())
	if err != nil || !there {
		return false, explain(err)
	}
	chains, err := conn.Chains(table())
	if err != nil {
		return false, explain(err)
	}
	for _, want := range []string{ownerName(r.Owner), r.name(), chainOut, chainIn, chainStrict} {
		if !slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == want }) {
			return false, nil
		}
	}
	return true, nil
}

// name of a chain that says which rules are in the table.
func (r Rules) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %+v", layout, r))
	return rulesChain + hex.EncodeToString(sum[:8])
}

// ownerOf the table: a chain has its name.
func ownerOf(r nfnl.Reader) (owner string, there bool, err error) {
	there, _, err = r.HasTable(table())
	if err != nil || !there {
		return "", there, err
	}
	chains, err := r.Chains(table())
	for _, c := range chains {
		if strings.HasPrefix(c.Name, ownerChain) {
			owner = c.Name
		}
	}
	return owner, true, err
}

func ownerName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return ownerChain + hex.EncodeToString(sum[:8])
}

func explain(err error) error {
	for _, lacking := range []error{unix.EOPNOTSUPP, unix.EINVAL, unix.ENOENT, unix.EAFNOSUPPORT} {
		if errors.Is(err, lacking) {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
	}
	return err
}

// Control marks a socket of the supervisor, so that its connections are not led to the proxy. It
// is for net.Dialer and needs CAP_NET_ADMIN, or CAP_NET_RAW since Linux 5.17.
func Control(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, Mark) })
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("mark a socket: %w", err)
	}
	return nil
}

// batch replaces the table. Ports that are strict stay so.
func (r Rules) batch(strict []string) *nfnl.Batch {
	b, t := &nfnl.Batch{}, table()
	b.AddTable(t) // so that there is one to delete
	b.DeleteTable(t)
	b.AddTable(t)
	b.AddChain(t, nfnl.Chain{Name: ownerName(r.Owner)})
	b.AddChain(t, nfnl.Chain{Name: r.name()})
	b.AddChain(t, nfnl.Chain{Name: chainOut, Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Priority: priority})
	b.AddChain(t, nfnl.Chain{Name: chainIn, Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: priority})
	b.AddChain(t, nfnl.Chain{Name: chainStrict, Type: "filter", Hook: unix.NF_INET_LOCAL_IN})
	b.AddSet(t, &strictPorts)
	for _, port := range strict {
		b.AddElem(t, &strictPorts, nfnl.Elem{Key: port})
	}
	for _, rule := range r.refused() {
		b.AddRule(t, chainStrict, rule)
	}
	for _, rule := range r.outbound() {
		b.AddRule(t, chainOut, rule)
	}
	for _, rule := range r.inbound() {
		b.AddRule(t, chainIn, rule)
	}
	return b
}

// protocol matches packets of one.
func protocol(number byte) *nfnl.Rule {
	return (&nfnl.Rule{}).Meta(unix.NFT_META_L4PROTO, 0).Equal(0, string([]byte{number}))
}

func tcp() *nfnl.Rule { return protocol(unix.IPPROTO_TCP) }

func leave(r *nfnl.Rule) *nfnl.Rule { return r.Do(nfnl.Return()) }

func to(r *nfnl.Rule, port uint16) *nfnl.Rule { return r.Load(0, nfnl.Port(port)).Redirect(0) }

func (r Rules) outbound() []*nfnl.Rule {
	var rules []*nfnl.Rule
	if r.Cgroup == 0 {
		local := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32)
		rules = append(rules, to(tcp().Transport(2, 2, 0).Equal(0, nfnl.Port(BeaconPort)).DestinationIn(local), HealthPort))
	}
	rules = append(rules, leave((&nfnl.Rule{}).Meta(unix.NFT_META_MARK, 0).Mask(0, nfnl.Host(Mark), nfnl.Host(0)).Equal(0, nfnl.Host(Mark))))
	rules = append(rules, r.declared(r.itself)...)
	if r.Cgroup == 0 {
		rules = append(rules, leave((&nfnl.Rule{}).Meta(unix.NFT_META_SKUID, 0).Equal(0, nfnl.Host(ProxyUser))))
	}
	for _, p := range r.ExcludeOutbound.Prefixes {
		rules = append(rules, leave((&nfnl.Rule{}).DestinationIn(p)))
	}
	for _, port := range r.ExcludeOutbound.Ports {
		rules = append(rules, leave(tcp().Transport(2, 2, 0).Equal(0, nfnl.Port(port))))
	}
	if r.DNS && !slices.Contains(r.ExcludeOutbound.Ports, dnsPort) { // also to resolvers of the machine itself
		for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			rules = append(rules, to(r.workloads(protocol(number).Transport(2, 2, 0).Equal(0, nfnl.Port(dnsPort))), DNSPort))
		}
	}
	// Loopback, and addresses of the machine itself.
	rules = append(rules, leave((&nfnl.Rule{}).DestinationType(0).Equal(0, nfnl.Host(unix.RTN_LOCAL))))
	return append(rules, to(r.workloads(tcp()), OutboundPort))
}

// workloads restricts a rule to what the workload sends.
func (r Rules) workloads(rule *nfnl.Rule) *nfnl.Rule {
	if r.Cgroup == 0 {
		return rule
	}
	return rule.Cgroup(uint8(r.CgroupLevel), 0).Equal(0, nfnl.Host64(r.Cgroup))
}

// itself matches connections of the proxy to what may have a proxy.
func (r Rules) itself() *nfnl.Rule {
	m := tcp().Meta(unix.NFT_META_PRIORITY, 0).Equal(0, nfnl.Host(ProxyPriority))
	if r.Cgroup == 0 {
		m = m.Meta(unix.NFT_META_SKUID, 0).Equal(0, nfnl.Host(ProxyUser))
	}
	return m
}

func (r Rules) inbound() []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, p := range r.ExcludeInbound.Prefixes {
		rules = append(rules, leave((&nfnl.Rule{}).SourceIn(p)))
	}
	return append(rules, r.declared(tcp)...)
}

// declared leads those connections to declared ports of the workload to the proxy that begin (a rule) is for.
func (r Rules) declared(begin func() *nfnl.Rule) []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, port := range r.Inbound {
		if slices.Contains(r.ExcludeInbound.Ports, port) {
			continue
		}
		match := func() *nfnl.Rule {
			return begin().Transport(2, 2, 0).Equal(0, nfnl.Port(port)).DestinationType(0).Equal(0, nfnl.Host(unix.RTN_LOCAL))
		}
		if len(r.Addresses) == 0 {
			rules = append(rules, to(match(), InboundPort))
		}
		for _, a := range r.Addresses {
			rules = append(rules, to(match().DestinationIn(netip.PrefixFrom(a, a.BitLen())), InboundPort))
		}
	}
	return rules
}

package iptables

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Variant is one of the two programs called iptables.
type Variant string

// Variants. Their rules are kept in different places of the kernel, and both
// apply; a node should have one.
const (
	// Auto is the variant in which rules of this mode exist already, else the one
	// that the command iptables-restore of this system is.
	Auto   Variant = ""
	Legacy Variant = "legacy"
	NFT    Variant = "nft"
)

// Defaults of Options.
const (
	// DefaultMasqueradeMark is the bit that kube-proxy uses.
	DefaultMasqueradeMark = 0x4000
	// DefaultRefuseMark is not 0x8000, as kubelets before 1.27 drop what has that.
	DefaultRefuseMark = 0x2000

	defaultCheckInterval = 500 * time.Millisecond
	// A legacy table has its size only, so it is compared more often; nftables
	// number every change.
	defaultVerifyLegacy = time.Minute
	defaultVerifyNFT    = 10 * time.Minute
)

// Options of the mode. The zero value of each field is its default.
type Options struct {
	// Logger gets what no caller sees, such as a repair. Default: discard.
	Logger *slog.Logger
	// Registerer gets the mode's metrics until Close. Default: none.
	Registerer prometheus.Registerer
	Variant    Variant

	// ServiceCIDRs are the ranges of cluster addresses: packets to an address in
	// them that no Service has are dropped. Default: none, such packets pass.
	ServiceCIDRs []netip.Prefix
	// WorkloadCIDRs are the addresses of workloads. Clients of cluster addresses
	// from elsewhere are masqueraded, and workloads reach external addresses under
	// a Local policy as if they asked the cluster address. Default: none, and so
	// never.
	WorkloadCIDRs []netip.Prefix
	// WorkloadInterfaces: what arrives by them is from workloads, too.
	WorkloadInterfaces proxy.Interfaces
	// MasqueradeAll: connections to cluster addresses are masqueraded from
	// everywhere.
	MasqueradeAll bool
	// NodePortAddresses are ranges; node ports answer on this machine's addresses
	// in them. Nil: all but loopback ones. Empty: node ports are off.
	NodePortAddresses []netip.Prefix
	// MasqueradeMark and RefuseMark are one bit each of the packet mark, set on
	// the first packet of a connection only, on its way through this machine.
	// Default: DefaultMasqueradeMark and DefaultRefuseMark.
	MasqueradeMark, RefuseMark uint32

	// CheckInterval is how often the kernel is asked for signs of foreign changes
	// (microseconds of work); VerifyInterval, how often all rules are compared
	// whatever the signs say. Default: 500 ms; 1 min for legacy tables, else 10 min.
	// Negative: never.
	CheckInterval, VerifyInterval time.Duration

	// Inside runs a function on a thread in the network namespace to work in, such
	// as (*netns.NS).Do. Default: the process's own.
	Inside func(func() error) error
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MasqueradeMark == 0 {
		o.MasqueradeMark = DefaultMasqueradeMark
	}
	if o.RefuseMark == 0 {
		o.RefuseMark = DefaultRefuseMark
	}
	if o.CheckInterval == 0 {
		o.CheckInterval = defaultCheckInterval
	}
	if o.Inside == nil {
		o.Inside = func(f func() error) error { return f() }
	}
	return o
}

// verifyInterval of a variant.
func (o Options) verifyInterval(v Variant) time.Duration {
	switch {
	case o.VerifyInterval != 0:
		return o.VerifyInterval
	case v == Legacy:
		return defaultVerifyLegacy
	default:
		return defaultVerifyNFT
	}
}

func (o Options) validate() error {
	switch o.Variant {
	case Auto, Legacy, NFT:
	default:
		return fmt.Errorf("iptables variant %q: want %q, %q or none", o.Variant, Legacy, NFT)
	}
	for name, mark := range map[string]uint32{"masquerade": o.MasqueradeMark, "refuse": o.RefuseMark} {
		if mark&(mark-1) != 0 {
			return fmt.Errorf("%s mark %#x: want exactly one bit", name, mark)
		}
	}
	if o.MasqueradeMark == o.RefuseMark {
		return errors.New("masquerade and refuse mark are the same bit")
	}
	return o.WorkloadInterfaces.Check()
}

// config is what of the options shapes the rules of one family.
type config struct {
	family                family
	services              []netip.Prefix
	workloads             []string // matches of what workloads send
	nodePorts             []netip.Prefix
	nodePortsAll          bool
	masqueradeAll         bool
	masquerade, refuseBit uint32

	// apart, with apartNode (a chain; empty: none) and closed: see meshes.
	apart, closed bool
	apartNode     string
}

func newConfig(o Options, f family) *config {
	return &config{
		family:        f,
		services:      ofFamily(o.ServiceCIDRs, f),
		workloads:     workloadMatches(o, f),
		nodePorts:     ofFamily(o.NodePortAddresses, f),
		nodePortsAll:  o.NodePortAddresses == nil,
		masqueradeAll: o.MasqueradeAll,
		masquerade:    o.MasqueradeMark,
		refuseBit:     o.RefuseMark,
	}
}

// workloadMatches match what workloads send, as iptables-save prints it.
func workloadMatches(o Options, f family) (out []string) {
	for _, p := range ofFamily(o.WorkloadCIDRs, f) {
		out = append(out, from(p))
	}
	for _, name := range o.WorkloadInterfaces {
		if prefix, open := strings.CutSuffix(name, "*"); open {
			name = prefix + "+"
		}
		out = append(out, "-i "+name+" ")
	}
	return out
}

func ofFamily(prefixes []netip.Prefix, f family) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if p = p.Masked(); familyOf(p.Addr()) == f {
			out = append(out, p)
		}
	}
	return out
}

// hasNodePorts reports whether node ports answer in this family.
func (c *config) hasNodePorts() bool { return c.nodePortsAll || len(c.nodePorts) > 0 }

// inServices reports whether a cluster address is covered by the rules for whole
// ranges.
func (c *config) inServices(a netip.Addr) bool {
	for _, p := range c.services {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Marks. The two bits say four things: pass, masquerade, refuse, drop.
func (c *config) setMasquerade() string {
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#[1]x", c.masquerade)
}

func (c *config) setRefuse() string {
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", c.refuseBit, c.refuseBit|c.masquerade)
}

func (c *config) setDrop() string {
	return fmt.Sprintf("-j MARK --set-xmark %#x/%#[1]x", c.refuseBit|c.masquerade)
}

func hasMark(m uint32) string { return fmt.Sprintf("-m mark --mark %#x/%#[1]x", m) }

// from and to match a range as iptables-save prints it: nothing for everything.
func from(p netip.Prefix) string { return match("-s ", p) }
func to(p netip.Prefix) string   { return match("-d ", p) }

func match(flag string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return flag + prefixText(p) + " "
}

// hook is a rule of ours in a built-in chain.
type hook struct{ chain, rule string }

// frame is the part of a table that does not depend on services.
type frame struct {
	chains map[string]string
	hooks  []hook // in the order in which they are to stand
}

// marksClusterIP: some connections to cluster addresses are masqueraded.
func (c *config) marksClusterIP() bool { return c.masqueradeAll || len(c.workloads) > 0 }

// nat is the frame around the tries of the nat table.
func (c *config) nat() frame {
	text := func(chain string, rules ...string) string { return lines(chain, rules) }
	services, behind := c.apartRules()
	var mark []string
	if !c.masqueradeAll {
		for _, p := range c.workloads {
			mark = append(mark, p+"-j RETURN")
		}
	}
	for _, p := range c.services {
		if c.marksClusterIP() {
			services = append(services, to(p)+"-j "+chainMarkMasq)
		}
	}
	services = append(services, "-j "+chainDispatch+"ROOT")
	for _, p := range c.services {
		services = append(services, to(p)+"-g "+chainDrop)
	}
	const local = "-m addrtype --dst-type LOCAL -j " + chainNodePorts + "ROOT"
	if c.nodePortsAll {
		services = append(services, "! -d "+c.family.loopback()+" "+local)
	}
	for _, p := range c.nodePorts {
		services = append(services, to(p)+local)
	}
	services = append(services, behind...)
	f := frame{
		chains: map[string]string{
			chainServices: text(chainServices, services...),
			chainMarkMasq: text(chainMarkMasq, append(mark, c.setMasquerade())...),
			// Nothing else may translate a packet that is not to be sent on.
			chainReject: text(chainReject, c.setRefuse(), "-j ACCEPT"),
			chainDrop:   text(chainDrop, c.setDrop(), "-j ACCEPT"),
			chainPost:   text(chainPost, hasMark(c.masquerade)+" -g "+chainMasq, "-m conntrack --ctstate DNAT -j "+chainHairpin+"ROOT"),
			chainMasq:   text(chainMasq, fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", c.masquerade), "-j MASQUERADE --random-fully"),
		},
		hooks: []hook{
			{"PREROUTING", "-j " + chainServices},
			{"OUTPUT", "-j " + chainServices},
			{"POSTROUTING", "-j " + chainPost},
		},
	}
	if c.closed {
		f.chains[chainOutside] = c.outside()
	}
	return f
}

// filter is all that there is in the filter table: nat can mark, not refuse.
func (c *config) filter() frame {
	refuse := "-m conntrack --ctstate NEW " + hasMark(c.refuseBit) + " -j " + chainRefuse
	var forward []string
	for _, p := range c.workloads {
		// A reply that conntrack can't place would leave with the endpoint's own
		// address, and the client would reset the connection.
		forward = append(forward, p+"-m conntrack --ctstate INVALID -j DROP")
	}
	forward = append(forward,
		hasMark(c.masquerade)+" -j ACCEPT",
		"-m conntrack --ctstate DNAT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	return frame{
		chains: map[string]string{
			chainRefuse: lines(chainRefuse, []string{
				hasMark(c.refuseBit|c.masquerade) + " -j DROP",
				"-p tcp -j REJECT --reject-with tcp-reset",
				"-j REJECT --reject-with " + c.family.unreachable(),
			}),
			chainForward: lines(chainForward, forward),
		},
		hooks: []hook{
			{"INPUT", refuse}, {"OUTPUT", refuse}, {"FORWARD", refuse}, {"FORWARD", "-j " + chainForward},
		},
	}
}

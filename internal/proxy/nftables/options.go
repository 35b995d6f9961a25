// Package nftables is the mode that lets the kernel's nf_tables carry traffic:
// one table per address family, flat maps from virtual address to service to
// endpoint, and a handful of chains whose number does not grow with services.
//
// Enter at [New]; the result is a proxy.Mode. It owns the tables that are named
// by Options.Table, repairs them when another program changes them, and deletes
// UDP flows to endpoints that are gone from conntrack. It never chooses
// endpoints (package choose does), never touches other tables, routes or kernel
// parameters, and leaves its tables in place when it is closed: a new process
// takes them over, [Cleanup] removes them.
//
// DESIGN.md has the layout, what holds at any time, and what to look at in a review.
package nftables

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Defaults of Options.
const (
	DefaultTable           = "proxima"
	DefaultMasqueradeMark  = 0x4000 // the bit that kube-proxy has used for this since its beginning
	DefaultAffinityClients = 1 << 20
)

// Options of the mode. The zero value of each field is its default.
type Options struct {
	// Logger gets what no caller sees, such as repairs. Default: discard.
	Logger *slog.Logger
	// Registerer gets the mode's metrics until Close. Default: none.
	Registerer prometheus.Registerer

	// Namespace is a file descriptor of the network namespace to work in; it can
	// be closed after New. Default: that of the thread that calls New.
	Namespace int
	// Table is the name of the table in both families. Default "proxima".
	Table string

	// ServiceCIDRs: an address in them that no Service has is dropped. Default:
	// none is dropped. SetRanges replaces them.
	ServiceCIDRs []netip.Prefix
	// WorkloadCIDRs: connections to cluster IPs from elsewhere are masqueraded,
	// and under externalTrafficPolicy Local workloads use the cluster's list.
	// Default: connections to cluster IPs are never masqueraded.
	WorkloadCIDRs []netip.Prefix
	// WorkloadInterfaces: what arrives by them is from workloads, too.
	WorkloadInterfaces proxy.Interfaces
	// MasqueradeAll: connections to cluster IPs are masqueraded from everywhere.
	MasqueradeAll bool
	// NodePortAddresses: node ports are served on the node's addresses within
	// these. Nil: all but loopback and link-local ones. Empty: node ports are off.
	NodePortAddresses []netip.Prefix
	// PrimaryAddresses, where NodePortAddresses is nil, returns the addresses of the node on which
	// node ports are served, at most one per family; as long as it returns none, they are served on all. It
	// is called whenever addresses of the machine change, and after AddressesChanged, with the mode locked. Nil: all.
	PrimaryAddresses func() []netip.Addr

	// MasqueradeMark is the one bit of the packet mark that the mode uses.
	// Default 0x4000.
	MasqueradeMark uint32
	// AffinityClients is how many clients per family affinity remembers; further
	// ones are served without it. The memory is used as they come, about 150
	// bytes each. Default 2^20. It can be changed at a restart.
	AffinityClients uint32

	// Balancer chooses among the endpoints of lists, in place of the table. Nil: none.
	Balancer Balancer

	wrap func(kernel) kernel     // tests: faults between mode and kernel
	open func() (*system, error) // tests: another machine than Namespace's
}

// complete fills defaults in and checks what was given.
func (o *Options) complete() error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if !isName(o.Table) {
		return fmt.Errorf("nftables table %q: a name has up to 64 letters, digits, - and _, and begins with a letter", o.Table)
	}
	if o.MasqueradeMark == 0 {
		o.MasqueradeMark = DefaultMasqueradeMark
	}
	if o.MasqueradeMark&(o.MasqueradeMark-1) != 0 {
		return fmt.Errorf("masquerade mark %#x: it must be a single bit", o.MasqueradeMark)
	}
	if err := o.WorkloadInterfaces.Check(); err != nil {
		return err
	}
	if o.AffinityClients == 0 {
		o.AffinityClients = DefaultAffinityClients
	}
	if o.open == nil {
		namespace := o.Namespace
		o.open = func() (*system, error) { return openSystem(namespace) }
	}
	return nil
}

func isName(s string) bool {
	for i, c := range s {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '-' && c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

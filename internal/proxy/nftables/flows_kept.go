//go:build linux

package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// keepSuffix makes the name of the tables that KeepFlows adds.
const keepSuffix = "-flows"

// KeepFlows keeps open connections alive that rules of a kernel mode, this
// one or iptables, translated, also when these rules are removed. The
// kernel tracks and translates connections as long as some rule requires it: KeepFlows
// adds a table of each family with such a rule, which has no other effect. Without
// such connections it adds nothing; an existing table is no error.
// ForgetFlows removes the tables.
func KeepFlows(opts Options) error {
	flows, err := conntrack.Open(opts.Namespace)
	if err != nil {
		return err
	}
	err = eachFlowTable(opts, func(conn *nfnl.Conn, t nfnl.Table) error {
		translated, err := flows.Translated(t.Family)
		if err != nil {
			return err
		}
		if there, _, err := conn.HasTable(t); err != nil || there || !translated {
			return err
		}
		// A chain of type nat has the kernel translate, an expression of conntrack has
		// it follow connections (nf_nat_register_fn, nf_ct_netns_get).
		var b nfnl.Batch
		b.AddTable(t)
		b.AddChain(t, nfnl.Chain{Name: chainPre, Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: priorityDNAT})
		rule := nfnl.Rule{Comment: "open connections of another mode go on"}
		b.AddRule(t, chainPre, rule.Conntrack(unix.NFT_CT_STATUS, nfnl.Reg(0)))
		return conn.Commit(&b)
	})
	return errors.Join(err, flows.Close())
}

// ForgetFlows removes the tables of KeepFlows; no such table is no error.
func ForgetFlows(opts Options) error {
	return eachFlowTable(opts, func(conn *nfnl.Conn, t nfnl.Table) error {
		if there, _, err := conn.HasTable(t); err != nil || !there {
			return err
		}
		var b nfnl.Batch
		b.DeleteTable(t)
		if err := conn.Commit(&b); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
}

func eachFlowTable(opts Options, do func(*nfnl.Conn, nfnl.Table) error) error {
	if err := opts.complete(); err != nil {
		return err
	}
	conn, err := nfnl.Open(opts.Namespace)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range []dims{ipv4, ipv6} {
		t := nfnl.Table{Family: d.proto, Name: opts.Table + keepSuffix}
		if err := do(conn, t); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", t.Name, err))
		}
	}
	return errors.Join(append(errs, conn.Close())...)
}

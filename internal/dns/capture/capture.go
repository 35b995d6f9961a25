// Package capture leads what programs ask of port 53 to an agent's DNS server, whatever
// resolver they ask, so that they find names of Services without a change of
// /etc/resolv.conf.
//
// It owns one table of nftables, apart from those of the modes, and the sockets that
// questions are led to. The table belongs to a socket of this process: the kernel deletes
// it when the process ends, in whichever way. Enter at Listen and Install. The package
// answers nothing.
package capture

import (
	"errors"
	"net/netip"
)

// Port that captured questions are led to, for UDP and TCP; if it is taken, any free one.
const Port = 10054

// Mark (bit of the packet mark, SO_MARK) of questions that are not captured: those of the
// agent itself. Masquerading has another one, as kube-proxy (0x4000, 0x8000).
const Mark = 0x2000

// TableName of the table, in the family inet.
const TableName = "proxima-dns"

// Rules are what is captured, but for questions with the Mark, which never are.
type Rules struct {
	// Port that questions are led to, on all addresses of this machine. Nothing else
	// reaches it.
	Port uint16
	// Only questions to these addresses are captured of programs of this machine; empty:
	// all.
	Only []netip.Addr
	// Workloads are the sources whose questions are captured on their way through this
	// machine; empty: all that pass through it.
	Workloads []netip.Prefix
}

// ErrTaken: another process of this machine captures questions.
var ErrTaken = errors.New("another agent of this machine captures DNS")

// ErrUnsupported: this machine's kernel, or operating system, cannot.
var ErrUnsupported = errors.New("this kernel has no table of nftables that belongs to a process (Linux 5.12 or newer with nf_tables, nft_nat, nft_redir, nft_fib_inet)")

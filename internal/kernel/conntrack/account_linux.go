package conntrack

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// accountTable exists within one transaction, which nobody sees.
const accountTable = "proxima-accounting"

// accountByRule has the kernel count the bytes of flows in the calling thread's namespace. It
// takes CAP_NET_ADMIN and the module nft_ct.
func accountByRule() (err error) {
	c, err := nfnl.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const unhooked = "never"
	t := nfnl.Table{Family: unix.NFPROTO_IPV4, Name: accountTable}
	var b nfnl.Batch
	b.AddTable(t)
	b.AddChain(t, nfnl.Chain{Name: unhooked})
	b.AddRule(t, unhooked, new(nfnl.Rule).Conntrack(unix.NFT_CT_BYTES, 1))
	b.DeleteTable(t)
	return c.Commit(&b)
}

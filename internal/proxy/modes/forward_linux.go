package modes

import (
	"context"
	"errors"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
)

// BlockingForward lists the chains of other programs, one a line, through which connections
// pass that this machine forwards, and that drop or reject what no rule of theirs accepts:
// the policy DROP that Docker and ufw set. Chains with a rule that accepts all translated connections
// are not among them. It needs CAP_NET_ADMIN.
func BlockingForward(ctx context.Context) (out []string, err error) {
	c, err := nfnl.Open(0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	chains, err := c.BlockingForward()
	for attempt := 0; errors.Is(err, nfnl.ErrInterrupted) && attempt < 3; attempt++ {
		chains, err = c.BlockingForward()
	}
	for _, ch := range chains {
		out = append(out, ch.String())
	}
	legacy, legacyErr := iptables.BlockingForward(ctx, iptables.Options{})
	return append(out, legacy...), errors.Join(err, legacyErr)
}

package app

import (
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/account"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// nodeAccounting counts bytes and open connections where the kernel carries the traffic.
// Nil: the mode counts them itself, or nothing does.
type nodeAccounting struct {
	directory *account.Directory
	counter   *account.Counter
}

// newAccounting for a mode that programs the kernel.
func (a *agent) newAccounting() *nodeAccounting {
	if _, kernel := modes.RequirementOf(a.mode.Name()); !kernel || a.gateway != nil {
		return nil
	}
	if _, own := a.mode.(proxy.Accountant); own {
		return nil // or it says why it cannot
	}
	return &nodeAccounting{directory: account.NewDirectory((&ownAddresses{}).has)}
}

// update takes changes that are in place.
func (n *nodeAccounting) update(changes []proxy.Change) {
	if n != nil {
		n.directory.Update(changes)
	}
}

// accountingComponents read the kernel's table of connections.
func (a *agent) accountingComponents(counter proxy.Counter) []component {
	if a.accounting == nil {
		return nil
	}
	a.accounting.counter = account.NewCounter(account.Config{
		Table: conntrack.NewReader(0), Directory: a.accounting.directory, Connections: counter, Start: a.agent.Ready(),
		File: filepath.Join(a.dir(), "flows"), Leave: a.cfg.AccountingOff,
		Logger: a.log.With("component", "accounting"), Registerer: a.registry,
	})
	return []component{{Name: "accounting", Run: a.accounting.counter.Run}}
}

// accountant of the agent's mode; nil: it counts no bytes.
func (a *agent) accountant() proxy.Accountant {
	if a.accounting != nil && a.accounting.counter != nil {
		return a.accounting.counter
	}
	own, _ := a.mode.(proxy.Accountant)
	return own
}

// ownAddresses of this machine, read at most every so often.
type ownAddresses struct {
	mu   sync.Mutex
	read time.Time
	all  []netip.Addr
}

// ownAddressesFor is how long they are taken to be what they were.
const ownAddressesFor = 10 * time.Second

func (o *ownAddresses) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.read) > ownAddressesFor {
		everywhere := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		o.all, o.read = modes.LocalAddresses(everywhere), now
	}
	return slices.Contains(o.all, a.Unmap())
}

// Package hosts keeps the addresses of gateways that are known by DNS names. Names are resolved
// in the background: no connection waits for DNS, and the last addresses stay while it does not
// answer.
//
// Enter at [New]; [Table.Run] does the work.
package hosts

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/sites"
)

const (
	// resolveEvery is how soon another address of a gateway's name is used; a name that
	// could not be resolved is tried again after resolveRetry.
	resolveEvery = 30 * time.Second
	resolveRetry = 5 * time.Second
	// resolveTimeout bounds one lookup.
	resolveTimeout = 5 * time.Second
)

// Table of names. Safe for concurrent use.
type Table struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	log    *slog.Logger
	wake   chan struct{}
	// changed has room for one: names have other addresses.
	changed chan struct{}

	mu    sync.Mutex
	known map[string]*host
}

type host struct {
	addresses []netip.Addr
	due       time.Time
	failed    bool
}

// New makes a table without names. lookup resolves one; nil: the system's resolver.
func New(lookup func(context.Context, string) ([]netip.Addr, error), log *slog.Logger) *Table {
	if lookup == nil {
		lookup = lookupSystem
	}
	return &Table{lookup: lookup, log: log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), known: map[string]*host{}}
}

// Changed receives when names have other addresses than before. It is for one reader.
func (h *Table) Changed() <-chan struct{} { return h.changed }

func lookupSystem(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// Of gateways, those that are names.
func Of(all []sites.Gateway) []string {
	var out []string
	for _, g := range all {
		if _, err := netip.ParseAddr(g.Host); err != nil {
			out = append(out, g.Host)
		}
	}
	return out
}

// Want names, and no others.
func (h *Table) Want(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.known {
		if !slices.Contains(names, name) {
			delete(h.known, name)
		}
	}
	for _, name := range names {
		if h.known[name] == nil {
			h.known[name] = &host{}
		}
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Addresses of a gateway; none: its name is not resolved.
func (h *Table) Addresses(name string) []netip.Addr {
	if addr, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{addr.Unmap()}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.known[name]; known != nil {
		return known.addresses
	}
	return nil
}

// Run resolves names until ctx ends.
func (h *Table) Run(ctx context.Context) {
	for ctx.Err() == nil {
		next := resolveEvery
		for _, name := range h.due(time.Now()) {
			h.Resolve(ctx, name)
			next = resolveRetry
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (h *Table) due(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for name, known := range h.known {
		if !now.Before(known.due) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Resolve a name now.
func (h *Table) Resolve(ctx context.Context, name string) {
	within, cancel := context.WithTimeout(ctx, resolveTimeout)
	found, err := h.lookup(within, name)
	cancel()
	for i := range found {
		found[i] = found[i].Unmap()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.known[name]
	switch {
	case known == nil || ctx.Err() != nil:
	case err != nil || len(found) == 0:
		if !known.failed {
			h.log.Warn("the name of a gateway of another site cannot be resolved; its last addresses are used",
				"name", name, "addresses", known.addresses, "error", err)
		}
		known.failed, known.due = true, time.Now().Add(resolveRetry)
	default:
		slices.SortFunc(found, netip.Addr.Compare)
		if !slices.Equal(found, known.addresses) {
			select {
			case h.changed <- struct{}{}:
			default:
			}
		}
		known.addresses, known.failed, known.due = found, false, time.Now().Add(resolveEvery)
	}
}

// Package mirror keeps two registries alike while applications move from one to the other: what clients registered
// in one appears in the other, as copies that say where they are from (registry.KeyMirroredFrom).
//
// Enter at New. A Mirror has two sides, which are maps of services and their instances: the old registry, which a
// Client of its protocol reads, and the catalogue, which a Catalogue reads from the API. For each service whose
// instances changed on either side it decides anew which copies each side is to have, and a Client publishes them
// there. The decision depends on the two sides alone, never on what was decided before, but for removals
// that are held back.
//
// It never copies a copy, whoever made it, so what it writes causes nothing further: not with a second mirror beside it,
// nor with one between a registry and itself.
//
// Configuration has no copies: an entry is the same in both registries. What was changed in one is written in the other
// (entry.go), compared with what both had when they were alike last. An entry that is alike on both sides is
// never written, and each write compares first, so mirrors between the same registries come to rest, too.
package mirror

import (
	"context"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// Sink is told what a registry has. Its methods do not block, and may be called by several goroutines.
type Sink interface {
	// Set what a service has now; none: nothing. The list and its instances must not be changed any more.
	Set(s registry.Service, list []*registry.Instance)
	// Synced says that all services there are have been set once.
	Synced()
	// Disturbed says that what is set from now on may lack instances for a while that come back: the
	// registry was away, and its clients may not have registered again.
	Disturbed()
}

// Reader of a registry.
type Reader interface {
	// Run reads until ctx ends, and returns nil then. It connects again, and as often as that takes; the
	// error is for what does not get better by itself. It must be called once.
	Run(ctx context.Context, to Sink) error
}

// Client of a registry's protocol. Its methods may be called at the same time.
type Client interface {
	// Reader reads the registry; with a nil Sink it only keeps alive what Publish has written. Publish needs it to
	// run.
	Reader
	// Publish copies of instances of a service, in place of those that this client has published of it. They
	// live as long as Run. It never changes what another client has registered. It returns when the registry has
	// them; publishing again what is there is no error, and makes sure of it.
	Publish(ctx context.Context, s registry.Service, copies []*registry.Instance) error
	// Withdraw removes everything that this client has published.
	Withdraw(ctx context.Context) error
}

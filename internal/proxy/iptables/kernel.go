package iptables

import "context"

// kernel is one variant's rules in one network namespace, and the sets beside
// them. Its calls block; their effect is whole or none, unless ctx ends them.
type kernel interface {
	// save prints a table, with packet counters if asked.
	save(ctx context.Context, f family, table string, counters bool) ([]byte, error)
	// restore carries out the text for one table, as iptables-restore --noflush.
	restore(ctx context.Context, f family, input []byte) error
	// holds tells whether the variant has a table of that family at all, without
	// making one.
	holds(ctx context.Context, f family, table string) (bool, error)
	// stamp changes whenever somebody changes the tables. Cheap. It may miss a
	// change that leaves the number and the size of rules as they were.
	stamp(f family) (stamp, error)
	// sets lists the sets that are ours.
	sets() ([]string, error)
	// addSet makes a set of addresses; one that exists is fine.
	addSet(f family, name string) error
	// removeSet removes a set; one that does not exist is fine.
	removeSet(name string) error
	close() error
}

// stamp is a sign of the state of a family's tables.
type stamp [4]uint64

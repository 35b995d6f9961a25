package iptables

import "context"

// kernel is one variant's rules in one network namespace, and the sets beyond
// them. Its calls block; their effect is whole or none, unless ctx ends them.
type kernel interface {
	// save prints a table, with packet counters if asked.
	save(ctx context.Context, f family, table string, counters bool) ([]byte, error)
	// restore carries out the text for one table, as iptables-restore --noflush.
	restore(ctx context.Context, f family, input []byte) error
	// holds reports whether the variant has a table of that family at all, without
	// making one.
	holds(ctx context.Context, f family, table string) (bool, error)
	// stamp changes whenever the tables change. Cheap. It may miss a
	// change that leaves the number and the size of rules as they were.
	stamp(f family) (stamp, error)
	// follows reports whether a family's tables came from one stamp to the other by
	// these transactions alone, of all families, as far as stamps show.
	follows(f family, before, after stamp, done []transaction) bool
	// fingerprints reports what the rules of a table's chains are, by a number for each
	// chain that differs if they do: of our chains all rules (also if there are
	// none), of others' those that lead to ours (if there are any), in the nat table
	// together with those that decide before them. With names it is
	// called for these chains alone, whether they exist or not. It costs a fraction of
	// save; a variant that can't do it says errors.ErrUnsupported.
	fingerprints(f family, table string, names []string) (map[string]fingerprint, error)
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

// fingerprint is a sign of the rules of a chain; it means nothing outside of this
// process.
type fingerprint uint64

// transaction is one that the kernel took.
type transaction struct {
	family family
	table  string
	// entries is by how many the table grew, as iptables-legacy counts them.
	entries int
	// chains that were written, made, removed or hooked into.
	chains []string
}

package federation

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// removals decides on the removals of a batch that is complete.
func (r *Receiver) removals(now time.Time, tx *Transaction) {
	sub := tx.sub
	byOwner := map[Owner][]string{}
	for _, name := range slices.Sorted(maps.Keys(sub.removed)) {
		c, ok := sub.copies[name]
		if !ok {
			continue
		}
		g := sub.guard(c.Owner)
		if _, held := g.held[name]; held && !g.resumed {
			continue // and stays so
		}
		byOwner[c.Owner] = append(byOwner[c.Owner], name)
	}
	total := map[Owner]int{}
	for _, c := range sub.copies {
		total[c.Owner]++
	}
	d := doubt{otherEpoch: sub.trusted != tx.epoch, transient: sub.typ.Transient}
	d.exempt = sub.typ.Transient && !sub.snapshot && !d.otherEpoch
	tx.held, tx.counted = map[Owner][]string{}, map[Owner]int{}
	for owner, names := range byOwner {
		if !d.exempt {
			tx.counted[owner] = len(names)
		}
		if sub.guard(owner).holds(now, len(names), total[owner], d) {
			tx.held[owner] = names
			continue
		}
		for _, name := range names {
			tx.Deletes = append(tx.Deletes, sub.copies[name])
		}
	}
	sortCopies(tx.Deletes)
}

func sortCopies(c []Copy) {
	slices.SortFunc(c, func(a, b Copy) int { return cmp.Compare(a.Resource, b.Resource) })
}

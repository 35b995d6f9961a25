package federation

import (
	"maps"
	"slices"
	"time"
)

// The guard holds back deletions that look like the loss of the peer's data, not like
// its will: more than guardCount and more than guardPercent of the objects of one type
// and owner, at once or within guardPeriod.
const (
	guardCount   = 10
	guardPercent = 10
	guardPeriod  = time.Minute
	// listed held objects are offered by name.
	listed = 10
)

// guard counts the deletions of one type and owner, and keeps those that are held.
type guard struct {
	// recent removals that count, held or not, without those that were confirmed.
	recent []removals
	// held are resources that the peer removed and that are kept.
	held map[string]struct{}
	// resumed: the removals of the next batch are held whatever their number, as
	// they repeat those that were held before the stream ended.
	resumed bool
}

type removals struct {
	at      time.Time
	n, held int
}

// doubt is how far a batch of removals is trusted.
type doubt struct {
	// transient: the type's objects come and go; exempt: so they are not counted.
	transient, exempt bool
	// otherEpoch: the peer's data are not those that were synchronised before.
	otherEpoch bool
}

// holds decides on n removals of an owner that has total objects.
func (g *guard) holds(now time.Time, n, total int, d doubt) bool {
	switch {
	case n == 0:
		return false
	case g.resumed:
		return true
	case d.otherEpoch && (!d.transient || n == total):
		return true // a peer that lost its data, however little it was
	case d.exempt:
		return false
	}
	// The share is of what there was when the period began.
	sum, gone := g.sum(now)
	return sum+n > max(guardCount, (total+gone)*guardPercent/100)
}

// sum counts the removals of the last period, and those of them that were let through.
// Where the clock was set back, those of the future count from now.
func (g *guard) sum(now time.Time) (all, gone int) {
	kept := g.recent[:0]
	for _, r := range g.recent {
		if r.at.After(now) {
			r.at = now
		}
		if now.Sub(r.at) < guardPeriod {
			kept = append(kept, r)
			all += r.n
			gone += r.n - r.held
		}
	}
	g.recent = kept
	return all, gone
}

// count notes removals, n in all.
func (g *guard) count(now time.Time, n, held int) {
	if n > 0 {
		g.recent = append(g.recent, removals{now, n, held})
	}
}

func (g *guard) hold(resources []string) {
	if g.held == nil && len(resources) > 0 {
		g.held = map[string]struct{}{}
	}
	for _, name := range resources {
		g.held[name] = struct{}{}
	}
}

// token identifies a set of held resources.
func (g *guard) token() string {
	return digest(slices.Sorted(maps.Keys(g.held))...)
}

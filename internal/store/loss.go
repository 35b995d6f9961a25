package store

import "time"

const (
	// perSecond is more revisions than a store issues in a second, on average over
	// its life: stores commit some thousand transactions per second.
	perSecond = 1_000_000
	// margin is left for what was written after the newest revision that is known, should
	// the clock be wrong by years. etcd's manual recommends as much for its --bump-revision.
	margin = 1_000_000_000
)

// AfterLoss is the revision at which a store goes on that has lost its newest revisions, as one
// that was restored from a backup. known is the newest of which anything is known, 0 if
// none. What was issued after it is unknown, so the clock helps: AfterLoss is above known, and
// at least a million times the seconds since 1970, which no store reaches by itself, nor by any
// loss before. So it rises over any number of losses, as long as clocks are right within what a
// store could not have written meanwhile. It stays below 2^53, which clients in JavaScript need,
// until 2255.
func AfterLoss(known Revision, now time.Time) Revision {
	return max(known+margin, Revision(now.Unix())*perSecond)
}

package delta

import (
	"slices"
	"sync"
)

// maxQuarantined versions of one resource are remembered, the newest.
const maxQuarantined = 4

// Quarantine has the versions of resources that a client refused, and the last ones that a
// client accepted. Streams of clients that are alike share one: what one of them refused is
// not sent to the others. Safe for concurrent use.
type Quarantine struct {
	mu  sync.Mutex
	bad map[Ref][]Quarantined
	// good versions, as they were accepted last.
	good map[Ref]held
}

// Quarantined is a version of a resource that is not sent any more.
type Quarantined struct {
	Ref
	Version string
	// Reason that the client gave.
	Reason string
}

// NewQuarantine makes an empty one.
func NewQuarantine() *Quarantine {
	return &Quarantine{bad: map[Ref][]Quarantined{}, good: map[Ref]held{}}
}

// Add a version. It reports whether that is news.
func (q *Quarantine) Add(one Quarantined) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.has(one.Ref, one.Version) {
		return false
	}
	list := append(q.bad[one.Ref], one)
	q.bad[one.Ref] = list[max(0, len(list)-maxQuarantined):]
	return true
}

// List what is in quarantine, ordered by type and name.
func (q *Quarantine) List() []Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Quarantined
	for _, list := range q.bad {
		out = append(out, list...)
	}
	slices.SortStableFunc(out, func(a, b Quarantined) int { return compareRefs(a.Ref, b.Ref) })
	return out
}

// find a version that is not sent any more; ok is false if this one is.
func (q *Quarantine) find(ref Ref, version string) (one Quarantined, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.bad[ref], func(b Quarantined) bool { return b.Version == version })
	if i < 0 {
		return one, false
	}
	return q.bad[ref][i], true
}

// holds reports whether any version of a resource is in quarantine.
func (q *Quarantine) holds(ref Ref) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.bad[ref]) > 0
}

func (q *Quarantine) has(ref Ref, version string) bool {
	return slices.ContainsFunc(q.bad[ref], func(b Quarantined) bool { return b.Version == version })
}

// accepted notes a version that a client has taken.
func (q *Quarantine) accepted(ref Ref, h held) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.has(ref, h.version) {
		q.good[ref] = h
	}
}

// forget the last good version of a resource that is gone.
func (q *Quarantine) forget(ref Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.good, ref)
	delete(q.bad, ref)
}

// choose what is sent of a resource: the version itself, or its fallback, or the last good
// one. The zero value: nothing is, and the client keeps what it has.
func (q *Quarantine) choose(ref Ref, wanted, fallback held) held {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.bad[ref]) == 0 || !q.has(ref, wanted.version):
		return wanted
	case fallback.version != "" && !q.has(ref, fallback.version):
		return fallback
	}
	return q.good[ref]
}

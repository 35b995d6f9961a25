package mirror

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// GroupMapping has the mappings of Dubbo, from an interface to the applications that serve it. Clients add to them and
// never remove a name, so both registries are to have the names of both.
const GroupMapping = "mapping"

// Entry of a registry's configuration. It must not be changed once it was given away.
type Entry struct {
	// Key names it alike in both registries: as Nacos does, or with the path of the parent of a node of ZooKeeper below
	// /dubbo as its group, and the name of the node.
	Key registry.ConfigKey
	// Content, and DataKey, the key of one that clients of Nacos have encrypted, as they have encrypted it.
	Content, DataKey string
	// Type and Application describe an entry of Nacos. They are copied with the content, and never compared.
	Type, Application string
}

// same reports whether two entries have the same content. Names of a mapping have no order.
func (e *Entry) same(other *Entry) bool {
	if e == nil || other == nil {
		return e == other
	}
	if e.Key.Group == GroupMapping {
		return maps.Equal(namesOf(e.Content), namesOf(other.Content))
	}
	return e.Content == other.Content && e.DataKey == other.DataKey
}

func namesOf(content string) map[string]struct{} {
	out := map[string]struct{}{}
	for name := range strings.SplitSeq(content, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out[name] = struct{}{}
		}
	}
	return out
}

// EntrySink is told what entries a registry has. Its methods do not block, and may be called by several goroutines.
type EntrySink interface {
	// Listed are all entries that there are, after each time that the registry was connected to.
	Listed(all []*Entry)
	// Set an entry that is new or was changed since.
	Set(e *Entry)
	// Removed says that an entry was removed: it was there on this connection, and is no more.
	Removed(key registry.ConfigKey)
}

// ErrChanged: an entry is not, or is no more, what its writer takes it for. Nothing was written.
var ErrChanged = errors.New("the entry was changed meanwhile")

// RefusedError says that a registry does not take an entry, and will not.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// EntryClient reads and writes the configuration of a registry. Its methods may be called at the same time.
type EntryClient interface {
	// RunEntries reads until ctx ends, and returns nil then. It connects again, as often as that takes. It must be called
	// once, and the other methods need it to run.
	RunEntries(ctx context.Context, to EntrySink) error
	// PutEntry writes an entry in place of before; nil: there is none. Errors: ErrChanged,
	// *RefusedError, and those of the connection.
	PutEntry(ctx context.Context, e, before *Entry) error
	// RemoveEntry that is still what it was. One that is gone is no error. Errors are those of PutEntry.
	RemoveEntry(ctx context.Context, before *Entry) error
	// Unfit says why the registry cannot have an entry; empty: it can.
	Unfit(e *Entry) string
}

// Winner is the registry whose entry counts where both have one, and neither is known to be the older one.
type Winner int

const (
	// OldWins: the entry of the old registry counts.
	OldWins Winner = iota
	// HereWins: that of this one.
	HereWins
)

// absence says why a side has no entry.
type absence int

const (
	// unknown: it never had it, or lost it while it was away. Nothing is removed on the other side for it.
	unknown absence = iota
	// fading: it was removed, but not long enough ago.
	fading
	// removed by somebody.
	removed
)

// pair is what both registries have of an entry. A nil entry is absent.
type pair struct {
	old, here           *Entry
	noOld, noHere       absence
	base                string // digest of what both had when they were alike last; empty: they have not been
	winner              Winner
	oneWay              bool // the old registry is not written
	unfitOld, unfitHere func(*Entry) string
}

// verdict is what is to be done.
type verdict struct {
	// old and here are to be written.
	old, here *Entry
	// removeOld and removeHere are to be removed.
	removeOld, removeHere bool
	// why, for a plan; conflict: one of two contents is lost.
	why      string
	conflict bool
	// skipped is why nothing can be done.
	skipped string
}

// decide what makes both registries alike. It depends on its argument alone.
func (p *pair) decide() verdict {
	v := p.want()
	if p.oneWay {
		v.old, v.removeOld = nil, false
	}
	if v.old != nil && p.unfitOld != nil {
		if v.skipped = p.unfitOld(v.old); v.skipped != "" {
			v.old = nil
		}
	}
	if v.here != nil && p.unfitHere != nil {
		if v.skipped = p.unfitHere(v.here); v.skipped != "" {
			v.here = nil
		}
	}
	if v.conflict = v.conflict && (v.old != nil || v.here != nil); v.old == nil && v.here == nil && !v.removeOld && !v.removeHere && v.skipped == "" {
		v.why = ""
	}
	return v
}

func (p *pair) want() verdict {
	switch {
	case p.old.same(p.here):
		return verdict{}
	case p.old != nil && p.here != nil && p.old.Key.Group == GroupMapping:
		return p.merge()
	case p.old != nil && p.here != nil:
		return p.differ()
	case p.here == nil:
		if gone, wait := p.gone(p.old, p.noHere); gone || wait {
			return verdict{removeOld: gone, why: "it was removed here"}
		}
		return verdict{here: p.old, why: p.whyMissing(p.noHere)}
	default:
		if gone, wait := p.gone(p.here, p.noOld); gone || wait {
			return verdict{removeHere: gone, why: "it was removed in the old registry"}
		}
		return verdict{old: p.here, why: p.whyMissing(p.noOld)}
	}
}

// gone reports whether an entry is to be removed, as it was removed on the other side; wait: not yet. One that was changed
// since counts more than the removal, and mappings are never removed.
func (p *pair) gone(e *Entry, why absence) (gone, wait bool) {
	if why == unknown || e.Key.Group == GroupMapping || e.digest() != p.base {
		return false, false
	}
	return why == removed, why == fading
}

// whyMissing is why an entry is written that one side lacks.
func (p *pair) whyMissing(why absence) string {
	switch {
	case p.base == "":
		return "it is new"
	case why == unknown:
		return "it was lost"
	}
	return whyChanged
}

const whyChanged = "it was removed on one side, and changed on the other since, which counts"

// differ decides which of two entries is newer: the one that is not what both had.
func (p *pair) differ() verdict {
	switch {
	case p.base != "" && p.here.digest() == p.base:
		return verdict{here: p.old, why: "it was changed"}
	case p.base != "" && p.old.digest() == p.base:
		return verdict{old: p.here, why: "it was changed"}
	}
	what := "they differ"
	if p.base != "" {
		what = "both were changed since they were alike"
	}
	if p.winner == HereWins {
		return verdict{old: p.here, why: what + ", and this one's counts", conflict: true}
	}
	return verdict{here: p.old, why: what + ", and the old one's counts", conflict: true}
}

// merge two mappings.
func (p *pair) merge() verdict {
	union := *p.old
	union.Content = registry.MergeConfig(union.Key, p.old.Content, p.here.Content)
	v := verdict{why: "the applications of both"}
	if !union.same(p.old) {
		v.old = &union
	}
	if !union.same(p.here) {
		v.here = &union
	}
	return v
}

// EntryStep is what a mirror would do with an entry.
type EntryStep struct {
	Key registry.ConfigKey
	// Here and Old say which registry would be written, RemoveHere and RemoveOld where the entry would be removed, by Why.
	Here, Old, RemoveHere, RemoveOld bool
	Why                              string
	// Skipped is why a registry cannot have it.
	Skipped string
}

func sortedKeys[V any](m map[registry.ConfigKey]V) []registry.ConfigKey {
	return slices.SortedFunc(maps.Keys(m), registry.ConfigKey.Compare)
}

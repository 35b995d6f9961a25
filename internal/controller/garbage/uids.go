package garbage

import (
	"iter"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// uidSet is a set of UIDs that takes little memory while it is small: most owners have
// one or two dependents. The zero value is empty.
type uidSet struct {
	few  []types.UID // in no order
	many map[types.UID]struct{}
}

// maxFew from which a map is faster.
const maxFew = 8

func (s uidSet) empty() bool { return len(s.few)+len(s.many) == 0 }

// with adds a UID. The receiver is not to be used any more; nor is that of without.
func (s uidSet) with(uid types.UID) uidSet {
	switch {
	case s.many != nil:
		s.many[uid] = struct{}{}
	case slices.Contains(s.few, uid):
	case len(s.few) < maxFew:
		s.few = append(s.few, uid)
	default:
		s.many = map[types.UID]struct{}{uid: {}}
		for _, one := range s.few {
			s.many[one] = struct{}{}
		}
		s.few = nil
	}
	return s
}

func (s uidSet) without(uid types.UID) uidSet {
	delete(s.many, uid)
	if i := slices.Index(s.few, uid); i >= 0 {
		s.few = slices.Delete(s.few, i, i+1)
	}
	return s
}

// all of them, in no order. The set must not change meanwhile.
func (s uidSet) all() iter.Seq[types.UID] {
	if s.many != nil {
		return maps.Keys(s.many)
	}
	return slices.Values(s.few)
}

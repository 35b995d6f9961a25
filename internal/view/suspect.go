package view

import (
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// SetSuspects replaces the set of nodes whose endpoints are used last, in every view.
// The same set again changes nothing. It may be called before the first Apply.
func (b *Builder) SetSuspects(nodes []string) error {
	next := make(map[string][]byte, len(nodes))
	for _, name := range nodes {
		body, err := wire.EncodeSuspect(name)
		if err != nil {
			return err
		}
		next[name] = body
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var changes []change
	for _, set := range []map[string][]byte{b.suspects, next} {
		for name := range set {
			if (b.suspects[name] == nil) != (next[name] == nil) {
				changes = append(changes, change{wire.SuspectType, name})
			}
		}
	}
	b.suspects = next
	if !b.filled || len(changes) == 0 {
		return nil
	}
	b.sequence++ // a change of the views without one of the catalog
	return b.writeAll(false, changes, nil)
}

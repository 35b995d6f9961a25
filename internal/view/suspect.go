package view

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
)

// SetSuspects replaces the set of nodes whose endpoints are used last, in every view.
// The same set again changes nothing. It may be called before the first Apply.
func (b *Builder) SetSuspects(nodes []string) error {
	next := make(map[string][]byte, len(nodes))
	for _, name := range nodes {
		body, err := marshal(&nodev1.Suspect{Node: name})
		if err != nil {
			return fmt.Errorf("marshal suspect %s: %w", name, err)
		}
		next[name] = body
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var changes []change
	for _, set := range []map[string][]byte{b.suspects, next} {
		for name := range set {
			if (b.suspects[name] == nil) != (next[name] == nil) {
				changes = append(changes, change{SuspectType, name})
			}
		}
	}
	b.suspects = next
	if !b.filled || len(changes) == 0 {
		return nil
	}
	b.sequence++ // the catalog stands still, the views do not
	var failed []error
	for _, zone := range slices.Sorted(maps.Keys(b.zones)) {
		if err := b.write(zone, b.zones[zone], false, changes); err != nil {
			failed = append(failed, fmt.Errorf("write view of zone %q: %w", zone, err))
		}
	}
	return errors.Join(failed...)
}

// decodeSuspect reads a Suspect that travelled under a name.
func decodeSuspect(name string, body []byte) (string, error) {
	var m nodev1.Suspect
	if err := proto.Unmarshal(body, &m); err != nil {
		return "", err
	}
	if name == "" || m.GetNode() != name {
		return "", fmt.Errorf("content is of node %q", m.GetNode())
	}
	return name, nil
}

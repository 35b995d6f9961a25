package zones

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
)

// Confirm deletes what an inlet holds of a type: "mesh.proxima.dev/Mesh", or the kind
// alone. token is that of the held set; empty: whatever is held now. It returns how many
// objects are deleted.
func Confirm(ctx context.Context, inlet *local.Inlet, typ, token string) (int, error) {
	var names []string
	count, matched := 0, false
	for _, t := range inlet.Status() {
		if !sameType(t.Type, typ) {
			names = append(names, t.Type)
			continue
		}
		matched = true
		for _, h := range t.Held {
			if token != "" && h.Token != token {
				return count, fmt.Errorf("confirm deletions of %s: %w: look at them again", t.Type, federation.ErrChanged)
			}
			if err := inlet.Confirm(ctx, t.Type, h.Owner, h.Token); err != nil {
				return count, fmt.Errorf("confirm deletions of %s: %w", t.Type, err)
			}
			count += h.Count
		}
	}
	switch {
	case !matched:
		slices.Sort(names)
		return 0, fmt.Errorf("no type %q is received: choose one of %s", typ, strings.Join(names, ", "))
	case count == 0:
		return 0, fmt.Errorf("no deletions of %s are held", typ)
	}
	return count, nil
}

// sameType compares the name of a type with what a user wrote: case does not matter, nor
// does the group.
func sameType(name, written string) bool {
	_, kind, _ := strings.Cut(name, "/")
	return strings.EqualFold(name, written) || strings.EqualFold(kind, written)
}

package app

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// historyOf objects, from the change feed; nil: there is none.
func (a *api) historyOf(s *storage) (*history.Reader, error) {
	if s.feed == nil {
		return nil, nil //nolint:nilnil // see above
	}
	stored, err := a.server.Stored()
	if err != nil {
		return nil, err
	}
	sealed := sealedGroups()
	return history.New(history.Config{
		Feed: s.feed, Objects: stored,
		Sealed: func(k *resource.Descriptor) bool { return slices.Contains(sealed, k.GroupResource()) },
		Kept: func(k *resource.Descriptor) bool {
			prefix := stored.Prefix(k, resource.Key{})
			return prefix != "" && !skipFromFeed(prefix)
		},
	}), nil
}

package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Follower takes resources of a type: those that are new or different, and the names of those that are
// gone. The first call has what is held on disk, if that is anything. It must not block. An error
// refuses the resources, as Envoy does: the control plane sends them again one by one, and keeps back
// the one that is refused alone.
type Follower func(set []wire.Resource, removed []string) error

// Following is what the supervisor itself takes of a type: everything, and what else it names.
type Following struct {
	Take Follower
	// Names are asked for beside the wildcard.
	Names []string
}

// Resources of a type that are held, in the order of their names.
func (r *Relay) Resources(typeURL string) []wire.Resource {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.core.types[typeURL]
	if t == nil {
		return nil
	}
	var out []wire.Resource
	for _, name := range slices.Sorted(maps.Keys(t.accepted)) {
		out = append(out, t.accepted[name].Resource)
	}
	return out
}

// supply a follower with what it follows, until ctx ends.
func (r *Relay) supply(ctx context.Context, typeURL string, f Following) {
	id, wake := 0, make(chan struct{}, 1)
	r.do(func(c *Core) {
		id = c.OpenOwn()
		r.wake[id] = wake
		c.Request(id, wire.Request{TypeURL: typeURL, Subscribe: append([]string{wire.Wildcard}, f.Names...)})
	})
	defer r.do(func(c *Core) {
		c.Close(id, time.Now())
		delete(r.wake, id)
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		r.mu.Lock()
		out := r.core.Downstream(id)
		r.mu.Unlock()
		for _, response := range out {
			answer := wire.Request{TypeURL: typeURL, Nonce: response.Nonce}
			if err := f.Take(response.Resources, response.Removed); err != nil {
				answer.Error = &wire.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
				r.config.Logger.Warn("a response of the control plane is refused", "type", typeURL, "error", err)
			}
			r.do(func(c *Core) { c.Request(id, answer) })
		}
	}
}

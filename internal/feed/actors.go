package feed

import (
	"bytes"
	"context"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// maxActors are the changes of which the actor is kept until the feed comes to them.
const maxActors = 10_000

// Actors remembers who makes a change, from before it is committed until the feed writes it. What was not written when a process
// ended has no actor. The zero value is ready for use; so is nil, which knows none. Safe for concurrent use.
type Actors struct {
	// Of returns who a context belongs to; empty: it is not known. It is set before use.
	Of func(context.Context) string

	mu      sync.Mutex
	pending map[string][]*pendingChange
	order   []*pendingChange // oldest first; those that are done, too
}

type pendingChange struct {
	key    string
	value  []byte
	delete bool
	actor  string
	done   bool
}

// Store returns a store whose commits are remembered with their actors.
func (a *Actors) Store(s store.Store) store.Store { return &attributed{s, a} }

type attributed struct {
	store.Store
	actors *Actors
}

// Commit implements store.Store.
func (s *attributed) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	actor := s.actors.Of(ctx)
	if actor == "" {
		return s.Store.Commit(ctx, txn)
	}
	noted := s.actors.note(actor, txn.Ops)
	revision, err := s.Store.Commit(ctx, txn)
	if err != nil {
		s.actors.forget(noted)
	}
	return revision, err
}

func (a *Actors) note(actor string, ops []store.Op) []*pendingChange {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending == nil {
		a.pending = map[string][]*pendingChange{}
	}
	out := make([]*pendingChange, 0, len(ops))
	for i := range ops {
		p := &pendingChange{key: ops[i].Key, value: ops[i].Value, delete: ops[i].Kind == store.Delete, actor: actor}
		out = append(out, p)
		a.pending[p.key] = append(a.pending[p.key], p)
	}
	a.order = append(a.order, out...)
	for len(a.order) > maxActors || len(a.order) > 0 && a.order[0].done {
		a.drop(a.order[0])
		a.order[0] = nil
		a.order = a.order[1:]
	}
	return out
}

func (a *Actors) forget(those []*pendingChange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range those {
		a.drop(p)
	}
}

// drop what is pending. a.mu is held.
func (a *Actors) drop(p *pendingChange) {
	if p.done {
		return
	}
	p.done, p.value = true, nil
	rest := a.pending[p.key]
	for i, other := range rest {
		if other == p {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if len(rest) == 0 {
		delete(a.pending, p.key)
	} else {
		a.pending[p.key] = rest
	}
}

// take returns who made a change that was committed; empty: it is not known.
func (a *Actors) take(key string, value []byte, deleted bool) string {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pending[key] {
		if p.delete == deleted && bytes.Equal(p.value, value) {
			a.drop(p)
			return p.actor
		}
	}
	return ""
}

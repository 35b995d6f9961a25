package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// DeletedNodePrefix is where the store keeps the deletions of Nodes, by name.
const DeletedNodePrefix = "/proxima/deletednodes/"

var (
	// ErrRevoked: the token was revoked that was shown, or that the certificate
	// descends from.
	ErrRevoked = errors.New("the token was revoked")
	// ErrNodeDeleted: the credential is older than the deletion of its Node.
	ErrNodeDeleted = errors.New("the node was deleted")
)

// DeletedNode is the record of a deletion.
type DeletedNode struct {
	Deleted time.Time `json:"deleted"`
	// By is the user who deleted the Node; empty: a controller.
	By string `json:"by,omitempty"`
}

// DeletedNodeRecord is what is to be written in the transaction that deletes a
// Node. From then on every token that was made for the node before, and every
// certificate that descends from one, is refused.
func DeletedNodeRecord(name string, d DeletedNode) (key string, value []byte, err error) {
	value, err = json.Marshal(d)
	if err != nil {
		return "", nil, fmt.Errorf("record the deletion of node %s: %w", name, err)
	}
	return DeletedNodePrefix + name, value, nil
}

// retryWatch is the pause before a watch of the store is taken up again.
const retryWatch = time.Second

// pruneEvery is the interval between removals of obsolete records of deletions.
const pruneEvery = time.Hour

// Revocations tracks withdrawn credentials: by the revocation of a token, or by the
// deletion of a node. It holds them in memory and follows the store. Safe for
// concurrent use.
type Revocations struct {
	store store.Store
	log   *slog.Logger
	// keepDeleted is how long a deletion is kept at least: until certificates
	// without a token record can no longer be renewed.
	keepDeleted time.Duration

	mu      sync.RWMutex
	tokens  map[string]TokenInfo
	deleted map[string]DeletedNode
	at      store.Revision // what is known
	changed chan struct{}
}

// NewRevocations reads what was withdrawn so far; Run follows what comes. It
// blocks for a read of the store. renewExpired is how long after its end a
// certificate can be renewed.
func NewRevocations(ctx context.Context, s store.Store, renewExpired time.Duration, log *slog.Logger) (*Revocations, error) {
	r := &Revocations{store: s, log: log, keepDeleted: ClientLife + renewExpired + keepDead, changed: make(chan struct{})}
	if err := r.load(ctx); err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	return r, nil
}

// Check refuses a subject whose credential was withdrawn. It does no I/O unless a
// node was deleted and the token is not known here yet. Errors: ErrRevoked,
// ErrNodeDeleted, or that the store cannot be read.
func (r *Revocations) Check(ctx context.Context, s Subject) error {
	r.mu.RLock()
	token, known := r.tokens[s.TokenID]
	node, isNode := NodeName(s.User, s.Groups)
	deletion, deleted := r.deleted[node]
	r.mu.RUnlock()
	if known && !token.Revoked.IsZero() {
		return fmt.Errorf("%w on %s (token %s): join again with a new token", ErrRevoked, token.Revoked.Format(time.RFC3339), token.ID)
	}
	if !isNode || !deleted {
		return nil
	}
	if !known && s.TokenID != "" { // the watch may be a moment behind
		rec, ok, _, err := r.store.Get(ctx, TokenPrefix+s.TokenID, 0)
		if err == nil && ok {
			err = json.Unmarshal(rec.Value, &token)
		}
		if err != nil {
			return fmt.Errorf("check token %s: %w", s.TokenID, err)
		}
		known = ok
	}
	if known && token.Created.After(deletion.Deleted) {
		return nil
	}
	return fmt.Errorf("%w on %s: join again with a new token (proxima token create --kind node --name %s)",
		ErrNodeDeleted, deletion.Deleted.Format(time.RFC3339), node)
}

// Changed is closed when something else than now is withdrawn. Ask for it before
// Check.
func (r *Revocations) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

// Run follows the store until ctx ends, and returns nil then. While the store
// cannot be followed, what was known last holds.
func (r *Revocations) Run(ctx context.Context) error {
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for ctx.Err() == nil {
		err := r.follow(ctx, prune.C)
		if ctx.Err() != nil {
			return nil
		}
		r.log.Warn("revocations are not followed; what was known last holds", "error", err, "retryIn", retryWatch)
		select {
		case <-time.After(retryWatch):
		case <-ctx.Done():
			return nil
		}
		if err := r.load(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("revocations not read", "error", err)
		}
	}
	return nil
}

// load replaces what is known. Changes of one prefix after it was listed are
// followed from the older of the two revisions.
func (r *Revocations) load(ctx context.Context) error {
	tokens, deleted := map[string]TokenInfo{}, map[string]DeletedNode{}
	first, err := r.store.List(ctx, store.ListOptions{Prefix: TokenPrefix})
	if err != nil {
		return err
	}
	for _, rec := range first.Records {
		var info TokenInfo
		if err := json.Unmarshal(rec.Value, &info); err != nil {
			return fmt.Errorf("key %s: %w", rec.Key, err)
		}
		tokens[info.ID] = info
	}
	second, err := r.store.List(ctx, store.ListOptions{Prefix: DeletedNodePrefix, At: first.Revision})
	if err != nil {
		return err
	}
	for _, rec := range second.Records {
		var d DeletedNode
		if err := json.Unmarshal(rec.Value, &d); err != nil {
			return fmt.Errorf("key %s: %w", rec.Key, err)
		}
		deleted[strings.TrimPrefix(rec.Key, DeletedNodePrefix)] = d
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens, r.deleted, r.at = tokens, deleted, first.Revision
	r.signal()
	return nil
}

// signal wakes those who wait for Changed. r.mu is held.
func (r *Revocations) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// follow applies changes until the watch ends.
func (r *Revocations) follow(ctx context.Context, prune <-chan time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watches [2]store.Watcher
	for i, prefix := range []string{TokenPrefix, DeletedNodePrefix} {
		w, err := r.store.Watch(ctx, prefix, r.at)
		if err != nil {
			return err
		}
		defer w.Close()
		watches[i] = w
	}
	for {
		var batch store.Batch
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-prune:
			r.prune(ctx)
			continue
		case batch, open = <-watches[0].Batches():
			if !open {
				return watches[0].Err()
			}
		case batch, open = <-watches[1].Batches():
			if !open {
				return watches[1].Err()
			}
		}
		if err := r.apply(batch.Events); err != nil {
			return err
		}
	}
}

func (r *Revocations) apply(events []store.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	withdrawn := false
	for _, e := range events {
		id, isToken := strings.CutPrefix(e.Record.Key, TokenPrefix)
		name := strings.TrimPrefix(e.Record.Key, DeletedNodePrefix)
		switch {
		case isToken && e.Kind == store.Delete:
			delete(r.tokens, id)
		case e.Kind == store.Delete:
			delete(r.deleted, name)
		case isToken:
			var info TokenInfo
			if err := json.Unmarshal(e.Record.Value, &info); err != nil {
				return fmt.Errorf("key %s: %w", e.Record.Key, err)
			}
			withdrawn = withdrawn || !info.Revoked.IsZero()
			r.tokens[id] = info
		default:
			var d DeletedNode
			if err := json.Unmarshal(e.Record.Value, &d); err != nil {
				return fmt.Errorf("key %s: %w", e.Record.Key, err)
			}
			withdrawn = true
			r.deleted[name] = d
		}
	}
	if withdrawn {
		r.signal()
	}
	return nil
}

// prune removes deletions that refuse nothing any more: no record of an older
// token of the node is left, and certificates without a record have run out.
func (r *Revocations) prune(ctx context.Context) {
	for _, name := range r.prunable(time.Now()) {
		rec, ok, _, err := r.store.Get(ctx, DeletedNodePrefix+name, 0)
		var d DeletedNode
		if err == nil && ok {
			err = json.Unmarshal(rec.Value, &d)
		}
		if err == nil && ok && time.Since(d.Deleted) > r.keepDeleted {
			_, err = r.store.Commit(ctx, store.Txn{
				Conditions: []store.Condition{{Key: rec.Key, Modified: rec.Modified}},
				Ops:        []store.Op{{Kind: store.Delete, Key: rec.Key}},
			})
		}
		var conflict *store.ConflictError
		if err != nil && !errors.As(err, &conflict) && ctx.Err() == nil {
			r.log.Warn("record of a deleted node not removed; it is tried again", "node", name, "error", err)
		}
	}
}

func (r *Revocations) prunable(now time.Time) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	oldest := map[string]time.Time{} // token of a node
	for _, t := range r.tokens {
		if first, ok := oldest[t.Name]; t.Kind == Node && (!ok || t.Created.Before(first)) {
			oldest[t.Name] = t.Created
		}
	}
	var out []string
	for name, d := range r.deleted {
		first, ok := oldest[name]
		if now.Sub(d.Deleted) > r.keepDeleted && (!ok || first.After(d.Deleted)) {
			out = append(out, name)
		}
	}
	return out
}

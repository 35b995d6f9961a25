package feed

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Item is the state of a key at a position.
type Item struct {
	Key   string
	Value []byte
	// Created and Modified as in store.Record.
	Created, Modified seglog.Position
}

// At returns the position that the store was at, at a time. Errors: *seglog.ExpiredError for a time before the oldest change.
func (f *Feed) At(t time.Time) (seglog.Position, error) {
	first, _ := f.Log.First()
	at, err := f.Log.Since(t.Add(time.Millisecond))
	if err != nil {
		return 0, err
	}
	if at < first || at == first && f.before(t) {
		return 0, f.reach(&seglog.ExpiredError{First: first})
	}
	return at, nil
}

// before reports whether a time is before all that the log tells of.
func (f *Feed) before(t time.Time) bool {
	for _, s := range f.Log.Segments() {
		if first, _ := f.Log.First(); s.After == first {
			return t.Before(s.Created)
		}
	}
	return false
}

// State returns what the keys with a prefix were at a position, in order of keys. It reads the store, and all changes since the position.
// Errors: those of the store and the log, *seglog.ExpiredError among them; that of ctx.
func (f *Feed) State(ctx context.Context, prefix string, at seglog.Position) ([]Item, error) {
	page, err := f.cfg.Store.List(ctx, store.ListOptions{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	now := seglog.Position(page.Revision)
	items := make(map[string]Item, len(page.Records))
	for i := range page.Records {
		r := &page.Records[i]
		items[r.Key] = Item{r.Key, r.Value, seglog.Position(r.Created), seglog.Position(r.Modified)}
	}
	if at < now {
		if err := f.Reach(ctx, now); err != nil {
			return nil, err
		}
		if err := f.undo(ctx, items, prefix, at, now); err != nil {
			return nil, err
		}
	}
	out := make([]Item, 0, len(items))
	for _, item := range items {
		out = append(out, item)
	}
	slices.SortFunc(out, func(a, b Item) int { return cmp.Compare(a.Key, b.Key) })
	return out, nil
}

// undo changes of the keys after a position: each was then what its first change since replaced.
func (f *Feed) undo(ctx context.Context, items map[string]Item, prefix string, at, now seglog.Position) error {
	seen := map[string]bool{}
	for r := f.Log.Read(at); r.At() < now; {
		entries, err := r.Poll()
		if err != nil || len(entries) == 0 {
			return cmp.Or(f.reach(err), ctx.Err())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, e := range entries {
			if e.Position > now || seen[e.Key] || !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			seen[e.Key] = true
			if e.Prev == 0 {
				delete(items, e.Key)
				continue
			}
			value, _, err := f.Log.Previous(e)
			if err != nil {
				return err
			}
			items[e.Key] = Item{e.Key, value, e.PrevCreated, e.Prev}
		}
	}
	return nil
}

// History calls visit with the changes of keys after a position, in order, until it returns false. match selects keys. It does not wait for
// changes that are yet to come. Errors: as those of State.
func (f *Feed) History(ctx context.Context, after seglog.Position, match func(key string) bool, visit func(*seglog.Entry) bool) error {
	for r := f.Log.Read(after); ; {
		entries, err := r.Poll()
		if err != nil || len(entries) == 0 {
			return f.reach(err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, e := range entries {
			if match(e.Key) && !visit(e) {
				return nil
			}
		}
	}
}

package redact

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// pass over all files of the feed. It costs what is new. Errors: those of the store; that of ctx.
func (r *Redactions) pass(ctx context.Context, relist bool) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	rows, err := r.load(ctx)
	if err != nil {
		return err
	}
	p := &pass{Redactions: r, ctx: ctx, rows: rows, seen: map[string]bool{}}
	absent := r.missingRoots()
	if len(rows) == 0 {
		p.remember()
		return nil
	}
	e := feed.Editing{Wanted: p.wanted, Editor: p.editor, Examined: p.note}
	for _, one := range rows {
		if one.Epoch == r.cfg.Store.Epoch() {
			e.UpTo = max(e.UpTo, one.UpTo)
		}
	}
	unedited, err := r.cfg.Feed.Edit(ctx, e, relist)
	absent = append(absent, r.missingRoots()...) // what was away for a moment, too, may have files that were not seen
	slices.Sort(absent)
	absent = slices.Compact(absent)
	p.remember()
	if err != nil {
		return err
	}
	left := map[string][]string{}
	for _, one := range rows {
		left[one.ID] = append([]string{}, absent...)
		for _, u := range unedited {
			if u.File == nil || one.concerns(*u.File) && !slices.Contains(u.File.Marks, one.ID) {
				left[one.ID] = append(left[one.ID], u.Problem)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, now := range left {
		if before, looked := r.left[id]; len(now) > 0 && (!looked || !slices.Equal(before, now)) {
			r.log.Warn("a redaction of the change feed is outstanding", "redaction", id, "why", now)
		} else if len(now) == 0 && (!looked || len(before) > 0) {
			r.log.Info("a redaction of the change feed is done at this instance", "redaction", id)
		}
	}
	r.left = left
	return nil
}

// pass is one over all files.
type pass struct {
	*Redactions
	ctx  context.Context
	rows []*row
	// seen are the SHA-256 of files that are there.
	seen map[string]bool
}

// concerns reports whether a file may have values that a redaction is about.
func (o *row) concerns(f seglog.SealedFile) bool {
	// The value at UpTo goes on into the first change after it, but then it is one that is kept, or it has nothing at the path.
	return f.Epoch != o.Epoch || f.After < o.UpTo || o.KeepCurrent
}

// missing are the redactions that may have something to change in a file.
func (p *pass) missing(f seglog.SealedFile) (out []*row) {
	known := p.memory.Examined[f.SHA256]
	for _, one := range p.rows {
		if one.concerns(f) && !slices.Contains(f.Marks, one.ID) && !slices.Contains(known, one.ID) {
			out = append(out, one)
		}
	}
	return out
}

func (p *pass) wanted(f seglog.SealedFile) bool {
	p.seen[f.SHA256] = true
	return len(p.missing(f)) > 0
}

// note that a file is as all rows want it.
func (p *pass) note(sha string) {
	ids := make([]string, len(p.rows))
	for i, one := range p.rows {
		ids[i] = one.ID
	}
	p.seen[sha] = true
	p.memory.Examined[sha] = ids
	p.dirty = true
}

// remember what was examined, of the files that are there.
func (p *pass) remember() {
	if !p.dirty {
		return
	}
	if len(p.rows) > 0 {
		maps.DeleteFunc(p.memory.Examined, func(sha string, _ []string) bool { return !p.seen[sha] })
	}
	data, err := json.Marshal(&p.memory)
	if err == nil {
		err = atomicfile.Write(p.cfg.Memory, data, 0o600)
	}
	if err != nil {
		p.log.Warn("which segments of the change feed were examined for redactions, and which roots it has, is not noted; it is found out again after a restart", "error", err)
		return
	}
	p.dirty = false
}

// editor of a file.
func (p *pass) editor(f seglog.SealedFile) seglog.Editor {
	var marks []string
	byKey := map[string][]*row{}
	for _, one := range p.missing(f) {
		marks = append(marks, one.ID)
		byKey[one.key] = append(byKey[one.key], one)
	}
	return seglog.Editor{Marks: marks, Edit: func(e *seglog.Entry, has []string) (*seglog.Entry, error) {
		var now, before []*row
		for _, one := range byKey[e.Key] {
			switch {
			case slices.Contains(has, one.ID):
			case f.Epoch != one.Epoch:
				if !e.Time.After(one.Created) {
					now, before = append(now, one), append(before, one)
				}
			default:
				if e.Position <= one.UpTo {
					now = append(now, one)
				}
				if e.Prev <= one.UpTo {
					before = append(before, one)
				}
			}
		}
		own := *e
		changed, err := p.value(&own.Value, e.Key, e.Position, now)
		also, failed := p.value(&own.PrevValue, e.Key, e.Prev, before)
		if err := errors.Join(err, failed); err != nil || !changed && !also {
			return e, err
		}
		return &own, nil
	}}
}

// value of an entry is redacted.
func (p *pass) value(v *[]byte, key string, at seglog.Position, rows []*row) (changed bool, err error) {
	if len(*v) == 0 || len(rows) == 0 {
		return false, nil
	}
	all := make([]replacement, 0, len(rows))
	for _, one := range rows {
		path, err := history.ParsePath(one.Field)
		if err != nil {
			return false, err
		}
		all = append(all, replacement{path: path, key: one.Key, id: one.ID})
	}
	next, places, err := apply(p.ctx, p.cfg.Objects, key, *v, store.Revision(at), all)
	if err != nil || next == nil {
		return false, err
	}
	*v = next
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, n := range places {
		p.replaced[id] += n
	}
	return true, nil
}

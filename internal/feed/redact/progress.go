package redact

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// progress of an instance, a row of the store. It stays when the instance ends, as its files do.
type progress struct {
	Instance string    `json:"instance"`
	Reported time.Time `json:"reported"`
	// Left is what is outstanding, by the ID of the redaction; absent: it has not looked yet.
	Left map[string][]string `json:"left"`
}

const notLooked = "the instance has not looked yet"

// tell the other instances how far this one is. If that fails, it is tried again after the next pass.
func (r *Redactions) tell(ctx context.Context) {
	if err := r.report(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("how far this instance is with redactions is not told to the others; it is tried again", "error", err)
	}
}

// report to the other instances how far this one is, if there may be others. Errors: those of the store.
func (r *Redactions) report(ctx context.Context) error {
	if r.cfg.Instance == "" {
		return nil
	}
	r.mu.Lock()
	now := progress{Instance: r.cfg.Instance, Reported: r.cfg.Now().UTC().Truncate(time.Second), Left: maps.Clone(r.left)}
	r.mu.Unlock()
	r.reporting.Lock()
	defer r.reporting.Unlock()
	last := &r.reported
	if last.Left != nil && now.Reported.Sub(last.Reported) < reportEvery && maps.EqualFunc(last.Left, now.Left, slices.Equal) {
		return nil
	}
	value, err := json.Marshal(&now)
	if err != nil {
		return err
	}
	_, err = r.cfg.Store.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: progressPrefix + url.PathEscape(r.cfg.Instance), Value: value}}})
	if err == nil {
		r.reported = now
	}
	return err
}

// others are what the other instances have reported, in order of names. Rows of those that are gone for long are removed. Errors: those of the store.
func (r *Redactions) others(ctx context.Context) ([]progress, error) {
	if r.cfg.Instance == "" {
		return nil, nil
	}
	page, err := r.cfg.Store.List(ctx, store.ListOptions{Prefix: progressPrefix})
	if err != nil {
		return nil, err
	}
	var out []progress
	for _, rec := range page.Records {
		var p progress
		switch err := json.Unmarshal(rec.Value, &p); {
		case err != nil:
			r.log.Warn("how far an instance is with redactions cannot be read", "key", rec.Key, "error", err)
		case p.Instance == r.cfg.Instance:
		case r.cfg.Now().Sub(p.Reported) > forgetAfter:
			r.log.Info("an instance that has not reported for long is not listed with redactions any more", "instance", p.Instance, "reported", p.Reported)
			_, err := r.cfg.Store.Commit(ctx, store.Txn{
				Conditions: []store.Condition{{Key: rec.Key, Modified: rec.Modified}}, Ops: []store.Op{{Kind: store.Delete, Key: rec.Key}},
			})
			if err != nil {
				r.log.Debug("its row is not removed", "key", rec.Key, "error", err)
			}
		default:
			out = append(out, p)
		}
	}
	return out, nil
}

// among returns a status with what all instances have reported.
func (r *Redactions) among(st Status, others []progress) Status {
	if r.cfg.Instance == "" {
		return st
	}
	here := Instance{Name: r.cfg.Instance, Done: st.Done, Outstanding: st.Outstanding, Reported: r.cfg.Now().UTC()}
	st.Instances = []Instance{here}
	for _, p := range others {
		left, looked := p.Left[st.ID]
		if !looked {
			left = []string{notLooked}
		}
		st.Instances = append(st.Instances, Instance{Name: p.Instance, Done: len(left) == 0, Outstanding: left, Reported: p.Reported})
	}
	slices.SortFunc(st.Instances, func(a, b Instance) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return st
}

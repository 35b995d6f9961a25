package issue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

// LedgerPrefix of the records of certificates in the store.
const LedgerPrefix = "/proxima/certificates/"

// Entry is the newest certificate of one subject on one node.
type Entry struct {
	Issued
	// Count of the certificates that were issued without a gap.
	Count int64 `json:"count"`
}

// Ledger has the newest certificate of each subject in the store, until it runs out. It
// has no keys, and no certificates but their serial numbers. Safe for concurrent use.
type Ledger struct {
	store store.Store
	now   func() time.Time
}

// NewLedger does no I/O. now nil: time.Now.
func NewLedger(s store.Store, now func() time.Time) *Ledger {
	if now == nil {
		now = time.Now
	}
	return &Ledger{s, now}
}

func ledgerKey(i Issued) string {
	return LedgerPrefix + strings.Join([]string{i.Mesh, i.Node, i.Namespace, i.Workload}, "/")
}

// Record implements Config.Record.
func (l *Ledger) Record(ctx context.Context, i Issued) error {
	key := ledgerKey(i)
	for {
		entry := Entry{Issued: i, Count: 1}
		rec, ok, _, err := l.store.Get(ctx, key, 0)
		if err != nil {
			return err
		}
		if before, err := decodeEntry(rec); ok && err == nil {
			entry.Count += before.Count
			if before.NotAfter.After(i.NotAfter) {
				entry.NotAfter = before.NotAfter // an earlier certificate may still be used
			}
		}
		data, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		_, err = l.store.Commit(ctx, store.Txn{
			Conditions: []store.Condition{{Key: key, Modified: rec.Modified}},
			Ops:        []store.Op{{Kind: store.Put, Key: key, Value: data, TTL: max(entry.NotAfter.Sub(l.now()), time.Second)}},
		})
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}

func decodeEntry(rec store.Record) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(rec.Value, &e); err != nil {
		return Entry{}, fmt.Errorf("record %s: %w", rec.Key, err)
	}
	return e, nil
}

// Follow calls entry for each certificate that has not run out, and again for each that
// is issued by whichever instance, until ctx ends; it returns nil then.
func (l *Ledger) Follow(ctx context.Context, entry func(Entry)) error {
	pause := backoff.Backoff{Policy: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.5}}
	for ctx.Err() == nil {
		at, err := l.All(ctx, entry)
		if err == nil {
			pause.Reset()
			l.watch(ctx, at, entry)
		}
		backoff.Sleep(ctx, pause.Next())
	}
	return nil
}

// All calls entry for each certificate that has not run out, and returns the revision that
// this was at.
func (l *Ledger) All(ctx context.Context, entry func(Entry)) (store.Revision, error) {
	page, err := l.store.List(ctx, store.ListOptions{Prefix: LedgerPrefix})
	if err != nil {
		return 0, fmt.Errorf("records of certificates: %w", err)
	}
	for _, rec := range page.Records {
		// What is damaged is the record of nothing: the holder gets another one soon.
		if e, err := decodeEntry(rec); err == nil {
			entry(e)
		}
	}
	return page.Revision, nil
}

func (l *Ledger) watch(ctx context.Context, after store.Revision, entry func(Entry)) {
	w, err := l.store.Watch(ctx, LedgerPrefix, after)
	if err != nil {
		return
	}
	defer w.Close()
	for batch := range w.Batches() {
		for _, event := range batch.Events {
			if event.Kind != store.Put {
				continue
			}
			if e, err := decodeEntry(event.Record); err == nil {
				entry(e)
			}
		}
	}
}

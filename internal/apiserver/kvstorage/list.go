package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/proxima-mesh/proxima/internal/store"
)

// maxPage bounds how far a page grows while a selector drops most objects. A
// caller's own larger limit stands.
const maxPage = 10000

// lister is one GetList.
type lister struct {
	*Storage
	prefix string // or the key, for a list of one object
	opts   storage.ListOptions
	items  reflect.Value // settable slice
	broken corruptList

	at   store.Revision // 0 until the first page is read
	from string         // key to go on with
	last string         // last key that was processed
	more bool           // keys follow it
	// remaining counts the keys that follow; valid if more and nothing is selected.
	remaining int64
}

// GetList implements storage.Interface. A list is consistent: all pages, those
// fetched with continue tokens too, show the revision of the first.
func (s *Storage) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := s.fullKey(key, opts.Recursive)
	if err != nil {
		return err
	}
	itemsPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil || items.Kind() != reflect.Slice {
		return fmt.Errorf("list %s: items of %T are not a slice", prefix, listObj)
	}
	at, from, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return err
	}
	l := &lister{Storage: s, prefix: prefix, opts: opts, items: items, at: store.Revision(at), from: from}
	err = l.run(ctx)
	s.noteList(prefix, l.more, len(l.broken.causes) > 0, err)
	if err != nil {
		return err
	}
	if items.IsNil() {
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	return l.finish(listObj)
}

// run reads pages until the limit is reached or the keys end.
func (l *lister) run(ctx context.Context) error {
	limit := l.opts.Predicate.Limit
	for {
		page, err := l.page(ctx, int(limit))
		if err != nil {
			return l.readError(ctx, err)
		}
		if l.at == 0 {
			if err := l.notOlder(l.opts.ResourceVersion, page.Revision); err != nil {
				return err
			}
			l.at = page.Revision
		}
		l.more, l.remaining = page.More, page.Remaining
		if err := l.take(ctx, page.Records); err != nil {
			return err
		}
		if !l.more || l.full() {
			return l.broken.err(l.group)
		}
		l.from = l.last + "\x00"
		if limit < maxPage {
			// The selector dropped objects; larger pages keep the reads few.
			limit = min(2*limit, maxPage)
		}
	}
}

func (l *lister) page(ctx context.Context, limit int) (store.Page, error) {
	if l.opts.Recursive {
		return l.store.List(ctx, store.ListOptions{Prefix: l.prefix, From: l.from, Limit: limit, At: l.at})
	}
	rec, ok, at, err := l.store.Get(ctx, l.prefix, l.at)
	page := store.Page{Revision: at}
	if ok {
		page.Records = []store.Record{rec}
	}
	return page, err
}

func (l *lister) full() bool {
	limit := l.opts.Predicate.Limit
	return limit > 0 && int64(l.items.Len()) >= limit
}

// take decodes records and keeps those that the caller selects.
func (l *lister) take(ctx context.Context, records []store.Record) error {
	if l.opts.Predicate.Empty() {
		l.items.Grow(len(records))
	}
	elem := l.items.Type().Elem()
	for _, rec := range records {
		if l.full() {
			l.more = true
			return nil
		}
		if err := ctx.Err(); err != nil {
			return storage.NewTimeoutError(rec.Key, "request did not complete within requested timeout")
		}
		l.last = rec.Key
		obj := reflect.New(elem)
		if err := l.Decode(ctx, rec, obj.Interface().(runtime.Object)); err != nil {
			if !l.corruptible {
				return err
			}
			if !l.broken.add(rec.Key, err) {
				return l.broken.err(l.group)
			}
			continue
		}
		if ok, err := l.opts.Predicate.Matches(obj.Interface().(runtime.Object)); err == nil && ok {
			l.compact(obj.Interface().(runtime.Object))
			l.items.Set(reflect.Append(l.items, obj.Elem()))
		}
	}
	return nil
}

func (l *lister) readError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, store.ErrCompacted) && len(l.opts.Predicate.Continue) > 0:
		return expiredPage(l.from, l.prefix)
	case errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired(listExpired)
	case errors.Is(err, store.ErrFuture):
		now, _ := l.store.Revision(ctx) // for the message only; 0 if unknown
		return storage.NewTooLargeResourceVersionError(uint64(l.at), uint64(now), 0)
	}
	return storageError("list", l.prefix, err)
}

// finish writes revision and continuation into the list.
func (l *lister) finish(listObj runtime.Object) error {
	token := ""
	var remaining *int64
	if l.more {
		var err error
		if token, err = storage.EncodeContinue(l.last+"\x00", l.prefix, int64(l.at)); err != nil {
			return fmt.Errorf("list %s: %w", l.prefix, err)
		}
		// With a selector the number would count objects that it drops.
		if l.opts.Predicate.Empty() {
			remaining = &l.remaining
		}
	}
	if err := l.versioner.UpdateList(listObj, uint64(l.at), token, remaining); err != nil {
		return fmt.Errorf("list %s: %w", l.prefix, err)
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		l.opts.Predicate.SetShardInfoOnList(listObj)
	}
	return nil
}

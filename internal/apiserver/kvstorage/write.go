package kvstorage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/store"
)

// state is an object as a write found it.
type state struct {
	// obj is nil if the value is unreadable and the caller expects that.
	obj  runtime.Object
	data []byte // serialised, without transformation
	// rev is 0 for an object that does not exist.
	rev store.Revision
	// stale: the transformer requires the value to be rewritten.
	stale bool
	// current: read from the store, not suggested by the caller.
	current bool
}

// reader makes states of one key for one write.
type reader struct {
	*Storage
	key string
	// like is an object of the type to decode into.
	like reflect.Type
	// absentOK makes an absent key a state with a zero object.
	absentOK bool
	// wantUnreadable makes a readable value an error.
	wantUnreadable bool
}

// read gets the newest state.
func (r *reader) read(ctx context.Context) (*state, error) {
	rec, ok, _, err := r.store.Get(ctx, r.key, 0)
	if err != nil {
		return nil, storageError("get", r.key, err)
	}
	if !ok {
		return r.of(ctx, nil)
	}
	return r.of(ctx, &rec)
}

// of makes the state of a record; nil: absent.
func (r *reader) of(ctx context.Context, rec *store.Record) (*state, error) {
	st := &state{current: true, obj: reflect.New(r.like).Interface().(runtime.Object)}
	if rec == nil {
		if !r.absentOK {
			return nil, storage.NewKeyNotFoundError(r.key, 0)
		}
		return st, runtime.SetZeroValue(st.obj)
	}
	st.rev = rec.Modified
	var err error
	st.data, st.stale, err = r.unseal(ctx, r.key, rec.Value)
	if err == nil {
		err = r.decode(r.key, st.data, st.obj, rec.Modified)
	}
	switch {
	case err != nil && r.wantUnreadable:
		st.obj = nil
		return st, nil
	case err != nil:
		return nil, err
	case r.wantUnreadable:
		return nil, storage.NewInvalidObjError(r.key, "unsafe deletion is not allowed: the object is readable")
	}
	return st, nil
}

// suggested makes a state of an object that the caller has at hand.
func (r *reader) suggested(obj runtime.Object) (*state, error) {
	rv, err := r.versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("suggested object of %s: %w", r.key, err)
	}
	st := &state{obj: obj, rev: store.Revision(rv)}
	if st.data, err = r.encode(obj); err != nil {
		return nil, fmt.Errorf("suggested object of %s: %w", r.key, err)
	}
	return st, r.versioner.UpdateObject(obj, rv) // encode took it off
}

// first is the state that a write starts with.
func (r *reader) first(ctx context.Context, suggestion runtime.Object) (*state, error) {
	if suggestion != nil && !r.wantUnreadable {
		return r.suggested(suggestion)
	}
	return r.read(ctx)
}

// afterRefusal handles an error of the caller's function (or precondition). If it was
// computed from a suggestion that is out of date, the current state is returned for
// another attempt; otherwise the error is final.
func (r *reader) afterRefusal(ctx context.Context, judged *state, refusal error) (*state, error) {
	if judged.current {
		return nil, refusal
	}
	fresh, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	if fresh.rev == judged.rev {
		return nil, refusal
	}
	return fresh, nil
}

// commit writes op, if there is one, on condition that key was modified last at
// seen, together with the companions of ctx. It returns the revision of op, or
// of the condition without op. A conflict on key itself is returned as lost; one
// on a companion is an error.
func (s *Storage) commit(
	ctx context.Context, kind WriteKind, key string, seen store.Revision, op *store.Op,
) (rev store.Revision, lost *store.ConflictError, err error) {
	set := CompanionsFrom(ctx)
	companions := set.snapshot(kind)
	// The object's condition comes first, so that it is the one to be reported:
	// companions set up on outdated grounds must lead to a retry, not to an error.
	txn := store.Txn{Conditions: []store.Condition{{Key: key, Modified: seen}}}
	for _, c := range companions {
		if c.op.Key == key {
			return 0, nil, storage.NewInternalError(fmt.Errorf("write %s: it is its own companion", key))
		}
		if c.condition.guarded {
			txn.Conditions = append(txn.Conditions, store.Condition{Key: c.op.Key, Modified: c.condition.modified})
		}
		if !c.guard {
			txn.Ops = append(txn.Ops, c.op)
		}
	}
	if op != nil {
		// Last, because Commit returns the revision of the last change.
		txn.Ops = append(txn.Ops, *op)
	}
	var began time.Time
	if s.tracer.On() {
		began = time.Now()
	}
	rev, err = s.store.Commit(ctx, txn)
	if err == nil && op != nil && s.tracer.On() {
		s.trace(ctx, kind, key, rev, began)
	}
	switch {
	case err == nil && len(companions) > 0:
		set.Reset()
	case errors.As(err, &lost) && lost.Condition.Key == key:
		return 0, lost, nil
	case lost != nil:
		return 0, nil, &CompanionConflictError{Key: lost.Condition.Key, Current: lost.Current}
	case err != nil:
		return 0, nil, storageError("write", key, err)
	}
	if op == nil {
		rev = seen
	}
	return rev, nil, nil
}

// Create implements storage.Interface.
func (s *Storage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	key, err := s.fullKey(key, false)
	if err != nil {
		return err
	}
	if rv, err := s.versioner.ObjectResourceVersion(obj); err == nil && rv != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	data, err := s.encode(obj)
	if err != nil {
		return fmt.Errorf("create %s: %w", key, err)
	}
	sealed, err := s.transform(ctx, key, data)
	if err != nil {
		return err
	}
	var made runtime.Object
	if out != nil {
		if made, err = s.readBack(key, data, sealed, reflect.TypeOf(out)); err != nil {
			return err
		}
	}
	rev, lost, err := s.commit(ctx, OnCreate, key, 0, put(key, sealed, ttl))
	switch {
	case err != nil:
		return err
	case lost != nil:
		return storage.NewKeyExistsError(key, 0)
	case out == nil:
		return nil
	}
	return s.become(out, made, rev)
}

// readBack decodes what is about to be stored, into an object of a type, and leaves a copy of it to the watch cache, if
// there is one.
func (s *Storage) readBack(key string, data, sealed []byte, t reflect.Type) (runtime.Object, error) {
	made := reflect.New(t.Elem()).Interface().(runtime.Object)
	if err := s.decode(key, data, made, 0); err != nil {
		return nil, err
	}
	if s.written.wanted() {
		left := made.DeepCopyObject()
		left.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // as decodeNew has it
		s.written.put(key, sealed, left)
	}
	return made, nil
}

// become makes out what was written at a revision.
func (s *Storage) become(out, made runtime.Object, rev store.Revision) error {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(made).Elem())
	return s.versioner.UpdateObject(out, uint64(rev))
}

func put(key string, value []byte, ttlSeconds uint64) *store.Op {
	return &store.Op{Kind: store.Put, Key: key, Value: value, TTL: time.Duration(ttlSeconds) * time.Second}
}

// GuaranteedUpdate implements storage.Interface. A nil ttl from tryUpdate clears
// an earlier one, as upstream does.
func (s *Storage) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object,
) error {
	key, err := s.fullKey(key, false)
	if err != nil {
		return err
	}
	v, err := conversion.EnforcePtr(destination)
	if err != nil {
		return fmt.Errorf("update %s: %w", key, err)
	}
	r := &reader{Storage: s, key: key, like: v.Type(), absentOK: ignoreNotFound}
	st, err := r.first(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	for {
		data, ttl, err := r.attempt(st, preconditions, tryUpdate)
		if err != nil {
			if st, err = r.afterRefusal(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		unchanged := !st.stale && bytes.Equal(data, st.data)
		if unchanged && !st.current {
			// The suggestion may be out of date, so "no change" must be checked.
			if st, err = r.read(ctx); err != nil {
				return err
			}
			if !bytes.Equal(data, st.data) {
				continue
			}
			unchanged = !st.stale
		}
		next, err := r.update(ctx, st, data, ttl, unchanged, destination)
		if err != nil || next == nil {
			return err
		}
		st = next
	}
}

// attempt runs the caller's function on a state.
func (r *reader) attempt(
	st *state, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc,
) (data []byte, ttl uint64, err error) {
	if err := preconditions.Check(r.key, st.obj); err != nil {
		return nil, 0, err
	}
	updated, ttlp, err := tryUpdate(st.obj, storage.ResponseMeta{ResourceVersion: uint64(st.rev)})
	if err != nil {
		return nil, 0, err
	}
	if ttlp != nil {
		ttl = *ttlp
	}
	if data, err = r.encode(updated); err != nil {
		return nil, 0, fmt.Errorf("update %s: %w", r.key, err)
	}
	return data, ttl, nil
}

// update commits one attempt. If another writer was faster, it returns the state
// to try again with.
func (r *reader) update(
	ctx context.Context, st *state, data []byte, ttl uint64, unchanged bool, destination runtime.Object,
) (*state, error) {
	var op *store.Op
	var made runtime.Object
	if !unchanged {
		sealed, err := r.transform(ctx, r.key, data)
		if err != nil {
			return nil, err
		}
		if made, err = r.readBack(r.key, data, sealed, reflect.TypeOf(destination)); err != nil {
			return nil, err
		}
		op = put(r.key, sealed, ttl)
	} else if len(CompanionsFrom(ctx).snapshot(OnUpdate)) == 0 {
		return nil, r.decode(r.key, data, destination, st.rev)
	}
	rev, lost, err := r.commit(ctx, OnUpdate, r.key, st.rev, op)
	switch {
	case err != nil:
		return nil, err
	case lost != nil:
		return r.of(ctx, lost.Current)
	case made != nil:
		return nil, r.become(destination, made, rev)
	}
	return nil, r.decode(r.key, data, destination, rev)
}

// Delete implements storage.Interface. The object returned carries the revision
// of its deletion.
func (s *Storage) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions,
) error {
	key, err := s.fullKey(key, false)
	if err != nil {
		return err
	}
	v, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	r := &reader{Storage: s, key: key, like: v.Type(), wantUnreadable: s.corruptible && opts.ExpectTransformOrDecodeError}
	st, err := r.first(ctx, cachedExistingObject)
	if err != nil {
		return err
	}
	if st.rev == 0 { // the suggestion was never stored
		if st, err = r.read(ctx); err != nil {
			return err
		}
	}
	for {
		if err := checkDeletion(ctx, key, st.obj, preconditions, validateDeletion); err != nil {
			if st, err = r.afterRefusal(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		rev, lost, err := s.commit(ctx, OnDelete, key, st.rev, &store.Op{Kind: store.Delete, Key: key})
		switch {
		case err != nil:
			return err
		case lost != nil:
			if st, err = r.of(ctx, lost.Current); err != nil {
				return err
			}
			continue
		case r.wantUnreadable:
			return nil
		}
		return s.decode(key, st.data, out, rev)
	}
}

func checkDeletion(
	ctx context.Context, key string, obj runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc,
) error {
	if err := preconditions.Check(key, obj); err != nil {
		return err
	}
	return validate(ctx, obj)
}

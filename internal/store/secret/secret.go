// Package secret is a small store in one Secret of a Kubernetes cluster: what the replicas of a
// control plane share there besides objects, as tokens and keys of authorities.
//
// It owns the encoding, and the writes: a transaction is one update of the Secret, on condition
// of its resource version, so the cluster orders those of all replicas. Reads and watches are of
// a copy in memory, which Run keeps up. Revisions and the epoch are this process's own: nothing
// of them may leave it. All records together have at most MaxBytes. Enter at Open.
//
// It encrypts nothing: a Secret is what the cluster protects.
package secret

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// MaxBytes of all records, compressed: a Secret has at most 1 MiB (k8s.io/api/core/v1,
// MaxSecretSize).
const MaxBytes = corev1.MaxSecretSize

// maxPlain bounds what is read, in bytes, whatever it is compressed to.
const maxPlain = 64 << 20

// dataKey of the records in the Secret.
const dataKey = "records"

// Config of a Store. Client and Key are required.
type Config struct {
	// Client of Secrets. It may get, watch, create and update the one of Key.
	Client resource.Client
	Key    resource.Key
	Clock  clock.Clock  // nil: the real one
	Logger *slog.Logger // nil: silence
}

// Store implements store.Store.
type Store struct {
	*memory.Store
	cfg Config

	// mu orders writes, and what is learnt of other replicas.
	mu sync.Mutex
	// version is the resource version of the Secret whose records the copy has; empty: none.
	version string
}

var _ store.Store = (*Store)(nil)

// Open reads the records. It blocks for a request to the cluster. A Secret that is not there is
// made by the first write.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{Store: memory.New(memory.Options{Clock: cfg.Clock, Logger: cfg.Logger}), cfg: cfg}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Run follows what other replicas write, until ctx ends, and returns nil then.
func (s *Store) Run(ctx context.Context) error {
	return reflector.Run(ctx, reflector.Config{
		Client: s.cfg.Client, Kind: kind.Secret, Clock: s.cfg.Clock, Logger: s.cfg.Logger, Level: slog.LevelDebug,
		Select: resource.ListOptions{
			Namespace: s.cfg.Key.Namespace, Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, s.cfg.Key.Name),
		},
		Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2},
	}, func(e reflector.Event) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		known := true
		for _, obj := range e.Objects {
			known = known && obj.GetResourceVersion() == s.version
		}
		if known && e.Type != reflector.Delete {
			return nil
		}
		// The event may be older than a write of this replica: the newest counts.
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("records of other replicas not read; they are with the next change", "secret", s.cfg.Key, "error", err)
		}
		return nil
	})
}

// Commit implements store.Store: it returns when the cluster has the change.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := txn.Validate(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.holds(ctx, txn.Conditions); err != nil {
			return 0, err
		}
		err := s.write(ctx, txn.Ops)
		switch {
		case err == nil:
			// The cluster has it: the copy must not be without it.
			return s.Store.Commit(context.WithoutCancel(ctx), store.Txn{Ops: txn.Ops})
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return 0, fmt.Errorf("secret %s: %w", s.cfg.Key, err)
		}
		if err := s.refresh(ctx); err != nil {
			return 0, err
		}
	}
}

// holds checks conditions against the copy.
func (s *Store) holds(ctx context.Context, all []store.Condition) error {
	for _, c := range all {
		rec, ok, _, err := s.Get(ctx, c.Key, 0)
		if err != nil {
			return err
		}
		if rec.Modified != c.Modified {
			conflict := &store.ConflictError{Condition: c}
			if ok {
				conflict.Current = &rec
			}
			return conflict
		}
	}
	return nil
}

// record as it is kept.
type record struct {
	Key     key       `json:"key"`
	Value   []byte    `json:"value"`
	Expires time.Time `json:"expires,omitzero"`
}

// key in JSON is base64: it may be no text.
type key string

// MarshalJSON implements json.Marshaler.
func (k key) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(k)) }

// UnmarshalJSON implements json.Unmarshaler.
func (k *key) UnmarshalJSON(data []byte) error {
	var b []byte
	err := json.Unmarshal(data, &b)
	*k = key(b)
	return err
}

// write the records of the copy with changes to the cluster, if there are any. s.mu is held.
func (s *Store) write(ctx context.Context, ops []store.Op) error {
	page, err := s.List(ctx, store.ListOptions{})
	if err != nil {
		return err
	}
	all := make([]record, 0, len(page.Records)+len(ops))
	for _, r := range page.Records {
		all = append(all, record{key(r.Key), r.Value, r.Expires})
	}
	changed := false
	for _, op := range ops {
		i, there := slices.BinarySearchFunc(all, op.Key, func(r record, at string) int { return strings.Compare(string(r.Key), at) })
		switch {
		case op.Kind == store.Delete && there:
			all = slices.Delete(all, i, i+1)
		case op.Kind == store.Delete:
			continue
		case there:
			all[i] = s.put(op)
		default:
			all = slices.Insert(all, i, s.put(op))
		}
		changed = true
	}
	if !changed {
		return nil
	}
	data, err := encode(all)
	if err != nil {
		return err
	}
	obj := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.cfg.Key.Namespace, Name: s.cfg.Key.Name, ResourceVersion: s.version},
		Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{dataKey: data},
	}
	send := s.cfg.Client.Update
	if s.version == "" {
		send = s.cfg.Client.Create
	}
	made, err := send(ctx, kind.Secret, obj)
	if err == nil {
		s.version = made.GetResourceVersion()
	}
	return err
}

func (s *Store) put(op store.Op) record {
	r := record{Key: key(op.Key), Value: op.Value}
	if op.TTL > 0 {
		r.Expires = s.cfg.Clock.Now().Add(op.TTL).Round(0).UTC()
	}
	return r
}

// refresh makes the copy what the cluster has. s.mu is held.
func (s *Store) refresh(ctx context.Context) error {
	obj, err := s.cfg.Client.Get(ctx, kind.Secret, s.cfg.Key)
	version, all := "", []record(nil)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("secret %s: %w", s.cfg.Key, err)
	default:
		if all, err = decode(obj.(*corev1.Secret).Data[dataKey]); err != nil {
			return fmt.Errorf("secret %s, key %s: %w: restore it from a backup", s.cfg.Key, dataKey, err)
		}
		version = obj.GetResourceVersion()
	}
	ops, err := s.difference(ctx, all)
	if err != nil {
		return err
	}
	if _, err := s.Store.Commit(ctx, store.Txn{Ops: ops}); err != nil {
		return err
	}
	s.version = version
	return nil
}

// difference is what has to be done to the copy.
func (s *Store) difference(ctx context.Context, all []record) ([]store.Op, error) {
	page, err := s.List(ctx, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	have := map[string]store.Record{}
	for _, r := range page.Records {
		have[r.Key] = r
	}
	var ops []store.Op
	now := s.cfg.Clock.Now()
	for _, r := range all {
		was, ok := have[string(r.Key)]
		if !r.Expires.IsZero() && !r.Expires.After(now) {
			continue // it is gone, wherever it still is
		}
		delete(have, string(r.Key))
		if ok && bytes.Equal(was.Value, r.Value) && sameEnd(was.Expires, r.Expires) {
			continue
		}
		op := store.Op{Kind: store.Put, Key: string(r.Key), Value: r.Value}
		if !r.Expires.IsZero() {
			op.TTL = r.Expires.Sub(now)
		}
		ops = append(ops, op)
	}
	for gone := range have {
		ops = append(ops, store.Op{Kind: store.Delete, Key: gone})
	}
	slices.SortFunc(ops, func(a, b store.Op) int { return strings.Compare(a.Key, b.Key) })
	return ops, nil
}

// sameEnd: the store in memory rounds up to whole seconds.
func sameEnd(a, b time.Time) bool {
	return a.IsZero() == b.IsZero() && a.Sub(b).Abs() <= time.Second
}

func encode(all []record) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := json.NewEncoder(z).Encode(all); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if out.Len() > MaxBytes {
		return nil, fmt.Errorf("%d records have %d bytes: at most %d are possible", len(all), out.Len(), MaxBytes)
	}
	return out.Bytes(), nil
}

var errDamaged = errors.New("the records are damaged")

func decode(data []byte) ([]record, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxPlain+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if len(plain) > maxPlain {
		return nil, fmt.Errorf("%w: more than %d bytes", errDamaged, maxPlain)
	}
	var all []record
	if err := json.Unmarshal(plain, &all); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	seen := map[key]bool{}
	for _, r := range all {
		if r.Key == "" || seen[r.Key] {
			return nil, fmt.Errorf("%w: the key %.80q is empty or there twice", errDamaged, r.Key)
		}
		seen[r.Key] = true
	}
	return all, nil
}

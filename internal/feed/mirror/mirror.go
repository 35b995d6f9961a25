package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// maxOps of a transaction. More changes that arrive at once are several.
	maxOps = 256
	// soon is within which a watch that ended is to begin again.
	soon = 5 * time.Second
	// pageSize is how many keys are compared with a list at once.
	pageSize = 1000
)

var (
	retryList  = backoff.Policy{First: 200 * time.Millisecond, Last: 30 * time.Second, Jitter: 0.2}
	retryWrite = backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}
)

// Config of a Mirror. Client, Objects and Store are required.
type Config struct {
	// Client of the cluster. It lists and watches the kinds of Objects.
	Client  resource.Client
	Objects *Objects
	// Store gets the copy. Nobody else writes below Prefix. It is the caller's, who closes it after Run has ended.
	Store  store.Store
	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: discard
}

// Mirror keeps a copy up. Make it with New. Safe for concurrent use.
type Mirror struct {
	cfg Config
	log *slog.Logger

	mu sync.Mutex
	// apart are the kinds that are not followed now, since when and why; waiting those that were not listed yet.
	apart   map[string]apart
	waiting map[string]bool
	// unwritten is why the store takes nothing, since when; nil: it does.
	unwritten      error
	unwrittenSince time.Time
	// listed is closed when all kinds were, or could not be.
	listed chan struct{}
}

type apart struct {
	since time.Time
	err   error
}

// New makes a Mirror; Run follows the cluster.
func New(cfg Config) *Mirror {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Mirror{cfg: cfg, log: cfg.Logger, apart: map[string]apart{}, waiting: map[string]bool{}, listed: make(chan struct{})}
	for _, d := range cfg.Objects.Kinds() {
		m.waiting[d.GroupResource().String()] = true
	}
	return m
}

// Listed is closed when every kind was read once, or was refused.
func (m *Mirror) Listed() <-chan struct{} { return m.listed }

// Problems are why kinds are not followed now, by their names as in "services" or "meshes.mesh.proxima.dev". A watch that ends, as each does
// from time to time, and begins again soon is none. A store that takes nothing is the problem of all, under the name "".
func (m *Mirror) Problems() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]error{}
	for name, a := range m.apart {
		if refused(a.err) || m.cfg.Now().Sub(a.since) > soon {
			out[name] = a.err
		}
	}
	if m.unwritten != nil {
		out[""] = m.unwritten
	}
	return out
}

// Complete is a time up to which the copy has all that the cluster had: now, or since when a kind is not followed.
func (m *Mirror) Complete() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.cfg.Now()
	if m.unwritten != nil && m.unwrittenSince.Before(out) {
		out = m.unwrittenSince
	}
	for _, a := range m.apart {
		if a.since.Before(out) {
			out = a.since
		}
	}
	return out
}

// Run follows the cluster until ctx ends, and returns nil then. It must be called once.
func (m *Mirror) Run(ctx context.Context) error {
	events, stop := reflector.Start(ctx, reflector.Config{
		Client: m.cfg.Client, Backoff: retryList, Logger: m.log, Level: slog.LevelDebug,
	}, m.cfg.Objects.Kinds())
	defer stop()
	for {
		select {
		case e := <-events:
			if err := m.take(ctx, e, events); err != nil {
				return nil //nolint:nilerr // ctx has ended
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// take an event, and those that are there already. Errors: that of ctx.
func (m *Mirror) take(ctx context.Context, e reflector.Event, more <-chan reflector.Event) error {
	w := writer{m: m, keys: map[string]bool{}}
	for {
		if err := m.handle(ctx, &w, e); err != nil {
			return err
		}
		if len(w.ops) >= maxOps {
			break
		}
		select {
		case e = <-more:
			continue
		default:
		}
		break
	}
	return w.flush(ctx)
}

func (m *Mirror) handle(ctx context.Context, w *writer, e reflector.Event) error {
	switch e.Type {
	case reflector.Replace:
		if err := m.replace(ctx, w, e); err != nil {
			return err
		}
		m.follows(e.Kind)
	case reflector.Set:
		return m.set(ctx, w, e.Kind, e.Object())
	case reflector.Delete:
		return w.delete(ctx, m.cfg.Objects.Prefix(e.Kind, resource.KeyOf(e.Object())))
	case reflector.Disconnected:
		m.lost(e.Kind, e.Err)
	case reflector.Resumed:
		m.follows(e.Kind)
	case reflector.Bookmark:
	}
	return nil
}

func (m *Mirror) follows(kind *resource.Descriptor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := kind.GroupResource().String()
	if a, ok := m.apart[name]; ok && refused(a.err) {
		m.log.Info("a kind is in the change feed again", "resource", name)
	}
	delete(m.apart, name)
	m.read(name)
}

func (m *Mirror) lost(kind *resource.Descriptor, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := kind.GroupResource().String()
	a, before := m.apart[name]
	if !before {
		a.since = m.cfg.Now()
	}
	if refused(err) && !refused(a.err) {
		m.log.Warn("a kind cannot be read, and its changes are not in the change feed", "resource", name, "error", err)
	}
	a.err = err
	m.apart[name] = a
	m.read(name)
}

// read notes that a kind was listed, or not, once. m.mu is held.
func (m *Mirror) read(name string) {
	if delete(m.waiting, name); len(m.waiting) == 0 && m.listed != nil {
		select {
		case <-m.listed:
		default:
			close(m.listed)
		}
	}
}

// refused reports whether an error stays until somebody does something about it.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err)
}

// replace what the copy has of a kind by a list: it writes what differs.
func (m *Mirror) replace(ctx context.Context, w *writer, e reflector.Event) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	objects := make(map[string]resource.Object, len(e.Objects))
	order := make([]string, 0, len(e.Objects))
	for _, obj := range e.Objects {
		key := m.cfg.Objects.Prefix(e.Kind, resource.KeyOf(obj))
		objects[key] = obj
		order = append(order, key)
	}
	opts := store.ListOptions{Prefix: m.cfg.Objects.Prefix(e.Kind, resource.Key{}), Limit: pageSize}
	for more := true; more; {
		page, err := m.list(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Records {
			rec := &page.Records[i]
			opts.From = rec.Key + "\x00"
			obj, there := objects[rec.Key]
			if !there {
				if err := w.delete(ctx, rec.Key); err != nil {
					return err
				}
				continue
			}
			if m.same(ctx, rec, obj) {
				delete(objects, rec.Key)
			}
		}
		more, opts.At = page.More, page.Revision
	}
	for _, key := range order {
		if obj, changed := objects[key]; changed {
			if err := w.put(ctx, key, obj); err != nil {
				return err
			}
		}
	}
	return w.flush(ctx)
}

// list reads the copy until that works. Errors: that of ctx.
func (m *Mirror) list(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	retry := backoff.Backoff{Policy: retryWrite}
	for {
		page, err := m.cfg.Store.List(ctx, opts)
		if errors.Is(err, store.ErrCompacted) {
			opts.At = 0 // nobody else writes here
			continue
		}
		if m.wrote(err); err == nil {
			return page, nil
		}
		if backoff.Sleep(ctx, retry.Next()); ctx.Err() != nil {
			return page, ctx.Err()
		}
	}
}

func (m *Mirror) set(ctx context.Context, w *writer, kind *resource.Descriptor, obj resource.Object) error {
	key := m.cfg.Objects.Prefix(kind, resource.KeyOf(obj))
	if _, ok := obj.(*corev1.Node); ok {
		if err := w.flush(ctx); err != nil {
			return err
		}
		if rec, ok, _, err := m.cfg.Store.Get(ctx, key, 0); err == nil && ok && m.same(ctx, &rec, obj) {
			return nil
		}
	}
	return w.put(ctx, key, obj)
}

// same reports whether the copy has an object already, but for what tells only that somebody is alive.
func (m *Mirror) same(ctx context.Context, rec *store.Record, obj resource.Object) bool {
	var has metav1.PartialObjectMetadata
	if json.Unmarshal(rec.Value, &has) != nil || has.UID != obj.GetUID() {
		return false
	}
	if has.ResourceVersion == obj.GetResourceVersion() {
		return true
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return false
	}
	before, err := m.cfg.Objects.Decode(ctx, rec.Key, rec.Value, rec.Modified)
	if err != nil {
		return false
	}
	a, errA := json.Marshal(withoutHeartbeat(before.(*corev1.Node)))
	b, errB := json.Marshal(withoutHeartbeat(node))
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// withoutHeartbeat is a copy of a Node without what a kubelet writes to tell that it runs.
func withoutHeartbeat(n *corev1.Node) *corev1.Node {
	n = n.DeepCopy()
	n.TypeMeta, n.ResourceVersion, n.ManagedFields = metav1.TypeMeta{}, "", nil
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	return n
}

// wrote notes whether the store takes what it is given.
func (m *Mirror) wrote(err error) {
	m.mu.Lock()
	before := m.unwritten
	if m.unwritten = err; before == nil {
		m.unwrittenSince = m.cfg.Now()
	}
	m.mu.Unlock()
	switch {
	case err != nil && before == nil:
		m.log.Warn("changes of the cluster are not written to the change feed; it is tried again, and what changes meanwhile is one change", "error", err)
	case err == nil && before != nil:
		m.log.Info("changes of the cluster are written to the change feed again")
	}
}

// writer collects the changes of a transaction.
type writer struct {
	m    *Mirror
	ops  []store.Op
	keys map[string]bool
}

func (w *writer) put(ctx context.Context, key string, obj resource.Object) error {
	value, err := w.m.cfg.Objects.Encode(ctx, key, obj)
	if err != nil { // of an object that the client has decoded
		w.m.log.Error("an object of the cluster is left out of the change feed", "key", key, "error", err)
		return nil
	}
	return w.add(ctx, store.Op{Kind: store.Put, Key: key, Value: value})
}

func (w *writer) delete(ctx context.Context, key string) error {
	return w.add(ctx, store.Op{Kind: store.Delete, Key: key})
}

func (w *writer) add(ctx context.Context, op store.Op) error {
	if w.keys[op.Key] || len(w.ops) == maxOps {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	w.keys[op.Key] = true
	w.ops = append(w.ops, op)
	return nil
}

// flush commits until that works. Errors: that of ctx.
func (w *writer) flush(ctx context.Context) error {
	retry := backoff.Backoff{Policy: retryWrite}
	for len(w.ops) > 0 {
		_, err := w.m.cfg.Store.Commit(ctx, store.Txn{Ops: w.ops})
		var invalid *store.InvalidError
		if errors.As(err, &invalid) { // of one object, which must not stop the others
			w.m.log.Error("changes of the cluster are left out of the change feed", "error", err)
			err = w.singly(ctx)
		}
		if w.m.wrote(err); err == nil {
			break
		}
		if backoff.Sleep(ctx, retry.Next()); ctx.Err() != nil {
			return fmt.Errorf("changes of the cluster were not written: %w", ctx.Err())
		}
	}
	w.ops = w.ops[:0]
	clear(w.keys)
	return nil
}

// singly commits one change after the other, but for those that the store refuses for ever.
func (w *writer) singly(ctx context.Context) error {
	for i := range w.ops {
		_, err := w.m.cfg.Store.Commit(ctx, store.Txn{Ops: w.ops[i : i+1]})
		var invalid *store.InvalidError
		if err != nil && !errors.As(err, &invalid) {
			return err
		}
	}
	return nil
}

// Texts of problems, by names of kinds, for status.
func (m *Mirror) Texts() map[string]string {
	out := map[string]string{}
	for name, err := range m.Problems() {
		if name == "" {
			name = "all"
		}
		out[name] = err.Error()
	}
	return out
}

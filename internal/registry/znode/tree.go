package znode

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Config of a Tree. Store, Owner, MayEnd, Held and Standing are required.
type Config struct {
	Store store.Store
	// Quota in bytes: of paths, data, and 256 for each node and each session that is remembered. Instances of a control plane that
	// write at the same time may exceed it by what they write.
	Quota int64
	// Owner is the name of this instance of the control plane.
	Owner string
	// MayEnd reports whether this instance ends the sessions of an owner that nobody holds.
	MayEnd func(owner string) bool
	// Held reports whether this instance holds a session: its client is connected, or may come back in time.
	Held func(id int64) bool
	// Grace in which a session that nobody holds may be adopted.
	Grace time.Duration
	// Standing reports whether a path is a parent that is always there. It must not call the Tree.
	Standing func(path string) bool
	// Changed, if it is not nil, is called after changes. It must not block, nor call the Tree.
	Changed func(Usage)
	Logger  *slog.Logger
}

// Usage of the quota.
type Usage struct {
	Nodes int   `json:"nodes"`
	Bytes int64 `json:"bytes"`
	Quota int64 `json:"quota"`
}

// Tree has the nodes, as far as the store has told of them. Make it with New; Run follows the store. Safe for concurrent
// use.
type Tree struct {
	config Config
	log    *slog.Logger
	ready  chan struct{}

	mu        sync.Mutex
	nodes     map[string]*Node
	children  map[string]map[string]struct{} // paths, by parent
	sessions  map[int64]*Session
	usage     Usage
	revision  store.Revision
	changed   chan struct{} // closed when revision has risen
	watcher   store.Watcher
	followers map[*Follower]struct{}
}

// New makes a Tree, which knows nothing before Run.
func New(c Config) *Tree {
	return &Tree{
		config: c, log: c.Logger, ready: make(chan struct{}), nodes: map[string]*Node{}, children: map[string]map[string]struct{}{},
		sessions: map[int64]*Session{}, usage: Usage{Quota: c.Quota}, changed: make(chan struct{}), followers: map[*Follower]struct{}{},
	}
}

// Ready is closed when the nodes are known.
func (t *Tree) Ready() <-chan struct{} { return t.ready }

// Revision up to which all changes are known.
func (t *Tree) Revision() store.Revision {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.revision
}

var retryPolicy = backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}

// Run follows the store, and ends sessions that nobody holds, until ctx ends. It must be called once.
func (t *Tree) Run(ctx context.Context) {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { t.sweep(ctx) })
	backoff.Retry(ctx, retryPolicy, t.follow, func(err error, delay time.Duration) {
		t.log.Warn("the nodes of ZooKeeper in the store are not followed; it is tried again", "error", err, "retry_in", delay)
	})
}

// pageSize of a list of records.
const pageSize = 500

// follow the store until the watch ends.
func (t *Tree) follow(ctx context.Context) error {
	var events []store.Event
	opts := store.ListOptions{Prefix: Prefix, Limit: pageSize}
	for {
		page, err := t.config.Store.List(ctx, opts)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			events = append(events, store.Event{Kind: store.Put, Record: rec})
		}
		opts.At = page.Revision
		if !page.More {
			break
		}
		opts.From = page.Records[len(page.Records)-1].Key + "\x00"
	}
	w, err := t.config.Store.Watch(ctx, Prefix, opts.At)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := t.apply(t.withGone(events), opts.At, w); err != nil {
		return err
	}
	select {
	case <-t.ready:
	default:
		close(t.ready)
	}
	for batch := range w.Batches() {
		if err := t.apply(batch.Events, batch.Revision, w); err != nil {
			return err
		}
	}
	return errors.Join(errors.New("the watch ended"), w.Err())
}

// withGone adds the deletions of what is known, and not among all that there is.
func (t *Tree) withGone(all []store.Event) []store.Event {
	here := make(map[string]struct{}, len(all))
	for _, e := range all {
		here[e.Record.Key] = struct{}{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []store.Event
	gone := func(key string) {
		if _, ok := here[key]; !ok {
			out = append(out, store.Event{Kind: store.Delete, Record: store.Record{Key: key}})
		}
	}
	for path := range t.nodes {
		gone(nodePrefix + path)
	}
	for id := range t.sessions {
		gone(sessionKey(id))
	}
	return append(out, all...)
}

// apply events, after which all up to a revision is known.
func (t *Tree) apply(events []store.Event, at store.Revision, w store.Watcher) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watcher = w
	var changes []Change
	for _, e := range events {
		key := e.Record.Key
		switch path, isNode := strings.CutPrefix(key, nodePrefix); {
		case isNode && e.Kind == store.Delete:
			changes = append(changes, Change{Path: path})
			t.put(path, nil)
		case isNode:
			n, err := decode(path, e.Record.Value, e.Record.Modified)
			if err != nil {
				return errors.Join(errors.New("node "+path), err)
			}
			if have := t.nodes[path]; have != nil && have.modified == n.modified {
				continue // it was listed again
			}
			changes = append(changes, Change{Path: path, Node: n})
			t.put(path, n)
		default:
			if err := t.putSession(key, e); err != nil {
				return err
			}
		}
	}
	t.revision = max(t.revision, at)
	close(t.changed)
	t.changed = make(chan struct{})
	for f := range t.followers {
		f.pending = append(f.pending, changes...)
		select {
		case f.ready <- struct{}{}:
		default:
		}
	}
	if len(events) > 0 && t.config.Changed != nil {
		t.config.Changed(t.usage)
	}
	return nil
}

// put a node in the tables; nil: there is none. It is called with the lock.
func (t *Tree) put(path string, n *Node) {
	up := Parent(path)
	if before := t.nodes[path]; before != nil {
		t.usage.Bytes -= before.size()
		if !before.counter {
			t.usage.Nodes--
		}
		delete(t.nodes, path)
		if s := t.sessions[before.Session]; s != nil {
			delete(s.nodes, path)
			t.forget(before.Session)
		}
		if delete(t.children[up], path); len(t.children[up]) == 0 {
			delete(t.children, up)
		}
	}
	if n == nil {
		return
	}
	t.nodes[path] = n
	t.usage.Bytes += n.size()
	if n.counter {
		return
	}
	t.usage.Nodes++
	if n.Session != 0 {
		t.session(n.Session).nodes[path] = struct{}{}
	}
	if t.children[up] == nil {
		t.children[up] = map[string]struct{}{}
	}
	t.children[up][path] = struct{}{}
}

// session in the tables. One of which only nodes are known has no revision, and no owner.
func (t *Tree) session(id int64) *Session {
	s := t.sessions[id]
	if s == nil {
		s = &Session{nodes: map[string]struct{}{}}
		t.sessions[id] = s
		t.usage.Bytes += overhead
	}
	return s
}

func (t *Tree) putSession(key string, e store.Event) error {
	if e.Kind == store.Delete {
		e.Record.Value = []byte("{}")
	}
	id, next, err := decodeSession(key, e.Record.Value, e.Record.Modified)
	if err != nil {
		return err
	}
	s := t.session(id)
	s.Owner, s.Proof, s.Ended, s.modified = next.Owner, next.Proof, next.Ended, next.modified
	if e.Kind == store.Delete {
		s.modified = 0
		t.forget(id)
	}
	return nil
}

// forget a session that has neither a record nor nodes.
func (t *Tree) forget(id int64) {
	if s := t.sessions[id]; s.modified == 0 && len(s.nodes) == 0 {
		delete(t.sessions, id)
		t.usage.Bytes -= overhead
	}
}

// Live reports whether a session is known here that has not ended.
func (t *Tree) Live(id int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sessions[id]
	return s != nil && s.modified != 0 && !s.Ended
}

// wait until all changes up to a revision are known.
func (t *Tree) wait(ctx context.Context, at store.Revision) error {
	for {
		t.mu.Lock()
		have, changed := t.revision, t.changed
		if have < at && t.watcher != nil {
			t.watcher.Progress()
		}
		t.mu.Unlock()
		if have >= at {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sync blocks until all is known that was written before the call, at any instance of the control plane.
func (t *Tree) Sync(ctx context.Context) error {
	at, err := t.config.Store.Revision(ctx)
	if err != nil {
		return err
	}
	return t.wait(ctx, at)
}

// Usage of the quota.
func (t *Tree) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.usage
}

// Change of a node; nil: it is deleted.
type Change struct {
	Path string
	Node *Node
}

// Follower is told of changes, each once and in order. It has to take them.
type Follower struct {
	tree    *Tree
	ready   chan struct{}
	pending []Change // of tree.mu
}

// Follow the nodes: at first all that there are. It is to be called when they are known (Ready).
func (t *Tree) Follow() *Follower {
	f := &Follower{tree: t, ready: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, n := range t.nodes {
		f.pending = append(f.pending, Change{path, n})
	}
	t.followers[f] = struct{}{}
	f.ready <- struct{}{}
	return f
}

// Ready has a value when there is something to take.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Take the changes since the last call, and the revision up to which they are all.
func (f *Follower) Take() ([]Change, store.Revision) {
	f.tree.mu.Lock()
	defer f.tree.mu.Unlock()
	out := f.pending
	f.pending = nil
	return out, f.tree.revision
}

// Close ends it.
func (f *Follower) Close() {
	f.tree.mu.Lock()
	defer f.tree.mu.Unlock()
	delete(f.tree.followers, f)
}

// IsCounter reports whether a node only counts the children of a parent that is always there.
func (n *Node) IsCounter() bool { return n.counter }

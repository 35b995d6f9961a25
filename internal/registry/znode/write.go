package znode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Why a change is refused.
var (
	ErrNoNode     = errors.New("no node")
	ErrExists     = errors.New("the node exists")
	ErrNotEmpty   = errors.New("the node has children")
	ErrVersion    = errors.New("the node has another version")
	ErrNoAuth     = errors.New("the ACL of the node does not allow it")
	ErrEphemeral  = errors.New("an ephemeral node has no children")
	ErrQuota      = errors.New("the quota of nodes is used up")
	ErrTooMany    = errors.New("the store takes fewer changes at once")
	ErrEnded      = errors.New("the session has ended")
	ErrMoved      = errors.New("the session is at another instance of the control plane")
	errNotOrphan  = errors.New("the session is held")
	errNotUnused  = errors.New("the container is used")
	errNothingNew = errors.New("nothing changes")
)

// Kind of an Op.
type Kind uint8

// The kinds.
const (
	Create Kind = iota + 1
	Delete
	Set
	Check
	SetACL
)

// AnyVersion of a node that is to be changed.
const AnyVersion = -1

// Op is one of the changes that are made together.
type Op struct {
	Kind Kind
	Path string
	Data []byte
	// Version that the node has, but for Create; of its ACL for SetACL.
	Version int32
	// ACL of Create and SetACL; none: everybody may do all. By are the identities of the client.
	ACL []ACL
	By  []Identity
	// Sequential nodes get a number behind their path.
	Sequential bool
	Container  bool
	// Session of an ephemeral node, and its Proof; 0: it is persistent.
	Session int64
	Proof   string
}

// draft of a transaction, on what the tables have. It is used under the lock of the Tree.
type draft struct {
	t     *Tree
	now   int64
	nodes map[string]*drafted
	order []*drafted
	// sessions that are written, and those that only have to stay as they are.
	sessions map[int64]*Session
	dropped  map[int64]bool
	guards   map[int64]store.Revision
	born     map[string]int // children that are made, less those that are deleted, by parent
}

// drafted is a node that is looked at, or changed.
type drafted struct {
	before, now *Node // nil: there is none
	path        string
	written     bool
}

// at a path.
func (d *draft) at(path string) *drafted {
	if n := d.nodes[path]; n != nil {
		return n
	}
	before := d.t.nodes[path]
	n := &drafted{before: before, now: before, path: path}
	d.nodes[path] = n
	d.order = append(d.order, n)
	return n
}

// edit returns the node of a draft for changes.
func (n *drafted) edit() *Node {
	if !n.written {
		next := *n.now
		n.now, n.written = &next, true
	}
	return n.now
}

// exists reports whether there is a node that clients see.
func (n *drafted) exists() bool { return n.now != nil && !n.now.counter }

func (d *draft) op(o *Op) (path string, err error) {
	if o.Kind == Create {
		return d.create(o)
	}
	if o.Kind == Delete { // its parent's ACL comes before whether there is a node
		if up := d.at(Parent(o.Path)); up.now != nil && !Allowed(up.now.ACL, PermDelete, o.By) {
			return "", ErrNoAuth
		}
	}
	n := d.at(o.Path)
	if !n.exists() {
		return "", ErrNoNode
	}
	perm, version := PermRead, n.now.Version
	switch o.Kind {
	case Set:
		perm = PermWrite
	case SetACL:
		perm, version = PermAdmin, n.now.ACLVersion
	}
	switch {
	case o.Kind != Delete && !Allowed(n.now.ACL, perm, o.By):
		return "", ErrNoAuth
	case o.Version != AnyVersion && o.Version != version:
		return "", fmt.Errorf("%w: %d is not %d", ErrVersion, version, o.Version)
	}
	switch o.Kind {
	case Delete:
		if len(d.t.children[o.Path])+d.born[o.Path] > 0 {
			return "", ErrNotEmpty
		}
		d.remove(n)
	case Set:
		next := n.edit()
		next.Data, next.Version, next.Written, next.WrittenAt = o.Data, next.Version+1, d.now, 0
	case SetACL:
		next := n.edit()
		next.ACL, next.ACLVersion = o.ACL, next.ACLVersion+1
	}
	return o.Path, nil
}

func (d *draft) create(o *Op) (string, error) {
	up := d.at(Parent(o.Path))
	if !up.exists() && !d.t.config.Standing(up.path) {
		return "", ErrNoNode
	}
	if up.now != nil && !Allowed(up.now.ACL, PermCreate, o.By) {
		return "", ErrNoAuth
	}
	if up.now == nil {
		up.now, up.written = &Node{Path: up.path, counter: true}, true
	}
	path := o.Path
	if o.Sequential {
		path = fmt.Sprintf("%s%010d", path, up.now.Creations)
	}
	n := d.at(path)
	switch {
	case n.exists() || d.t.config.Standing(path):
		return "", ErrExists
	case up.now.Session != 0:
		return "", ErrEphemeral
	}
	if o.Session != 0 {
		if err := d.claim(o.Session, o.Proof); err != nil {
			return "", err
		}
	}
	parent := up.edit()
	parent.Creations++
	parent.ChildrenAt = 0
	d.born[up.path]++
	creations := int32(0)
	if n.now != nil { // it counted the children of a namespace that is gone
		creations = n.now.Creations
	}
	n.now = &Node{Path: path, Data: o.Data, Creations: creations, Container: o.Container, Session: o.Session, ACL: o.ACL, Created: d.now, Written: d.now}
	n.written = true
	return path, nil
}

// remove a node without children.
func (d *draft) remove(n *drafted) {
	up := d.at(Parent(n.path))
	if up.now != nil {
		up.edit().ChildrenAt = 0
	}
	d.born[up.path]--
	n.now, n.written = nil, true
}

// claim a session for an ephemeral node: it must neither have ended nor be elsewhere.
func (d *draft) claim(id int64, proof string) error {
	s := d.t.sessions[id]
	switch {
	case d.sessions[id] != nil:
	case s == nil || s.modified == 0:
		d.sessions[id] = &Session{Owner: d.t.config.Owner, Proof: proof}
		d.guards[id] = 0
	case s.Ended || s.Proof != proof:
		return ErrEnded
	case s.Owner != d.t.config.Owner:
		return ErrMoved
	default:
		d.guards[id] = s.modified
	}
	return nil
}

// keepEnded is how long a session that has expired is remembered: its client may be cut off as long, and must not go on
// with it then.
const keepEnded = 24 * time.Hour

// txn of the draft.
func (d *draft) txn() (store.Txn, error) {
	var out store.Txn
	grows := int64(0)
	keys := 0
	for id, modified := range d.guards {
		keys++
		out.Conditions = append(out.Conditions, store.Condition{Key: sessionKey(id), Modified: modified})
		if modified == 0 {
			grows += overhead
		}
		if d.dropped[id] {
			out.Ops = append(out.Ops, store.Op{Kind: store.Delete, Key: sessionKey(id)})
		} else if s := d.sessions[id]; s != nil {
			value, _ := json.Marshal(s) // texts and a bool
			op := store.Op{Kind: store.Put, Key: sessionKey(id), Value: value}
			if s.Ended {
				op.TTL = keepEnded
			}
			out.Ops = append(out.Ops, op)
		}
	}
	for _, n := range d.order {
		key := nodePrefix + n.path
		keys++
		guard := store.Condition{Key: key}
		if n.before != nil {
			guard.Modified = n.before.modified
		}
		out.Conditions = append(out.Conditions, guard)
		switch {
		case !n.written:
			continue
		case n.now != nil:
			out.Ops = append(out.Ops, store.Op{Kind: store.Put, Key: key, Value: n.now.encode()})
			grows += n.now.size()
		case n.before != nil:
			out.Ops = append(out.Ops, store.Op{Kind: store.Delete, Key: key})
		}
		if n.before != nil {
			grows -= n.before.size()
		}
	}
	if limit := d.t.config.Store.Properties().MaxKeys; limit > 0 && keys > limit {
		return out, fmt.Errorf("%w: %d keys are more than %d", ErrTooMany, keys, limit)
	}
	if used := d.t.usage.Bytes; grows > 0 && used+grows > d.t.config.Quota {
		return out, fmt.Errorf("%w: %d bytes of %d, and %d more", ErrQuota, used, d.t.config.Quota, grows)
	}
	return out, nil
}

// commit what plan drafts, again while others change the same nodes, and return when the tables show it.
func (t *Tree) commit(ctx context.Context, plan func(*draft) error) (store.Revision, error) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: time.Millisecond, Last: 100 * time.Millisecond, Jitter: 0.5}}
	for fresh := false; ; {
		d := &draft{
			t: t, now: time.Now().UnixMilli(), nodes: map[string]*drafted{}, sessions: map[int64]*Session{}, guards: map[int64]store.Revision{},
			dropped: map[int64]bool{}, born: map[string]int{},
		}
		t.mu.Lock()
		err := plan(d)
		var txn store.Txn
		if err == nil {
			txn, err = d.txn()
		}
		t.mu.Unlock()
		if err != nil {
			// Another instance of the control plane may have made true what the change needs.
			if fresh {
				return 0, err
			}
			if err := t.Sync(ctx); err != nil {
				return 0, err
			}
			fresh = true
			continue
		}
		at, err := t.config.Store.Commit(ctx, txn)
		switch {
		case err == nil:
			return at, t.wait(ctx, at)
		case !errors.As(err, new(*store.ConflictError)):
			return 0, err
		}
		if err := t.Sync(ctx); err != nil {
			return 0, err
		}
		fresh = true
		if backoff.Sleep(ctx, retry.Next()); ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

// Apply changes, all or none, and return when they are durable and known here, with the revision of them and the paths of what is
// created. Errors are of this package, where failed is the change that is refused; or of the store or ctx, where it is not known
// whether the changes are made.
func (t *Tree) Apply(ctx context.Context, ops []Op) (paths []string, at store.Revision, failed int, err error) {
	at, err = t.commit(ctx, func(d *draft) error {
		paths, failed = make([]string, len(ops)), 0
		for i := range ops {
			if paths[i], err = d.op(&ops[i]); err != nil {
				failed = i
				return err
			}
		}
		return nil
	})
	return paths, at, failed, err
}

// Adopt a session for this instance of the control plane, whose client has come here. What was made known of it before the
// call counts. It does nothing if the session has no nodes here. Errors: ErrEnded, and those of the store or ctx.
func (t *Tree) Adopt(ctx context.Context, id int64, proof string) (known bool, err error) {
	if err := t.Sync(ctx); err != nil {
		return false, err
	}
	_, err = t.commit(ctx, func(d *draft) error {
		s := t.sessions[id]
		switch {
		case s == nil || s.modified == 0:
			known = false
			return errNothingNew
		case s.Ended || s.Proof != proof:
			return ErrEnded
		}
		if known = true; s.Owner == t.config.Owner {
			return errNothingNew
		}
		d.guards[id], d.sessions[id] = s.modified, &Session{Owner: t.config.Owner, Proof: s.Proof}
		return nil
	})
	if errors.Is(err, errNothingNew) {
		err = nil
	}
	return known, err
}

// endAtOnce is how many nodes are deleted in one transaction when a session ends.
const endAtOnce = 20

// End a session of this instance, with its nodes. One that has expired is remembered, so that its client hears of it wherever it
// comes back; one that its client has closed is not. Errors: ErrMoved if it is another instance's by now, and those of the store or
// ctx, after which it may be called again.
func (t *Tree) End(ctx context.Context, id int64, expired bool) error {
	return t.end(ctx, id, expired, func(s *Session) error {
		if s.Owner != t.config.Owner {
			return ErrMoved
		}
		return nil
	})
}

func (t *Tree) end(ctx context.Context, id int64, expired bool, may func(*Session) error) error {
	for {
		left := 0
		_, err := t.commit(ctx, func(d *draft) error {
			left = 0
			s := t.sessions[id]
			if s == nil {
				return errNothingNew
			}
			if !s.Ended && s.modified != 0 {
				if err := may(s); err != nil {
					return err
				}
				d.sessions[id] = &Session{Owner: s.Owner, Proof: s.Proof, Ended: true}
			} else if len(s.nodes) == 0 {
				return errNothingNew
			}
			d.guards[id] = s.modified
			paths := make([]string, 0, len(s.nodes))
			for path := range s.nodes {
				paths = append(paths, path)
			}
			slices.Sort(paths)
			some := paths[:min(len(paths), endAtOnce)]
			left = len(paths) - len(some)
			d.dropped[id] = !expired && left == 0
			for _, path := range some {
				d.remove(d.at(path))
			}
			return nil
		})
		switch {
		case errors.Is(err, errNothingNew):
			return nil
		case err != nil:
			return err
		case left == 0:
			return nil
		}
	}
}

const (
	// sweepEvery is how often sessions are looked for that nobody holds, and containersEvery, as with ZooKeeper
	// (znode.container.checkIntervalMs), containers that are empty.
	sweepEvery      = time.Second
	containersEvery = time.Minute
)

// sweep until ctx ends.
func (t *Tree) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	orphans := map[int64]time.Time{}
	next := time.Now().Add(containersEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, id := range t.orphans(orphans, now) {
				if err := t.end(ctx, id, true, t.orphaned(id)); err != nil && !errors.Is(err, errNotOrphan) && ctx.Err() == nil {
					t.log.Warn("the nodes of a session of ZooKeeper whose client did not come back are not deleted yet; it is tried again", "error", err)
				}
			}
			if now.After(next) {
				next = now.Add(containersEvery)
				t.sweepContainers(ctx)
			}
		}
	}
}

// orphaned returns an error for a session that is no orphan.
func (t *Tree) orphaned(id int64) func(*Session) error {
	return func(s *Session) error {
		if t.config.Held(id) || !t.config.MayEnd(s.Owner) {
			return errNotOrphan
		}
		return nil
	}
}

// orphans are sessions to end: those that nobody has held for the grace, and what is left of ended ones. since has when they
// were found.
func (t *Tree) orphans(since map[int64]time.Time, now time.Time) []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range since {
		if t.sessions[id] == nil {
			delete(since, id)
		}
	}
	var out []int64
	for id, s := range t.sessions {
		if s.Ended || s.modified == 0 {
			if delete(since, id); len(s.nodes) > 0 {
				out = append(out, id)
			}
			continue
		}
		if t.orphaned(id)(s) != nil {
			delete(since, id)
			continue
		}
		if at, ok := since[id]; !ok {
			since[id] = now
		} else if now.Sub(at) >= t.config.Grace {
			out = append(out, id)
		}
	}
	return out
}

// sweepContainers deletes those that had children, and have none.
func (t *Tree) sweepContainers(ctx context.Context) {
	t.mu.Lock()
	var paths []string
	for path, n := range t.nodes {
		if t.unused(n) {
			paths = append(paths, path)
		}
	}
	t.mu.Unlock()
	for _, path := range paths {
		_, err := t.commit(ctx, func(d *draft) error {
			n := d.at(path)
			if n.now == nil || !t.unused(n.now) {
				return errNotUnused
			}
			d.remove(n)
			return nil
		})
		if err != nil && !errors.Is(err, errNotUnused) && ctx.Err() == nil {
			t.log.Warn("an empty container of ZooKeeper is not deleted yet; it is tried again", "path", path, "error", err)
		}
	}
}

// unused reports whether a node is a container to delete, under the lock.
func (t *Tree) unused(n *Node) bool {
	return n.Container && n.Creations > 0 && len(t.children[n.Path]) == 0
}

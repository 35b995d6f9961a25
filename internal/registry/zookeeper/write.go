package zookeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// writeWithin is how long a write may take until the tree shows it.
	writeWithin = 10 * time.Second
	anyVersion  = -1
)

// Modes of nodes that are created (org.apache.zookeeper.CreateMode).
const (
	modePersistent           = 0
	modeEphemeral            = 1
	modePersistentSequential = 2
	modeEphemeralSequential  = 3
	modeContainer            = 4
)

// change that a client asks for.
type change struct {
	op      opcode
	path    string
	data    []byte
	mode    int32
	version int32
	acl     []znode.ACL
}

// creates reports whether it is a creation.
func (ch *change) creates() bool {
	return ch.op == opCreate || ch.op == opCreate2 || ch.op == opCreateContainer
}

// sequential reports whether a node is to get a number behind its path.
func (ch *change) sequential() bool {
	return ch.creates() && (ch.mode == modePersistentSequential || ch.mode == modeEphemeralSequential)
}

// name is the path, for a node that gets a number one of those that it can have.
func (ch *change) name() string {
	if ch.sequential() {
		return ch.path + "0000000000"
	}
	return ch.path
}

// pathLocks order the writes of a path.
type pathLocks struct {
	once  sync.Once
	seed  maphash.Seed
	locks [256]sync.Mutex
}

func (l *pathLocks) lock(path string) func() {
	l.once.Do(func() { l.seed = maphash.MakeSeed() })
	m := &l.locks[maphash.String(l.seed, path)%uint64(len(l.locks))]
	m.Lock()
	return m.Unlock
}

// change of one operation.
func (d *decoder) change(op opcode) change {
	ch := change{op: op, path: d.string(), version: anyVersion}
	switch op {
	case opCreate, opCreate2, opCreateContainer:
		ch.data = d.buffer()
		ch.acl = d.acl()
		ch.mode = d.int()
	case opSetData:
		ch.data = d.buffer()
		ch.version = d.int()
	case opSetACL:
		ch.acl = d.acl()
		ch.version = d.int()
	case opDelete, opCheck:
		ch.version = d.int()
	}
	return ch
}

// writes answers requests that change nodes.
func (c *conn) writes(ctx context.Context, xid int32, op opcode, d *decoder) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	if op == opMulti {
		return c.multi(ctx, xid, d)
	}
	ch := d.change(op)
	if d.err != nil {
		return failed(codeMarshalling, "%v", d.err)
	}
	if op == opSetACL && (c.server.extra == nil || c.server.target(ch.path).place != ofExtra) {
		// Who may change an instance or an entry is decided by who registered it.
		if err := checkPath(ch.path); err != nil {
			return failed(codeBadArguments, "%v", err)
		}
		return c.read(xid, d, func(e *encoder) error {
			n := c.tree.find(ch.path)
			if n == nil {
				return failed(codeNoNode, "no node")
			}
			e.stat(n.statOf())
			return nil
		})
	}
	if _, err := c.apply(ctx, &ch); err != nil {
		return err
	}
	return c.read(xid, d, func(e *encoder) error { c.written(e, &ch); return nil })
}

// written is the answer to a change.
func (c *conn) written(e *encoder, ch *change) {
	switch ch.op {
	case opCreate:
		e.string(ch.path)
		return
	case opCreate2, opCreateContainer:
		e.string(ch.path)
	case opSetData, opSetACL:
	default:
		return
	}
	var s stat
	if n := c.tree.find(ch.path); n != nil {
		s = *n.statOf()
	}
	e.stat(&s)
}

// multi applies all changes, or none: what is done is undone where one fails. Others may see the changes one
// after the other.
func (c *conn) multi(ctx context.Context, xid int32, d *decoder) error {
	var list []change
	for {
		op, done, _ := opcode(d.int()), d.bool(), d.int()
		if done || d.err != nil {
			break
		}
		if !slices.Contains([]opcode{opCreate, opCreate2, opCreateContainer, opDelete, opSetData, opCheck}, op) || len(list) == maxMulti {
			return failed(codeBadArguments, "not a list of changes")
		}
		list = append(list, d.change(op))
	}
	if d.err != nil {
		return failed(codeMarshalling, "%v", d.err)
	}
	at, err := c.applyMulti(ctx, list)
	if err != nil {
		result := c.server.codeOf(err)
		return c.read(xid, d, func(e *encoder) error {
			for i := range list {
				one := codeOK
				if i == at {
					one = result
				} else if i > at {
					one = codeRuntime
				}
				e.result(opError, one)
				e.int(int32(one))
			}
			e.endOfResults()
			return nil
		})
	}
	return c.read(xid, d, func(e *encoder) error {
		for i := range list {
			e.result(list[i].op, codeOK)
			c.written(e, &list[i])
		}
		e.endOfResults()
		return nil
	})
}

// applyMulti applies changes, or none. at is the one that failed. Those outside of what is mapped are one transaction, the
// last one, so they need not be undone.
func (c *conn) applyMulti(ctx context.Context, list []change) (at int, err error) {
	var extras []*change
	var index []int
	undo := func() {}
	for i := range list {
		if c.server.target(list[i].name()).place == ofExtra {
			if err := checkPath(list[i].name()); err != nil {
				return i, failed(codeBadArguments, "%v", err)
			}
			extras, index = append(extras, &list[i]), append(index, i)
		}
	}
	if len(extras) < len(list) {
		if at, undo, err = c.applyAll(ctx, list, index); err != nil {
			return at, err
		}
	}
	if len(extras) > 0 {
		if at, err = c.writeExtra(ctx, extras); err != nil {
			undo()
			return index[at], err
		}
	}
	return 0, nil
}

// applyAll changes, or none, but for those that are left out. at is the one that failed; undo makes all undone.
func (c *conn) applyAll(ctx context.Context, list []change, without []int) (at int, undo func(), err error) {
	var done []func(context.Context)
	undo = func() {
		// It may have failed for want of time.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeWithin)
		defer cancel()
		for _, undo := range slices.Backward(done) {
			undo(ctx)
		}
	}
	for i := range list {
		if slices.Contains(without, i) {
			continue
		}
		one, err := c.apply(ctx, &list[i])
		if err != nil {
			undo()
			return i, nil, err
		}
		if one != nil {
			done = append(done, one)
		}
	}
	return 0, undo, nil
}

// apply a change, and return when the tree shows it. undo, if it is not nil, makes it undone.
func (c *conn) apply(ctx context.Context, ch *change) (undo func(context.Context), err error) {
	if err := checkPath(ch.name()); err != nil {
		return nil, failed(codeBadArguments, "%v", err)
	}
	t := c.server.target(ch.name())
	if t.place == ofExtra && (ch.op != opCheck || c.server.extra != nil) {
		_, err := c.writeExtra(ctx, []*change{ch})
		return nil, err
	}
	defer c.server.paths.lock(ch.path)()
	switch ch.op {
	case opCheck:
		_, err := c.existing(ch)
		return nil, err
	case opDelete:
		return c.delete(ctx, &t, ch)
	case opSetData:
		return c.setData(ctx, &t, ch)
	}
	return c.create(ctx, &t, ch)
}

// notMapped refuses a path, and says so once for a connection.
func (c *conn) notMapped(path string) error {
	if !c.warned {
		c.warned = true
		hint := "served are /services/APP/ID and what Dubbo has below /dubbo"
		if c.server.target(path).place == ofExtra {
			hint += "; with --zookeeper-extra-quota clients have nodes of their own elsewhere, for locks, elections and the like"
		}
		c.server.log.Warn("a client of ZooKeeper writes a path that is not mapped: refused", "client", c.from, "path", path, "hint", hint)
	}
	return failed(codeNoAuth, "path %.200q is not mapped", path)
}

// lookup what a node has now.
func (c *conn) lookup(path string) (node, bool) {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	n := c.tree.find(path)
	if n == nil {
		return node{}, false
	}
	out := *n
	out.stat = *n.statOf()
	return out, true
}

// existing node that a change is for, of the version that it names.
func (c *conn) existing(ch *change) (node, error) {
	n, ok := c.lookup(ch.path)
	switch {
	case !ok:
		return n, failed(codeNoNode, "no node")
	case ch.version != anyVersion && ch.version != n.stat.version:
		return n, failed(codeBadVersion, "version %d is not %d", n.stat.version, ch.version)
	}
	return n, nil
}

func (c *conn) create(ctx context.Context, t *target, ch *change) (func(context.Context), error) {
	switch {
	case t.place == outside:
		return nil, c.notMapped(ch.path)
	case t.place == standing, t.place == passage, t.parentOnly(ch.path, ch.data):
		return nil, failed(codeNodeExists, "parents exist by themselves")
	case ch.mode != modePersistent && ch.mode != modeEphemeral && ch.mode != modeContainer:
		return nil, failed(codeBadArguments, "a node of mode %d is none of an instance", ch.mode)
	}
	if n, ok := c.lookup(ch.path); ok && n.own && !c.isCopy(t, n.key) && !c.writesCopy(t, ch) {
		return nil, failed(codeNodeExists, "the node exists")
	}
	if err := c.server.core.CheckNamespace(t.namespace); err != nil {
		return nil, failed(codeNoAuth, "%v", err)
	}
	var err error
	if t.place == ofInstance {
		err = c.register(ctx, t, ch)
	} else {
		err = c.publish(ctx, t, ch)
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		_, _ = c.delete(ctx, t, &change{op: opDelete, path: ch.path, version: anyVersion})
	}, nil
}

// isCopy reports whether a node is a copy of an instance of another registry. A client whose instance it is creates it
// as if it were not there.
func (c *conn) isCopy(t *target, key resource.Key) bool {
	in, ok := c.server.core.Index.Get(t.service, key)
	return ok && in.MirroredFrom() != ""
}

// writesCopy reports whether a client creates a copy: where the instance itself is, the core keeps it back, and refuses the
// node.
func (c *conn) writesCopy(t *target, ch *change) bool {
	if t.place != ofInstance {
		return false
	}
	in, err := c.server.instance(t, ch.data, c.from)
	return err == nil && in.MirroredFrom() != ""
}

// withdraw the copy that this client has registered at a path; had is false if there is none. It may be kept back, so
// there need be no node, and the node need not be this client's.
func (c *conn) withdraw(ctx context.Context, t *target) (had bool, err error) {
	if t.place != ofInstance {
		return false, nil
	}
	c.session.mu.Lock()
	held := c.session.held
	c.session.mu.Unlock()
	if held == nil {
		return false, nil
	}
	return held.Withdraw(ctx, (&registry.Instance{Service: t.service, ID: t.id}).Key())
}

// register an instance.
func (c *conn) register(ctx context.Context, t *target, ch *change) error {
	in, err := c.server.instance(t, ch.data, c.from)
	if err != nil {
		return failed(codeBadArguments, "%v", err)
	}
	d := detail{Data: orEmpty(ch.data)}
	if in.Ephemeral = ch.mode == modeEphemeral; in.Ephemeral {
		d.Session, d.Proof = c.session.id, c.session.proof()
	}
	in.Detail, _ = json.Marshal(d) // bytes and numbers
	if in.Ephemeral {
		hold, err := c.session.hold()
		if err != nil {
			return err
		}
		if err := hold.Register(ctx, in, c.user); err != nil {
			return err
		}
	} else if err := c.server.core.Registrar.Put(ctx, in, c.user); err != nil {
		return err
	}
	return c.tree.await(ctx, func() bool {
		n := c.tree.nodes[ch.path]
		return n != nil && n.own && n.stat.owner == d.Session
	})
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// publish an entry of the configuration.
func (c *conn) publish(ctx context.Context, t *target, ch *change) error {
	if ch.mode == modeEphemeral {
		return failed(codeBadArguments, "%s is configuration, which is persistent", ch.path)
	}
	err := c.server.core.Configs.Put(ctx, c.user, t.entry, func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
		if exists {
			return failed(codeNodeExists, "the node exists")
		}
		return c.fill(spec, t, ch)
	})
	if err != nil {
		return err
	}
	return c.await(ctx, t, ch.path)
}

// fill an entry with what a client wrote.
func (c *conn) fill(spec *meshv1alpha1.RegistryConfigSpec, t *target, ch *change) error {
	if n := len(ch.data); n > meshv1alpha1.MaxRegistryContent {
		return failed(codeBadArguments, "%d bytes; at most %d are stored", n, meshv1alpha1.MaxRegistryContent)
	}
	next := spec.DeepCopy()
	next.Content = registry.MergeConfig(t.entry, spec.Content, string(ch.data))
	if t.rule {
		next.Description = t.id
	}
	if !slices.Contains(c.server.pathsOf(t.entry, &meshv1alpha1.RegistryConfig{Spec: *next}), ch.path) {
		return c.notMapped(ch.path)
	}
	*spec = *next
	return nil
}

// await the tree to show what the configuration has of an entry.
func (c *conn) await(ctx context.Context, t *target, path string) error {
	o := c.server.core.Configs.Get(t.entry)
	if o == nil {
		return nil // it was deleted meanwhile
	}
	return c.tree.await(ctx, func() bool {
		n := c.tree.nodes[path]
		return n != nil && n.generation >= o.Generation
	})
}

func (c *conn) delete(ctx context.Context, t *target, ch *change) (func(context.Context), error) {
	if had, err := c.withdraw(ctx, t); had {
		return nil, err
	}
	n, err := c.existing(ch)
	switch {
	case err != nil && t.place == outside:
		return nil, c.notMapped(ch.path)
	case err != nil:
		return nil, err
	case ch.path == "/":
		return nil, failed(codeBadArguments, "the root stays")
	case len(n.children) > 0:
		return nil, failed(codeNotEmpty, "the node has children")
	case n.source == nil:
		return nil, nil
	case !n.own:
		return nil, failed(codeNoAuth, "the instance came by another protocol: its client removes it")
	}
	kept := false // instances need it still: its client is told that it is deleted, and the node stays
	if t.place == ofInstance {
		err = c.server.core.Registrar.Remove(ctx, n.key, c.user)
	} else {
		kept, err = c.server.core.Withdraw(ctx, c.user, t.entry)
	}
	if err != nil || kept {
		return nil, err
	}
	err = c.tree.await(ctx, func() bool {
		now := c.tree.nodes[ch.path]
		return now == nil || !now.own || now.stat.czxid != n.stat.czxid || now.source != n.source
	})
	again := change{op: opCreate, path: ch.path, data: n.data, mode: modePersistent}
	if n.stat.owner == c.session.id {
		again.mode = modeEphemeral
	}
	return func(ctx context.Context) { _, _ = c.create(ctx, t, &again) }, err
}

func (c *conn) setData(ctx context.Context, t *target, ch *change) (func(context.Context), error) {
	n, err := c.existing(ch)
	switch {
	case err != nil:
		return nil, err
	case n.source == nil:
		return nil, c.notMapped(ch.path)
	case !n.own:
		return nil, failed(codeNoAuth, "the instance came by another protocol: its client changes it")
	}
	if t.place == ofInstance {
		err = c.rewrite(ctx, t, ch, &n)
	} else {
		err = c.republish(ctx, t, ch, &n)
	}
	back := change{op: opSetData, path: ch.path, data: n.data, version: anyVersion}
	return func(ctx context.Context) { _, _ = c.setData(ctx, t, &back) }, err
}

// republish an entry.
func (c *conn) republish(ctx context.Context, t *target, ch *change, n *node) error {
	err := c.server.core.Configs.Put(ctx, c.user, t.entry, func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
		switch {
		case !exists:
			return failed(codeNoNode, "no node")
		case ch.version != anyVersion && spec.Content != string(n.data):
			return failed(codeBadVersion, "the node was changed meanwhile")
		}
		return c.fill(spec, t, ch)
	})
	if err != nil {
		return err
	}
	return c.await(ctx, t, ch.path)
}

// rewrite an instance. What identifies it is its path.
func (c *conn) rewrite(ctx context.Context, t *target, ch *change, n *node) error {
	want, err := c.server.instance(t, ch.data, c.from)
	if err != nil {
		return failed(codeBadArguments, "%v", err)
	}
	var next detail
	err = c.server.core.Registrar.Edit(ctx, n.key, c.user, func(in *registry.Instance) error {
		d, ok := detailOf(in)
		switch {
		case !ok:
			return failed(codeNoNode, "no node")
		case ch.version != anyVersion && d.Version != ch.version:
			return failed(codeBadVersion, "version %d is not %d", d.Version, ch.version)
		case in.Address != want.Address:
			return failed(codeBadArguments, "the address of an instance stays: delete the node, and create it again")
		}
		d.Data, d.Version, d.Created = orEmpty(ch.data), d.Version+1, n.stat.czxid
		next = d
		in.Metadata, in.Port, in.SecurePort = want.Metadata, want.Port, want.SecurePort
		in.Enabled, in.Weight = want.Enabled, want.Weight
		in.Detail, err = json.Marshal(d)
		return err
	})
	if err != nil {
		return err
	}
	return c.tree.await(ctx, func() bool {
		now := c.tree.nodes[ch.path]
		return now == nil || now.stat.version > next.Version || now.stat.version == next.Version && bytes.Equal(now.data, next.Data)
	})
}

package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

// failure is an error with the code that the client is told.
type failure struct {
	code code
	text string
}

func (f *failure) Error() string { return f.text }

func failed(c code, format string, args ...any) error {
	return &failure{c, fmt.Sprintf(format, args...)}
}

// codeOf an error.
func (s *Server) codeOf(err error) code {
	var f *failure
	for _, e := range extraCodes {
		if errors.Is(err, e.err) {
			return e.code
		}
	}
	switch {
	case err == nil:
		return codeOK
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, registry.ErrEnded):
		return codeSessionExpired
	case errors.Is(err, registry.ErrNotFound):
		return codeNoNode
	case errors.Is(err, registry.ErrOriginal):
		return codeNodeExists
	case errors.Is(err, registry.ErrConflict):
		return codeBadVersion
	case errors.Is(err, context.DeadlineExceeded):
		return codeOperationTimeout // it may be done yet
	case errors.As(err, new(*registry.ForbiddenError)), errors.Is(err, registry.ErrUnauthenticated):
		return codeNoAuth
	}
	s.log.Warn("a request of a client of ZooKeeper failed", "error", err)
	return codeSystemError
}

// reply to a request. The body is there if there is no error. It is called under the lock of the tree where
// it tells of nodes.
func (c *conn) reply(xid, zxid int64, result code, body []byte) {
	out := encoder{b: make([]byte, 4, 20+len(body))}
	out.int(int32(xid))
	out.long(max(zxid, c.floor))
	out.int(int32(result))
	if result == codeOK {
		out.b = append(out.b, body...)
	}
	c.send(framed(out.b))
}

// handle a request. It returns false when the connection is to end.
func (c *conn) handle(ctx context.Context, in []byte) bool {
	d := decoder{b: in}
	xid, op := d.int(), opcode(d.int())
	if d.err != nil {
		return false
	}
	c.server.requests.Add(1)
	stay := true
	var err error
	switch op {
	case opPing:
		c.session.adopt(ctx, c.tree)
		c.answer(xid, nil)
	case opClose:
		c.closeSession(ctx)
		c.answer(xid, nil)
		stay = false
	case opAuth:
		if err = c.auth(ctx, &d); err != nil {
			stay = false
		}
		c.answer(xid, err)
	default:
		if err = c.allowed(ctx); err == nil {
			err = c.request(ctx, xid, op, &d)
		}
		if err != nil {
			c.answer(xid, err)
		}
	}
	c.server.core.Meters.Request(registry.ZooKeeper, err)
	return stay
}

// answer without a body.
func (c *conn) answer(xid int32, err error) {
	result := c.server.codeOf(err)
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	c.reply(int64(xid), c.tree.zxid, result, nil)
}

// allowed reports whether the client may ask anything.
func (c *conn) allowed(ctx context.Context) error {
	if time.Since(c.checked) > userFor {
		c.admit(ctx)
	}
	return c.refused
}

// auth takes credentials. The password of scheme digest is a token, whatever the user's name; where clients need none, it may be any
// one. Both are an identity for ACLs.
func (c *conn) auth(ctx context.Context, d *decoder) error {
	d.int() // type
	scheme, credentials := d.string(), d.buffer()
	if d.err != nil {
		return failed(codeMarshalling, "not a packet of credentials")
	}
	switch scheme {
	case "digest":
	case "ip", "world":
		return nil
	default:
		return failed(codeAuthFailed, "scheme %.40q of credentials is not served: use digest, with a token of the control plane as the password", scheme)
	}
	identity := digestOf(string(credentials))
	_, c.token, _ = strings.Cut(string(credentials), ":")
	if c.admit(ctx); c.refused != nil {
		if _, err := c.server.core.Gate.Admit(ctx, c.from, ""); err == nil && c.server.extra != nil {
			c.token = ""
			c.admit(ctx)
		}
	}
	if c.refused != nil {
		c.server.log.Warn("a client of ZooKeeper is refused", "client", c.from, "error", c.refused)
		return failed(codeAuthFailed, "%v", c.refused)
	}
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if !slices.Contains(c.identities, identity) && len(c.identities) < maxIdentities {
		c.identities = append(c.identities, identity)
	}
	return nil
}

// maxIdentities of a connection.
const maxIdentities = 64

// closeSession ends the session, and returns when its instances are gone.
func (c *conn) closeSession(ctx context.Context) {
	// The connection is to outlive its session, for the answer.
	c.session.mu.Lock()
	c.session.conn = nil
	c.session.mu.Unlock()
	c.session.close()
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	_ = c.tree.await(ctx, func() bool { return len(c.tree.sessions[c.session.id]) == 0 })
}

// request of a client. It replies itself, unless it returns an error.
func (c *conn) request(ctx context.Context, xid int32, op opcode, d *decoder) error {
	switch op {
	case opCreate, opCreate2, opCreateContainer, opDelete, opSetData, opSetACL, opCheck, opMulti:
		return c.writes(ctx, xid, op, d)
	case opSync:
		path := d.string()
		if err := c.tree.sync(ctx); err != nil {
			return err
		}
		return c.read(xid, d, func(e *encoder) error { e.string(path); return nil })
	case opMultiRead:
		return c.multiRead(xid, d)
	case opWhoAmI:
		return c.read(xid, d, func(e *encoder) error { c.whoAmI(e); return nil })
	case opSetWatches, opSetWatches2:
		return c.setWatches(xid, op, d)
	case opGetEphemerals:
		prefix := d.string()
		return c.read(xid, d, func(e *encoder) error {
			var out []string
			for path := range c.tree.sessions[c.session.id] {
				if strings.HasPrefix(path, prefix) {
					out = append(out, path)
				}
			}
			slices.Sort(out)
			e.strings(out)
			return nil
		})
	}
	path := d.string()
	if d.err == nil {
		if err := checkPath(path); err != nil {
			return failed(codeBadArguments, "%v", err)
		}
	}
	switch op {
	case opExists:
		watched := d.bool()
		return c.read(xid, d, func(e *encoder) error { return c.exists(e, path, watched) })
	case opGetData, opGetChildren, opGetChildren2:
		watched := d.bool()
		return c.read(xid, d, func(e *encoder) error { return c.get(e, op, path, watched) })
	case opGetACL:
		return c.read(xid, d, func(e *encoder) error {
			n := c.tree.find(path)
			if n == nil {
				return failed(codeNoNode, "no node")
			}
			if err := c.getACL(e, n); err != nil {
				return err
			}
			e.stat(n.statOf())
			return nil
		})
	case opCountChildren:
		return c.read(xid, d, func(e *encoder) error {
			n := c.tree.find(path)
			if n == nil {
				return failed(codeNoNode, "no node")
			}
			if err := c.allows(n, znode.PermRead); err != nil {
				return err
			}
			e.int(int32(c.tree.below(n)))
			return nil
		})
	case opAddWatch:
		mode := d.int()
		return c.read(xid, d, func(e *encoder) error {
			kind, ok := map[int32]watch{0: watchPersistent, 1: watchRecursive}[mode]
			if !ok {
				return failed(codeBadArguments, "watches have no mode %d", mode)
			}
			e.int(int32(codeOK))
			return c.watch(path, kind)
		})
	case opRemoveWatches, opCheckWatches:
		kind := d.int()
		return c.read(xid, d, func(*encoder) error { return c.removeWatches(path, kind, op == opRemoveWatches) })
	}
	return failed(codeUnimplemented, "request %d is not served", op)
}

// read answers a request under the lock of the tree: what it tells is of one moment, and behind the events
// that led to it.
func (c *conn) read(xid int32, d *decoder, f func(*encoder) error) error {
	if d.err != nil {
		return failed(codeMarshalling, "%v", d.err)
	}
	var e encoder
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if err := f(&e); err != nil {
		c.reply(int64(xid), c.tree.zxid, c.server.codeOf(err), nil)
		return nil
	}
	c.reply(int64(xid), c.tree.zxid, codeOK, e.b)
	return nil
}

func (c *conn) exists(e *encoder, path string, watched bool) error {
	n := c.tree.find(path)
	if n != nil {
		if err := c.allows(n, znode.PermRead); err != nil {
			return err
		}
	}
	if watched {
		if err := c.watch(path, watchData); err != nil {
			return err
		}
	}
	if n == nil {
		return failed(codeNoNode, "no node")
	}
	e.stat(n.statOf())
	return nil
}

func (c *conn) get(e *encoder, op opcode, path string, watched bool) error {
	if t := c.server.target(path); op == opGetData && (t.place == ofEntry && !c.user.MayReadEntry(t.entry) || t.place == ofExtra && !c.user.MayRead(t.namespace)) {
		return &registry.ForbiddenError{User: c.user.String(), What: "read the configuration of namespace " + t.namespace}
	}
	n := c.tree.find(path)
	if n == nil {
		return failed(codeNoNode, "no node")
	}
	if err := c.allows(n, znode.PermRead); err != nil {
		return err
	}
	kind := watchChildren
	if op == opGetData {
		kind = watchData
	}
	if watched {
		if err := c.watch(path, kind); err != nil {
			return err
		}
	}
	if op == opGetData {
		e.buffer(n.data)
		if n.data == nil {
			e.b = e.b[:0]
			e.buffer([]byte{}) // a parent has no data
		}
	} else {
		e.strings(n.names())
	}
	if op != opGetChildren {
		e.stat(n.statOf())
	}
	return nil
}

// names of the children, in order.
func (n *node) names() []string {
	out := make([]string, 0, len(n.children))
	for name := range n.children {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// below is how many nodes are below one.
func (t *tree) below(n *node) int {
	sum := len(n.children)
	for name := range n.children {
		if child := t.nodes[strings.TrimSuffix(n.path, "/")+"/"+name]; child != nil {
			sum += t.below(child)
		}
	}
	return sum
}

// watch a path, under the lock of the tree.
func (c *conn) watch(path string, kind watch) error {
	if _, ok := c.watched[path]; !ok && len(c.watched) >= maxWatches {
		return failed(codeSystemError, "a connection may watch %d paths at most", maxWatches)
	}
	c.tree.setWatch(path, c, c.tree.watches[path][c]|kind)
	return nil
}

// removeWatches, or report that there are none. kind is that of the protocol: 1 children, 2 data, 3 any,
// 4 persistent, 5 recursive.
func (c *conn) removeWatches(path string, kind int32, remove bool) error {
	kinds, ok := map[int32]watch{
		1: watchChildren, 2: watchData, 3: watchChildren | watchData | watchPersistent | watchRecursive, 4: watchPersistent, 5: watchRecursive,
	}[kind]
	have := c.tree.watches[path][c]
	switch {
	case !ok:
		return failed(codeBadArguments, "there is no kind %d of watches", kind)
	case have&kinds == 0:
		return failed(codeNoWatcher, "there is no such watch")
	case remove:
		c.tree.setWatch(path, c, have&^kinds)
	}
	return nil
}

// setWatches again after the client has come back. What has happened since is told at once.
func (c *conn) setWatches(xid int32, op opcode, d *decoder) error {
	seen := d.long()
	data, exist, children := d.strings(), d.strings(), d.strings()
	var persistent, recursive []string
	if op == opSetWatches2 {
		persistent, recursive = d.strings(), d.strings()
	}
	for _, list := range [][]string{data, exist, children, persistent, recursive} {
		for _, path := range list {
			if err := checkPath(path); err != nil {
				return failed(codeBadArguments, "%v", err)
			}
		}
	}
	return c.read(xid, d, func(*encoder) error {
		t := c.tree
		var err error
		set := func(path string, kind watch) { err = errors.Join(err, c.watch(path, kind)) }
		for _, path := range data {
			switch n := t.find(path); {
			case n == nil:
				c.sendEvent(path, deleted)
			case n.stat.mzxid > seen:
				c.sendEvent(path, dataChanged)
			default:
				set(path, watchData)
			}
		}
		for _, path := range exist {
			if t.find(path) != nil {
				c.sendEvent(path, created)
			} else {
				set(path, watchData)
			}
		}
		for _, path := range children {
			switch n := t.find(path); {
			case n == nil:
				c.sendEvent(path, deleted)
			case n.stat.pzxid > seen:
				c.sendEvent(path, childrenChanged)
			default:
				set(path, watchChildren)
			}
		}
		for _, path := range persistent {
			set(path, watchPersistent)
		}
		for _, path := range recursive {
			set(path, watchRecursive)
		}
		return err
	})
}

func (c *conn) whoAmI(e *encoder) {
	e.int(2)
	e.string("ip")
	e.string(c.from.String())
	e.string("digest")
	e.string(c.user.String())
}

const (
	// maxMulti operations of one request, and maxAnswer bytes of the answer to several reads.
	maxMulti  = 1000
	maxAnswer = 4 << 20
)

// multiRead answers several reads of one moment.
func (c *conn) multiRead(xid int32, d *decoder) error {
	type one struct {
		op   opcode
		path string
	}
	var list []one
	for {
		op, done, _ := opcode(d.int()), d.bool(), d.int()
		if done || d.err != nil {
			break
		}
		path := d.string()
		d.bool()
		if op != opGetData && op != opGetChildren || checkPath(path) != nil || len(list) == maxMulti {
			return failed(codeBadArguments, "not a list of reads")
		}
		list = append(list, one{op, path})
	}
	return c.read(xid, d, func(e *encoder) error {
		for _, r := range list {
			var part encoder
			if err := c.get(&part, r.op, r.path, false); err != nil {
				e.result(opError, c.server.codeOf(err))
				e.int(int32(c.server.codeOf(err)))
				continue
			}
			e.result(r.op, codeOK)
			if e.b = append(e.b, part.b...); len(e.b) > maxAnswer {
				return failed(codeBadArguments, "the answer has more than %d bytes: read less at once", maxAnswer)
			}
		}
		e.endOfResults()
		return nil
	})
}

// result begins that of one operation of several.
func (e *encoder) result(op opcode, result code) {
	e.int(int32(op))
	e.bool(false)
	e.int(int32(result))
}

func (e *encoder) endOfResults() {
	e.int(-1)
	e.bool(true)
	e.int(-1)
}

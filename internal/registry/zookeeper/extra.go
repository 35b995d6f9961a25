package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
	"github.com/proxima-mesh/proxima/internal/store"
)

// extra is the source of nodes that are outside of what is mapped.
type extra struct{}

// WithNodes lets clients have nodes outside of what is mapped, in a store, up to a quota in bytes; WithStore is part of it. It is called
// before Serve, and returns s.
func (s *Server) WithNodes(st store.Store, quota int64) *Server {
	s.store = st
	s.extra = znode.New(znode.Config{
		Store: st, Quota: quota, Owner: s.core.Registrar.Owner(), MayEnd: s.core.Registrar.MayEnd, Grace: s.core.Registrar.Grace(), Held: s.holds,
		Standing: func(path string) bool { return s.target(path).place == standing },
		Changed: func(u znode.Usage) {
			s.core.Meters.Nodes(registry.ZooKeeper, registry.Nodes{Count: u.Nodes, Bytes: u.Bytes, Quota: u.Quota})
		},
		Logger: s.log,
	})
	s.core.Meters.Nodes(registry.ZooKeeper, registry.Nodes{Quota: quota})
	return s
}

// holds reports whether a session has, or may have, ephemeral nodes that are not mapped.
func (s *Server) holds(id int64) bool {
	s.mu.Lock()
	session := s.sessions[id]
	s.mu.Unlock()
	if session == nil {
		return false
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	return session.lasting && !session.over
}

// extraCodes are what clients are told of errors.
var extraCodes = []struct {
	err  error
	code code
}{
	{znode.ErrNoNode, codeNoNode}, {znode.ErrExists, codeNodeExists}, {znode.ErrNotEmpty, codeNotEmpty}, {znode.ErrVersion, codeBadVersion},
	{znode.ErrEphemeral, codeNoChildrenForEphemerals}, {znode.ErrNoAuth, codeNoAuth}, {znode.ErrQuota, codeQuotaExceeded}, {znode.ErrTooMany, codeBadArguments},
	{znode.ErrEnded, codeSessionExpired}, {znode.ErrMoved, codeSessionMoved},
}

// op of a change outside of what is mapped.
func (c *conn) op(ch *change) (o znode.Op, err error) {
	o = znode.Op{Path: ch.path, Data: orEmpty(ch.data), Version: ch.version, By: c.by()}
	if ch.op == opSetACL || ch.creates() {
		if o.ACL, err = c.fixedACL(ch.acl); err != nil {
			return o, err
		}
	}
	switch ch.op {
	case opDelete:
		o.Kind = znode.Delete
	case opSetData:
		o.Kind = znode.Set
	case opCheck:
		o.Kind = znode.Check
	case opSetACL:
		o.Kind = znode.SetACL
	default:
		o.Kind = znode.Create
		if ch.mode < modePersistent || ch.mode > modeContainer {
			return o, failed(codeUnimplemented, "nodes of mode %d are not served", ch.mode)
		}
		o.Sequential, o.Container = ch.sequential(), ch.mode == modeContainer
		if ch.mode == modeEphemeral || ch.mode == modeEphemeralSequential {
			o.Session, o.Proof = c.session.id, c.session.proof()
		}
	}
	return o, nil
}

// writeExtra applies changes outside of what is mapped, all or none, and returns when the tree shows them. at is the one that failed.
func (c *conn) writeExtra(ctx context.Context, list []*change) (at int, err error) {
	ops := make([]znode.Op, len(list))
	for i, ch := range list {
		t := c.server.target(ch.name())
		if c.server.extra == nil {
			return i, c.notMapped(ch.path)
		}
		if ch.op != opCheck && !c.user.May(t.namespace) {
			return i, &registry.ForbiddenError{User: c.user.String(), What: "write in namespace " + t.namespace}
		}
		if ops[i], err = c.op(ch); err != nil {
			return i, err
		}
		if ops[i].Session != 0 && !c.session.last() {
			return i, registry.ErrEnded
		}
	}
	paths, revision, at, err := c.server.extra.Apply(ctx, ops)
	if err != nil {
		if errors.Is(err, znode.ErrQuota) && !c.full {
			c.full = true
			u := c.server.extra.Usage()
			c.server.log.Warn("a client of ZooKeeper writes a node beyond the quota: refused", "client", c.from, "path", list[at].path,
				"nodes", u.Nodes, "bytes", u.Bytes, "quota", u.Quota, "hint", "raise --zookeeper-extra-quota, or delete nodes")
		}
		return at, err
	}
	for i, ch := range list {
		ch.path = paths[i]
	}
	return 0, c.tree.await(ctx, func() bool { return c.tree.extraAt >= revision })
}

// applyExtra shows nodes that are not mapped as they are in the store.
func (t *tree) applyExtra(list []znode.Change, at store.Revision) {
	if len(list) == 0 && at <= t.extraAt { // only this goroutine writes it
		return
	}
	if len(list) == 0 {
		t.mu.Lock()
		t.extraAt = at
		t.end()
		return
	}
	z := t.begin(registry.Position(at<<positionBits), time.Now())
	defer t.end()
	t.extraAt = at
	for _, ch := range list {
		switch n := ch.Node; {
		case n == nil:
			t.unset(ch.Path, extra{}, z)
		case !n.IsCounter():
			t.set(ch.Path, extra{}, content{
				data: n.Data, acl: n.ACL, aversion: n.ACLVersion, own: true, owner: n.Session, version: n.Version, czxid: int64(n.CreatedAt << positionBits),
				mzxid: int64(n.WrittenAt << positionBits), ctime: n.Created, mtime: n.Written,
			}, z)
		}
	}
	// Numbers are those of the store, at each instance of the control plane.
	for _, ch := range list {
		n, shown := ch.Node, t.nodes[ch.Path]
		if n == nil || shown == nil || shown.source != (extra{}) {
			continue
		}
		shown.stat.mzxid, shown.stat.mtime, shown.stat.pzxid = int64(n.WrittenAt<<positionBits), n.Written, int64(n.ChildrenAt<<positionBits)
		shown.stat.cversion = n.Creations*2 - int32(len(shown.children)) // creations and deletions (DataNode.copyStat)
	}
}

// last makes the session one with ephemeral nodes that are not mapped; it returns false if it has ended.
func (s *session) last() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lasting = !s.over
	return s.lasting
}

// adoptExtra goes on with the ephemeral nodes, that are not mapped, of a session that a client came with; known is false if it has
// none. That the session has ended is znode.ErrEnded.
func (s *Server) adoptExtra(ctx context.Context, session *session, id int64) (known bool, err error) {
	if s.extra == nil || session == nil || id == 0 {
		return false, nil
	}
	return s.extra.Adopt(ctx, session.id, session.proof())
}

// endExtra ends the session's ephemeral nodes that are not mapped.
func (s *Server) endExtra(ctx context.Context, id int64, expired bool) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 50 * time.Millisecond, Last: 5 * time.Second}}
	for ctx.Err() == nil {
		err := s.extra.End(ctx, id, expired)
		if err == nil || errors.Is(err, znode.ErrMoved) || ctx.Err() != nil {
			return
		}
		s.log.Warn("the nodes of a session that has ended are not deleted yet; it is tried again", "error", err)
		backoff.Sleep(ctx, retry.Next())
	}
}

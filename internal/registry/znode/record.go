package znode

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Keys in the store.
const (
	// Prefix of all that the package keeps.
	Prefix        = "/proxima/zookeeper/"
	nodePrefix    = Prefix + "nodes"     // and the path
	sessionPrefix = Prefix + "sessions/" // and the number, hexadecimal
)

// Node is one of the tree. It is not changed once it is made, nor are its Data.
type Node struct {
	Path string
	Data []byte
	// Version counts the changes of the data.
	Version int32
	// Creations of children that there ever were; the next one's sequence number.
	Creations int32
	// Container nodes are deleted some time after their last child.
	Container bool
	// Session of an ephemeral node; 0: it is persistent.
	Session int64
	// ACL says who may do what; none: everybody may do all. ACLVersion counts its changes.
	ACL        []ACL
	ACLVersion int32
	// Created and Written are times in milliseconds since 1970.
	Created, Written int64
	// CreatedAt, WrittenAt and ChildrenAt are the revisions of the creation, of the last change of the data, and of the
	// last creation or deletion of a child (of the node itself, if there was none).
	CreatedAt, WrittenAt, ChildrenAt store.Revision

	// counter: the parent is always there, and the record has its Creations alone.
	counter  bool
	modified store.Revision // of the record
}

// overhead is what a node counts for beside its path and data, in bytes.
const overhead = 256

// size that counts for the quota.
func (n *Node) size() int64 {
	sum := overhead + len(n.Path) + len(n.Data)
	for _, a := range n.ACL {
		sum += len(a.Scheme) + len(a.ID)
	}
	return int64(sum)
}

// Format of a record: the number of the format, flags, numbers, the ACL in formatACL, data. A revision that is the one of the write
// cannot be in what is written: it is left out, and is that of the record.
const (
	format = 1
	// formatACL is that of nodes with an ACL: control planes that do not know it must not show them to everybody.
	formatACL = 2

	flagContainer = 1 << (iota - 1)
	flagCounter
	flagCreatedHere
	flagWrittenHere
	flagChildrenHere
)

var errRecord = errors.New("not a record of a node")

// encode a node. Revisions of 0 are that of the write.
func (n *Node) encode() []byte {
	flags := byte(0)
	for _, f := range []struct {
		set bool
		bit byte
	}{
		{n.Container, flagContainer}, {n.counter, flagCounter}, {n.CreatedAt == 0, flagCreatedHere}, {n.WrittenAt == 0, flagWrittenHere},
		{n.ChildrenAt == 0, flagChildrenHere},
	} {
		if f.set {
			flags |= f.bit
		}
	}
	form := byte(format)
	if n.ACL != nil || n.ACLVersion != 0 {
		form = formatACL
	}
	out := append(make([]byte, 0, 64+len(n.Data)), form, flags)
	for _, v := range []int64{
		int64(n.Version), int64(n.Creations), n.Session, n.Created, n.Written, int64(n.CreatedAt), int64(n.WrittenAt), int64(n.ChildrenAt),
	} {
		out = binary.AppendVarint(out, v)
	}
	if form == formatACL {
		out = appendACL(binary.AppendVarint(out, int64(n.ACLVersion)), n.ACL)
	}
	return append(out, n.Data...)
}

// decode a record of a path, that was written at a revision. The node's data are memory of b.
func decode(path string, b []byte, at store.Revision) (*Node, error) {
	if len(b) < 2 || b[0] != format && b[0] != formatACL {
		return nil, fmt.Errorf("%w, of a format that this version knows", errRecord)
	}
	withACL, flags := b[0] == formatACL, b[1]
	b = b[2:]
	var v [8]int64
	for i := range v {
		n := 0
		if v[i], n = binary.Varint(b); n <= 0 {
			return nil, errRecord
		}
		b = b[n:]
	}
	var acl []ACL
	var aclVersion int64
	if withACL {
		size := 0
		if aclVersion, size = binary.Varint(b); size <= 0 {
			return nil, errRecord
		}
		var err error
		if acl, b, err = decodeACL(b[size:]); err != nil {
			return nil, err
		}
	}
	n := &Node{
		ACL: acl, ACLVersion: int32(aclVersion),
		Path: path, Data: b, Version: int32(v[0]), Creations: int32(v[1]), Container: flags&flagContainer != 0, Session: v[2], Created: v[3], Written: v[4],
		CreatedAt: store.Revision(v[5]), WrittenAt: store.Revision(v[6]), ChildrenAt: store.Revision(v[7]),
		counter: flags&flagCounter != 0, modified: at,
	}
	for _, r := range []struct {
		flag byte
		at   *store.Revision
	}{{flagCreatedHere, &n.CreatedAt}, {flagWrittenHere, &n.WrittenAt}, {flagChildrenHere, &n.ChildrenAt}} {
		if flags&r.flag != 0 {
			*r.at = at
		}
	}
	return n, nil
}

// Session that has, or had, ephemeral nodes.
type Session struct {
	// Owner is the instance of the control plane that its client is connected to.
	Owner string `json:"owner"`
	// Proof that the client shows to go on with it.
	Proof string `json:"proof"`
	// Ended sessions are remembered for a while, so that no instance goes on with them.
	Ended bool `json:"ended,omitempty"`

	modified store.Revision
	nodes    map[string]struct{}
}

func sessionKey(id int64) string { return sessionPrefix + fmt.Sprintf("%016x", uint64(id)) }

func decodeSession(key string, b []byte, at store.Revision) (id int64, s *Session, err error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, sessionPrefix), 16, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("key %s is none of a session", key)
	}
	s = &Session{modified: at}
	if err := json.Unmarshal(b, s); err != nil {
		return 0, nil, fmt.Errorf("session %s: %w", key, err)
	}
	return int64(n), s, nil
}

// Parent of a path.
func Parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

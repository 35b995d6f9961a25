package zookeeper

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

// Limits of a message.
const (
	// maxFrame is that of ZooKeeper's default (jute.maxbuffer), in bytes.
	maxFrame = 1 << 20
	// maxList is how many strings or entries a list may have.
	maxList = 100_000
)

var errJute = errors.New("not a message of ZooKeeper")

// decoder reads the serialisation Jute: big-endian numbers, and lengths of 4 bytes. After an error it
// returns zero values.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errJute
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) bool() bool {
	b := d.take(1)
	return len(b) == 1 && b[0] != 0
}

func (d *decoder) int() int32 {
	b := d.take(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

func (d *decoder) long() int64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

// buffer is a copy, or nil: a length of -1.
func (d *decoder) buffer() []byte {
	n := d.int()
	if d.err != nil || n == -1 {
		return nil
	}
	b := d.take(int(n))
	if d.err != nil {
		return nil
	}
	return append([]byte{}, b...)
}

func (d *decoder) string() string {
	n := d.int()
	if d.err != nil || n == -1 {
		return ""
	}
	b := d.take(int(n))
	if !utf8.Valid(b) {
		d.err = errJute
		return ""
	}
	return string(b)
}

// list calls f for each entry of a list.
func (d *decoder) list(f func()) {
	n := d.int()
	if n > maxList {
		d.err = errJute
	}
	for ; n > 0 && d.err == nil; n-- {
		f()
	}
}

func (d *decoder) strings() []string {
	var out []string
	d.list(func() { out = append(out, d.string()) })
	return out
}

func (d *decoder) acl() []znode.ACL {
	var out []znode.ACL
	d.list(func() {
		out = append(out, znode.ACL{Perms: d.int(), Identity: znode.Identity{Scheme: d.string(), ID: d.string()}})
	})
	return out
}

// encoder appends to b.
type encoder struct{ b []byte }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) int(v int32)  { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *encoder) long(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

// buffer of which nil is told from an empty one.
func (e *encoder) buffer(v []byte) {
	if v == nil {
		e.int(-1)
		return
	}
	e.int(int32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) string(v string) {
	e.int(int32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) strings(v []string) {
	e.int(int32(len(v)))
	for _, s := range v {
		e.string(s)
	}
}

// stat of a node, in the order of the protocol.
type stat struct {
	czxid, mzxid, ctime, mtime  int64
	version, cversion, aversion int32
	owner                       int64
	length, children            int32
	pzxid                       int64
}

func (e *encoder) stat(s *stat) {
	for _, v := range []int64{s.czxid, s.mzxid, s.ctime, s.mtime} {
		e.long(v)
	}
	for _, v := range []int32{s.version, s.cversion, s.aversion} {
		e.int(v)
	}
	e.long(s.owner)
	e.int(s.length)
	e.int(s.children)
	e.long(s.pzxid)
}

// openACL gives everybody all.
func (e *encoder) openACL() {
	e.acl([]znode.ACL{{Perms: znode.PermAll, Identity: znode.Identity{Scheme: znode.SchemeWorld, ID: znode.Anyone}}})
}

func (e *encoder) acl(list []znode.ACL) {
	e.int(int32(len(list)))
	for _, a := range list {
		e.int(a.Perms)
		e.string(a.Scheme)
		e.string(a.ID)
	}
}

// opcode of a request.
type opcode int32

const (
	opCreate          opcode = 1
	opDelete          opcode = 2
	opExists          opcode = 3
	opGetData         opcode = 4
	opSetData         opcode = 5
	opGetACL          opcode = 6
	opSetACL          opcode = 7
	opGetChildren     opcode = 8
	opSync            opcode = 9
	opPing            opcode = 11
	opGetChildren2    opcode = 12
	opCheck           opcode = 13
	opMulti           opcode = 14
	opCreate2         opcode = 15
	opCheckWatches    opcode = 17
	opRemoveWatches   opcode = 18
	opCreateContainer opcode = 19
	opMultiRead       opcode = 22
	opAuth            opcode = 100
	opSetWatches      opcode = 101
	opGetEphemerals   opcode = 103
	opCountChildren   opcode = 104
	opSetWatches2     opcode = 105
	opAddWatch        opcode = 106
	opWhoAmI          opcode = 107
	opError           opcode = -1
	opClose           opcode = -11
)

// xidEvent is that of messages that answer no request.
const xidEvent = -1

// code of an error (org.apache.zookeeper.KeeperException.Code).
type code int32

const (
	codeOK                      code = 0
	codeSystemError             code = -1
	codeRuntime                 code = -2 // of operations beside one that failed
	codeMarshalling             code = -5
	codeUnimplemented           code = -6
	codeOperationTimeout        code = -7
	codeBadArguments            code = -8
	codeNoNode                  code = -101
	codeNoAuth                  code = -102
	codeBadVersion              code = -103
	codeNoChildrenForEphemerals code = -108
	codeNodeExists              code = -110
	codeNotEmpty                code = -111
	codeSessionExpired          code = -112
	codeInvalidACL              code = -114
	codeAuthFailed              code = -115
	codeSessionMoved            code = -118
	codeNoWatcher               code = -121
	codeQuotaExceeded           code = -125
)

// event of a watch.
type event int32

const (
	created         event = 1
	deleted         event = 2
	dataChanged     event = 3
	childrenChanged event = 4
)

// stateConnected is what events say of the connection (KeeperState.SyncConnected).
const stateConnected = 3

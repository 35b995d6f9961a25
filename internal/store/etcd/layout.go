package etcd

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

// The keys below the prefix of a state (default "/proxima/"):
//
//	meta/epoch          identifies the history; its modification fences lost commits
//	meta/state          format, generation and base, as JSON
//	meta/compacted      the newest revision that Compact was called with
//	meta/owner          the instance that has the state exclusively, under a lease
//	meta/expiry         the instance that deletes expired keys, under a lease
//	data/GENERATION/KEY a record, with its envelope
const (
	metaFolder = "meta/"
	dataFolder = "data/"
	epochKey   = metaFolder + "epoch"
	stateKey   = metaFolder + "state"
	compactKey = metaFolder + "compacted"
	ownerKey   = metaFolder + "owner"
	expiryKey  = metaFolder + "expiry"

	// layoutFormat is the version of all this.
	layoutFormat = 1
)

// indexBits is the part of a revision that counts the changes inside of one
// transaction of etcd, which may have 128 (--max-txn-ops).
const indexBits = 10

// lastIndex stands for the end of a transaction.
const lastIndex = 1<<indexBits - 1

// numbering converts etcd's revisions. base is 0, except in a state that was
// restored from a backup of a store with higher revisions; it is a multiple of
// 1024.
type numbering struct{ base store.Revision }

// revision of a change: of the transaction at etcd's revision, counted from 0.
func (n numbering) revision(etcd int64, index int) store.Revision {
	return n.base + store.Revision(etcd)<<indexBits + store.Revision(index)
}

// end is the revision at which a transaction is complete.
func (n numbering) end(etcd int64) store.Revision { return n.revision(etcd, lastIndex) }

// split is the inverse of revision. etcd is negative for revisions from before
// the base.
func (n numbering) split(r store.Revision) (etcd int64, index int) {
	r -= n.base
	return int64(r >> indexBits), int(r & lastIndex)
}

// state is the content of meta/state.
type state struct {
	Format int `json:"format"`
	// Generation is the folder of the records. A restore fills the next one and
	// then switches to it in one transaction.
	Generation int `json:"generation"`
	// Base of the numbering.
	Base store.Revision `json:"base"`
}

func (s state) encode() string {
	text, _ := json.Marshal(s) // numbers cannot fail
	return string(text)
}

// meta is what the folder meta/ holds.
type meta struct {
	epoch    string
	epochMod int64 // etcd's revision of the last write of meta/epoch; 0: there is none
	state    state
	stateMod int64
	// compacted is a revision of ours; 0: none.
	compacted    store.Revision
	compactedMod int64
	owner        holder
	ownerMod     int64
	expiry       holder
}

// decodeMeta reads the keys of meta/; prefix is that of the state. Keys that it
// does not use are left alone.
func decodeMeta(prefix string, kvs []*mvccpb.KeyValue) (m meta, err error) {
	for _, kv := range kvs {
		value := string(kv.Value)
		switch strings.TrimPrefix(string(kv.Key), prefix) {
		case epochKey:
			m.epoch, m.epochMod = strings.TrimSpace(value), kv.ModRevision
		case stateKey:
			m.stateMod = kv.ModRevision
			if err := json.Unmarshal(kv.Value, &m.state); err != nil {
				return m, &DamagedError{Key: prefix + stateKey, Detail: err.Error()}
			}
		case compactKey:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return m, &DamagedError{Key: prefix + compactKey, Detail: fmt.Sprintf("%.40q is no revision", value)}
			}
			m.compacted, m.compactedMod = store.Revision(n), kv.ModRevision
		case ownerKey:
			m.owner, m.ownerMod = decodeHolder(kv.Value), kv.ModRevision
		case expiryKey:
			m.expiry = decodeHolder(kv.Value)
		}
	}
	return m, m.check(prefix)
}

func (m meta) check(prefix string) error {
	switch {
	case m.epochMod == 0 && m.stateMod == 0:
		return nil // a new state
	case m.epochMod == 0 || len(m.epoch) < shortestEpoch:
		return &DamagedError{Key: prefix + epochKey, Detail: fmt.Sprintf("it must have at least %d random characters", shortestEpoch)}
	case m.stateMod == 0:
		return &DamagedError{Key: prefix + stateKey, Detail: "it is missing"}
	case m.state.Format != layoutFormat:
		return &FormatError{Format: m.state.Format}
	case m.state.Base < 0 || m.state.Base&lastIndex != 0 || m.state.Generation < 0:
		detail := fmt.Sprintf("base %d or generation %d is not valid", m.state.Base, m.state.Generation)
		return &DamagedError{Key: prefix + stateKey, Detail: detail}
	}
	return nil
}

// shortestEpoch is enough hexadecimal digits for 64 random bits.
const shortestEpoch = 16

// layout names the keys of one generation.
type layout struct {
	prefix string // of the state
	data   string // of its records
}

func newLayout(prefix string, generation int) layout {
	return layout{prefix: prefix, data: prefix + dataFolder + strconv.Itoa(generation) + "/"}
}

// key of a record in etcd.
func (l layout) key(name string) string { return l.data + name }

// name of the record under a key of etcd; false: it is not in this generation.
func (l layout) name(key []byte) (string, bool) { return strings.CutPrefix(string(key), l.data) }

// span is the range of etcd's keys of the records with a prefix, from a name on.
// It is empty if first >= end.
func (l layout) span(prefix, from string) (first, end string) {
	return l.key(max(prefix, from)), clientv3.GetPrefixRangeEnd(l.key(prefix))
}

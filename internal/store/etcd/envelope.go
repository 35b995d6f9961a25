package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/proxima-mesh/proxima/internal/store"
)

// envelope is stored before each value: what etcd does not keep with a key, and
// Get, List and a watch must agree on.
type envelope struct {
	// index of the last modification inside its transaction.
	index int
	// created is the revision of the record's creation; 0: that of this very
	// modification, which is not known before etcd has applied it.
	created store.Revision
	// modified is the revision of the last modification; 0: it follows from etcd's
	// revision and index. Records that were restored from a backup have it.
	modified store.Revision
	// expires is the deadline; zero: none.
	expires time.Time
	// commit that wrote the record, to find out the outcome of a lost one.
	commit commitID
}

// commitID is unique: a random number for each open store, and a counter.
type commitID struct {
	writer uint64
	number uint64
}

// envelopeFormat is the first byte of each value.
const envelopeFormat = 1

var errEnvelope = errors.New("the value was not written by Proxima, or by a newer version")

// encode returns the value to store.
func (e envelope) encode(value []byte) string {
	b := make([]byte, 0, 48+len(value))
	b = append(b, envelopeFormat)
	b = binary.AppendUvarint(b, uint64(e.index))
	b = binary.AppendUvarint(b, uint64(e.created))
	b = binary.AppendUvarint(b, uint64(e.modified))
	deadline := int64(0)
	if !e.expires.IsZero() {
		deadline = e.expires.UnixNano()
	}
	b = binary.AppendVarint(b, deadline)
	b = binary.BigEndian.AppendUint64(b, e.commit.writer)
	b = binary.AppendUvarint(b, e.commit.number)
	return string(append(b, value...))
}

// decodeEnvelope splits what is stored. The value shares memory with data.
func decodeEnvelope(data []byte) (e envelope, value []byte, err error) {
	if len(data) == 0 || data[0] != envelopeFormat {
		return e, nil, errEnvelope
	}
	data = data[1:]
	var numbers [3]uint64
	for i := range numbers {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > 1<<62 {
			return e, nil, errEnvelope
		}
		numbers[i], data = n, data[size:]
	}
	deadline, size := binary.Varint(data)
	if size <= 0 || numbers[0] > lastIndex {
		return e, nil, errEnvelope
	}
	if data = data[size:]; len(data) < 8 {
		return e, nil, errEnvelope
	}
	e.commit.writer, data = binary.BigEndian.Uint64(data), data[8:]
	if e.commit.number, size = binary.Uvarint(data); size <= 0 {
		return e, nil, errEnvelope
	}
	e.index, e.created, e.modified = int(numbers[0]), store.Revision(numbers[1]), store.Revision(numbers[2])
	if deadline != 0 {
		e.expires = time.Unix(0, deadline).UTC()
	}
	return e, data[size:], nil
}

// revisions of the record that the envelope lies in, which was written at etcd's
// revision mod.
func (e envelope) revisions(n numbering, mod int64) (created, modified store.Revision) {
	modified = e.modified
	if modified == 0 {
		modified = n.revision(mod, e.index)
	}
	created = e.created
	if created == 0 {
		created = modified
	}
	return created, modified
}

// record decodes a key of etcd. The record shares memory with kv.
func (n numbering) record(name string, kv *mvccpb.KeyValue) (store.Record, envelope, error) {
	e, value, err := decodeEnvelope(kv.Value)
	if err != nil {
		return store.Record{}, e, &DamagedError{Key: string(kv.Key), Detail: err.Error()}
	}
	created, modified := e.revisions(n, kv.ModRevision)
	if created > modified {
		detail := fmt.Sprintf("created at %d, after its modification at %d", created, modified)
		return store.Record{}, e, &DamagedError{Key: string(kv.Key), Detail: detail}
	}
	return store.Record{Key: name, Value: value, Created: created, Modified: modified, Expires: e.expires}, e, nil
}

package sqlite

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/store"
)

// row is one row of history.
type row struct {
	revision, batch, kind int64
	key                   []byte
	created, prev         int64
	expires               int64 // see toColumn
	value                 []byte
	sum                   sql.NullInt64
}

// Columns of a row of history, h, in the order of targets. Those of a row that live points to have
// its key and revision, so that a row in the wrong place does not match its checksum; one that is
// missing has a checksum that none matches.
const (
	historyColumns = `h.revision, h.batch, h.kind, h.key, h.created, h.prev, h.expires, h.value, h.sum`
	liveColumns    = `live.revision, ifnull(h.batch, 0), ifnull(h.kind, 0), live.key, ifnull(h.created, 0), ifnull(h.prev, 0),
		ifnull(h.expires, 0), h.value, CASE WHEN h.batch IS NULL THEN -1 ELSE h.sum END`

	selectNewest = `SELECT ` + liveColumns + ` FROM live LEFT JOIN history AS h USING (revision) WHERE live.key = ?`
)

// withoutValues is for readers of keys: values can take most of the time.
func withoutValues(columns string) string {
	return strings.NewReplacer("h.value", "NULL", "h.sum", "NULL").Replace(columns)
}

// targets of Scan.
func (r *row) targets() []any {
	return []any{&r.revision, &r.batch, &r.kind, &r.key, &r.created, &r.prev, &r.expires, &r.value, &r.sum}
}

// checksum of everything in the row: CRC-32C, which processors compute.
func (r *row) checksum() int64 {
	var fixed [7 * 8]byte
	for i, n := range [...]int64{r.revision, r.batch, r.kind, r.created, r.prev, r.expires, int64(len(r.key))} {
		binary.BigEndian.PutUint64(fixed[8*i:], uint64(n))
	}
	table := crc32.MakeTable(crc32.Castagnoli) // made once by the package
	sum := crc32.Update(0, table, fixed[:])
	sum = crc32.Update(sum, table, r.key)
	return int64(crc32.Update(sum, table, r.value))
}

// digest of a row of live. Those of all rows, added without carry, are the digest of the table: so
// it costs little to keep, and a row that is lost, moved or changed shows.
func digest(key []byte, revision, expires int64) int64 {
	h := fnv.New64a()
	var fixed [2 * 8]byte
	binary.BigEndian.PutUint64(fixed[:], uint64(revision))
	binary.BigEndian.PutUint64(fixed[8:], uint64(expires))
	_, _ = h.Write(fixed[:]) // it never fails (hash.Hash)
	_, _ = h.Write(key)
	return int64(h.Sum64())
}

// verify that the row is as it was written. Errors: *DamagedError.
func (r *row) verify() error {
	known := store.EventKind(r.kind) == store.Put || store.EventKind(r.kind) == store.Delete
	if known && (!r.sum.Valid || r.sum.Int64 == r.checksum()) {
		return nil
	}
	return &DamagedError{Detail: "changed or lost on the disk: " + r.name()}
}

// name of the row for people.
func (r *row) name() string { return fmt.Sprintf("%q at revision %d", r.key, r.revision) }

func (r *row) record() store.Record {
	return store.Record{
		Key: string(r.key), Value: r.value, Created: store.Revision(r.created), Modified: store.Revision(r.revision),
		Expires: fromColumn(r.expires),
	}
}

package sqlite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/store"
)

// These tests simulate power cuts: they take the bytes of a state's files, leave out or
// tamper with what was written after the last sync, as a disk may, and open the result.
//
// They prove that the files are read back correctly whatever happened to the part
// without an acknowledged commit. Where SQLite syncs is taken from its
// documentation: the log before a commit returns, the file before the log is reused,
// the log's new header before its frames. TestPowerCut does not rely on that: it
// records the syncs. That the disk honours a sync, no test can show.

// image is the bytes of a state at one moment.
type image struct{ db, log []byte }

func imageOf(t testing.TB, path string) image {
	t.Helper()
	var i image
	var err error
	if i.db, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if i.log, err = os.ReadFile(path + "-wal"); err != nil {
		t.Fatal(err)
	}
	return i
}

// torn is a state that is written step by step, with an image after each.
type torn struct {
	path   string
	store  *Store
	images []image // after so many commits
	rng    *rand.Rand
}

const tornKeys = 7

func newTorn(t *testing.T) *torn {
	f := &torn{path: filepath.Join(t.TempDir(), "state.db"), rng: rand.New(rand.NewPCG(1, 2))}
	f.store = open(t, f.path)
	f.exec(t, `PRAGMA wal_autocheckpoint = 0`)
	f.images = append(f.images, imageOf(t, f.path))
	return f
}

func (f *torn) exec(t *testing.T, statement string) {
	t.Helper()
	if err := f.store.task(t.Context(), func() {
		rows, err := f.store.writer.conn.QueryContext(t.Context(), statement)
		if err != nil {
			t.Error(err)
			return
		}
		for rows.Next() { //nolint:revive // a pragma does its work while it is read
		}
		if err := rows.Close(); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// commit the next transaction: three changes, and large enough for many pages.
func (f *torn) commit(t *testing.T) {
	t.Helper()
	n := len(f.images)
	txn := store.Txn{}
	for key, value := range tornChanges(n) {
		txn.Ops = append(txn.Ops, store.Op{Kind: store.Put, Key: key, Value: []byte(value)})
	}
	if _, err := f.store.Commit(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	f.images = append(f.images, imageOf(t, f.path))
}

func tornChanges(n int) map[string]string {
	large := bytes.Repeat([]byte{byte('a' + n%26)}, 3000+n*37%5000)
	return map[string]string{"first": fmt.Sprint(n), "last": fmt.Sprint(n), fmt.Sprintf("k/%d", n%tornKeys): string(large)}
}

// recovered opens an image and returns how many commits it has; the state must
// be exactly the one after these.
func recovered(t *testing.T, i image) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	for name, content := range map[string][]byte{path: i.db, path + "-wal": i.log} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rev, err := s.Revision(t.Context())
	if err != nil || rev%3 != 0 {
		t.Fatalf("half a transaction: revision %d, %v", rev, err)
	}
	n := int(rev / 3)
	want, got := map[string]string{}, map[string]string{}
	for i := range n {
		for key, value := range tornChanges(i + 1) {
			want[key] = value
		}
	}
	page, err := s.List(t.Context(), store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		got[r.Key] = string(r.Value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("after %d commits: %s", n, diff)
	}
	batches, _, err := s.History(t.Context(), "", 0, min(rev, pageEvents))
	if err != nil || len(batches) != n {
		t.Fatalf("%d transactions in the history of %d commits, %v", len(batches), n, err)
	}
	// Writing goes on, with the revision that follows.
	if next, err := s.Commit(t.Context(), put("next", nil)); next != rev+1 || err != nil {
		t.Fatalf("revision %d after %d, %v", next, rev, err)
	}
	return n
}

const sector = 512 // what a disk writes at once

// tamper returns before, changed towards after as a power cut may leave it: each
// sector that was being written is old, new, zero or noise, and the file ends
// anywhere beyond before's end. writing reports by its position what was written.
func (f *torn) tamper(before, after []byte, writing func(at int) bool) []byte {
	out := bytes.Clone(before)
	if grown := len(after) - len(out); grown > 0 {
		out = append(out, make([]byte, f.rng.IntN(grown+1))...)
	}
	for start := 0; start < len(out); start += sector {
		end := min(start+sector, len(out))
		at := start
		for at < end && !writing(at) {
			at++
		}
		if at == end {
			continue
		}
		switch piece := out[at:end]; f.rng.IntN(5) {
		case 0: // as before, or a hole
		case 1, 2:
			copy(piece, after[min(at, len(after)):])
		case 3:
			clear(piece)
		case 4:
			copy(piece, after[min(at, len(after)):])
			piece[f.rng.IntN(len(piece))] ^= 1 << f.rng.IntN(8)
		}
	}
	return out
}

// Layout of the log, from SQLite's file format: a header, then frames, each
// with a header of its own and a page.
const (
	logHeader   = 32
	frameHeader = 24
)

// checkpointed reports the positions in the file that a checkpoint of the log writes.
func checkpointed(log []byte) func(at int) bool {
	size := int(binary.BigEndian.Uint32(log[8:]))
	salts := log[16:24]
	pages := map[int]bool{}
	for frame := log[logHeader:]; len(frame) >= frameHeader+size; frame = frame[frameHeader+size:] {
		if !bytes.Equal(frame[8:16], salts) {
			break // left from before the log was reused
		}
		pages[int(binary.BigEndian.Uint32(frame))-1] = true
	}
	return func(at int) bool { return pages[at/size] }
}

// beyond reports the positions from one on.
func beyond(from int) func(at int) bool { return func(at int) bool { return at >= from } }

// TestTornLog: what a commit wrote to the log before it was acknowledged is lost,
// cut or tampered with. Every commit before it is there, and it is there whole or not
// at all.
func TestTornLog(t *testing.T) {
	f := newTorn(t)
	whole, none := 0, 0
	for n := 1; n <= 12; n++ {
		f.commit(t)
		before, after := f.images[n-1], f.images[n]
		if !bytes.Equal(before.db, after.db) || !bytes.HasPrefix(after.log, before.log) {
			t.Fatalf("commit %d changed what was synced", n)
		}
		logs := [][]byte{before.log, after.log, after.log[:len(before.log)+f.rng.IntN(len(after.log)-len(before.log))]}
		for range 4 {
			logs = append(logs, f.tamper(before.log, after.log, beyond(len(before.log))))
		}
		for i, log := range logs {
			got := recovered(t, image{before.db, log})
			switch {
			case got == n && (i == 1 || bytes.HasPrefix(log, after.log)):
				whole++
			case got == n-1 && i != 1:
				none++
			default:
				t.Fatalf("commit %d, image %d: %d commits are there", n, i, got)
			}
		}
	}
	if whole < 12 || none < 24 {
		t.Errorf("%d whole, %d none: the images are not what they should be", whole, none)
	}
	t.Logf("%d images with the last commit, %d without", whole, none)
}

// TestTornCheckpoint: the power goes while the log is copied into the file. The
// file's pages are a mix; the log still has all of them.
func TestTornCheckpoint(t *testing.T) {
	f := newTorn(t)
	for range 2 {
		for range 12 {
			f.commit(t)
		}
		n := len(f.images) - 1
		before := f.images[n]
		f.exec(t, `PRAGMA wal_checkpoint(PASSIVE)`)
		after := imageOf(t, f.path)
		if bytes.Equal(before.db, after.db) || !bytes.Equal(before.log, after.log) {
			t.Fatal("this was no checkpoint")
		}
		for range 12 {
			if got := recovered(t, image{f.tamper(before.db, after.db, checkpointed(before.log)), before.log}); got != n {
				t.Fatalf("%d commits are there, %d were acknowledged", got, n)
			}
		}
		f.reuse(t, after)
	}
}

// reuse commits to a log that is used from its beginning again, over what is in
// the file by now. The header is synced before the frames.
func (f *torn) reuse(t *testing.T, before image) {
	t.Helper()
	n := len(f.images)
	f.commit(t)
	after := f.images[n]
	if bytes.Equal(before.log[:logHeader], after.log[:logHeader]) {
		t.Fatal("the log was not reused")
	}
	synced := append(bytes.Clone(after.log[:logHeader]), before.log[logHeader:]...)
	whole := 0
	for range 12 {
		got := recovered(t, image{before.db, f.tamper(synced, after.log, beyond(logHeader))})
		switch got {
		case n:
			whole++
		case n - 1:
		default:
			t.Fatalf("%d commits are there, %d were acknowledged", got, n-1)
		}
	}
	if whole > 9 {
		t.Errorf("%d of 12 images have the commit: they are not tampered with", whole)
	}
	// Salts in the frames distinguish old from new.
	if bytes.Equal(after.log[16:24], before.log[16:24]) {
		t.Errorf("the salts are the same: %x", binary.BigEndian.Uint64(after.log[16:]))
	}
}

// TestTornTestIsAlive: a sync that is missing is noticed. The log of an acknowledged
// commit is lost.
func TestTornTestIsAlive(t *testing.T) {
	f := newTorn(t)
	f.commit(t)
	f.commit(t)
	if got := recovered(t, image{f.images[2].db, f.images[1].log}); got != 1 {
		t.Errorf("%d commits are there without their log", got)
	}
}

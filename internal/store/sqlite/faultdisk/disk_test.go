package faultdisk

import (
	"bytes"
	"database/sql"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the driver
)

func model() *Disk {
	return &Disk{folder: "/f", rng: rand.New(rand.NewPCG(1, 2)), files: map[string]*file{}}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// contents are the different states of a file after many cuts; "-" is its absence.
// Bytes that repeat are listed once with each block.
func contents(d *Disk, block int) []string {
	all := map[string]bool{}
	for range 1500 {
		content, there := d.Cut()["a"]
		text := "-"
		if there {
			text = ""
			for at := 0; at < len(content); at += block {
				text += strings.ReplaceAll(string(content[at:at+1]), "\x00", "0")
			}
		}
		all[text] = true
	}
	var out []string
	for text := range all {
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// TestModel: what cuts leave is all that may be left, and nothing else.
func TestModel(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(d *Disk)
		want string
	}{
		"synced": {func(d *Disk) { d.wrote("/f/a", 0, fill('x', 1024)); d.sync("/f/a") }, "xx"},
		"a new file": {func(d *Disk) { d.wrote("/f/a", 0, fill('x', 1024)) },
			"  - 0x x xx"},
		"over what is synced": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 1024))
			d.sync("/f/a")
			d.wrote("/f/a", 0, fill('y', 1024))
			d.wrote("/f/a", 512, fill('z', 512))
		}, "xx xy xz yx yy yz"},
		"a truncation": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 1024))
			d.sync("/f/a")
			d.truncated("/f/a", 512)
		}, "x xx"},
		"a truncation that is synced": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 1024))
			d.truncated("/f/a", 512)
			d.wrote("/f/a", 1024, fill('y', 512))
			d.sync("/f/a")
		}, "x0y"},
		"deleted": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 512))
			d.sync("/f/a")
			d.deleted("/f/a", false)
		}, "- x"},
		"deleted, and its folder synced": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 512))
			d.sync("/f/a")
			d.deleted("/f/a", true)
		}, "-"},
		"deleted and made again": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 512))
			d.sync("/f/a")
			d.deleted("/f/a", false)
			if err := d.opened("/f/a", false, false); err != nil {
				t.Error(err)
			}
			d.wrote("/f/a", 0, fill('y', 512))
		}, "  - x y"},
		"deleted, and a new log synced": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 512))
			d.sync("/f/a")
			d.deleted("/f/a", false)
			if err := d.opened("/f/log", false, true); err != nil {
				t.Error(err)
			}
			d.sync("/f/log")
		}, "-"},
		"a lost sync": {func(d *Disk) {
			d.wrote("/f/a", 0, fill('x', 512))
			d.sync("/f/a")
			d.Set(Faults{LostSyncs: 1})
			d.wrote("/f/a", 0, fill('y', 512))
			if !d.sync("/f/a") {
				t.Error("it reports a sync")
			}
		}, "x y"},
	} {
		t.Run(name, func(t *testing.T) {
			d := model()
			if err := d.opened("/f/a", false, false); err != nil {
				t.Fatal(err)
			}
			c.do(d)
			want := strings.Split(strings.TrimPrefix(c.want, "  "), " ")
			if strings.HasPrefix(c.want, "  ") { // it may be there and empty
				want = append([]string{""}, want...)
			}
			if got := contents(d, 512); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestFailedSync: what it should have written is there, or gone for good, or waits.
func TestFailedSync(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		d := model()
		d.rng = rand.New(rand.NewPCG(seed, 1))
		if err := d.opened("/f/a", false, false); err != nil {
			t.Fatal(err)
		}
		d.wrote("/f/a", 0, fill('x', 1024))
		d.sync("/f/a")
		d.Set(Faults{FailedSyncs: 1})
		d.wrote("/f/a", 0, fill('y', 1024))
		if d.sync("/f/a") {
			t.Fatal("it did not fail")
		}
		d.Set(Faults{})
		d.wrote("/f/a", 1024, fill('z', 512))
		if !d.sync("/f/a") {
			t.Fatal("it failed")
		}
		got := contents(d, 512)
		if len(got) != 1 {
			t.Fatalf("synced, but one of %q", got)
		}
		seen[got[0]] = true
	}
	for _, want := range []string{"xxz", "yyz", "xyz", "yxz"} {
		if !seen[want] {
			t.Errorf("never seen: %s of %v", want, seen)
		}
	}
}

// TestUnderSQLite: what SQLite writes goes by the disk, reads of it are right, and
// the errors of syncs arrive.
func TestUnderSQLite(t *testing.T) {
	folder := t.TempDir()
	d, err := Watch(folder, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	path := filepath.Join(d.folder, "a.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=synchronous(FULL)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, statement := range []string{"CREATE TABLE t (a)", "INSERT INTO t VALUES (1)", "PRAGMA wal_checkpoint(TRUNCATE)",
		"INSERT INTO t VALUES (2)"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for _, name := range []string{"a.db", "a.db-wal"} {
		onDisk, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if f := d.files[filepath.Join(d.folder, name)]; f == nil || !f.named || !bytes.Equal(f.synced, onDisk) || len(f.pending) != 0 {
			t.Errorf("%s: not as SQLite wrote and synced it", name)
		}
	}
	before := d.Cut()
	d.Set(Faults{FailedSyncs: 1})
	if _, err := db.ExecContext(t.Context(), "INSERT INTO t VALUES (3)"); err == nil || !strings.Contains(err.Error(), "disk I/O error") {
		t.Errorf("with syncs that fail: %v", err)
	}
	d.Set(Faults{})
	seen := d.Seen()
	if seen.Writes == 0 || seen.Syncs == 0 || seen.FailedSyncs != 1 || seen.Truncations == 0 || seen.Deletions == 0 {
		t.Errorf("seen %+v", seen)
	}
	// A folder that is not of this disk is left alone.
	elsewhere := t.TempDir()
	if err := before.WriteTo(elsewhere); err != nil {
		t.Fatal(err)
	}
	again, err := sql.Open("sqlite", "file:"+filepath.Join(elsewhere, "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var sum int
	if err := again.QueryRowContext(t.Context(), "SELECT sum(a) FROM t").Scan(&sum); err != nil || sum != 3 {
		t.Errorf("sum %d, %v", sum, err)
	}
	if d.Seen() != seen {
		t.Errorf("another folder's files were seen: %+v, before %+v", d.Seen(), seen)
	}
}

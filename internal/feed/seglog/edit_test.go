package seglog

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestEditedCopyIsKept: of two copies the one that was edited is the truth, when the log is opened and before, and the other is made
// again from it.
func TestEditedCopyIsKept(t *testing.T) {
	for first := range 2 {
		h := newHistory(rand.New(rand.NewPCG(3, 1)))
		o := Options{Roots: []string{t.TempDir(), t.TempDir()}, Copies: 2, Epoch: "e", Reserve: 1}
		l := open(t, o)
		if err := l.Append(h.take(50), 0); err != nil {
			t.Fatal(err)
		}
		if err := l.Seal(); err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(h.all, func(e *Entry) bool { return len(e.Value) > 40 })
		secret := h.all[at].Value
		ed := Editor{Marks: []string{"m"}, Edit: func(e *Entry, marks []string) (*Entry, error) {
			if !bytes.Equal(e.Value, secret) || len(marks) > 0 {
				return e, nil
			}
			own := *e
			own.Value = []byte("edited")
			return &own, nil
		}}
		paths := l.Segments()[0].Copies
		for range 2 { // the second time there is nothing to do
			if _, err := l.Edit(paths[first], ed); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open(t, o)
		if got := readAll(t, l, 0); len(got) != 50 || string(got[at].Value) != "edited" {
			t.Fatalf("copy %d was edited: %d entries, %q", first, len(got), got[at].Value)
		}
		if short := l.Repair(); short != 0 {
			t.Fatalf("%d segments have too few copies", short)
		}
		var data [2][]byte
		for i, path := range paths {
			if err := l.CheckCopy(path); err != nil {
				t.Fatal(err)
			}
			data[i], _ = os.ReadFile(path)
		}
		if !bytes.Equal(data[0], data[1]) || bytes.Contains(data[0], secret[:40]) {
			t.Fatal("the copies are different, or have the value")
		}
		names, _ := filepath.Glob(filepath.Join(o.Roots[0], "*"))
		if len(names) != 1 {
			t.Errorf("left over: %v", names)
		}
	}
}

// TestRepairsACopyWithoutItsEnd: a copy whose end could not be written is made again.
func TestRepairsACopyWithoutItsEnd(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(4, 1)))
	disk := newPlayedDisk(h.rand, "/a", "/b")
	l := open(t, Options{Roots: []string{"/a", "/b"}, Copies: 2, Reserve: 1, Disk: disk})
	if err := l.Append(h.take(5), 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	disk.roots["/b"].failWrites = 1
	if err := l.Seal(); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Segments()[0].Copies); n != 1 {
		t.Fatalf("%d copies count as whole", n)
	}
	l.opts.Now = func() time.Time { return time.Now().Add(2 * rootRetry) }
	if short := l.Repair(); short != 0 {
		t.Fatalf("%d segments have too few copies", short)
	}
	for _, path := range l.Segments()[0].Copies {
		if err := l.CheckCopy(path); err != nil {
			t.Error(err)
		}
	}
}

// FuzzEditFile: no file makes the check, or the editing of a segment, panic or use much memory; what is written is whole.
func FuzzEditFile(f *testing.F) {
	h := newHistory(rand.New(rand.NewPCG(5, 1)))
	dir := f.TempDir()
	l, err := Open(Options{Roots: []string{dir}, Epoch: "e", Reserve: 1, SegmentBytes: 4 << 10})
	if err != nil {
		f.Fatal(err)
	}
	for range 10 {
		if err := l.Append(h.take(7), 0); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.seg"))
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)-3])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := CheckFile(bytes.NewReader(data), int64(len(data)))
		to := &playedFile{}
		out, failed := EditFile(bytes.NewReader(data), int64(len(data)), &handle{newPlayedDisk(nil, "."), "x", to}, Editor{
			Marks: []string{"m"}, Edit: func(e *Entry, _ []string) (*Entry, error) {
				own := *e
				own.Value = append([]byte("longer than it was: "), own.Value...)
				if own.Kind == Delete {
					own.Value = nil
				}
				return &own, nil
			},
		})
		if err != nil && failed == nil {
			t.Fatalf("a file that is not whole was edited: %v", err)
		}
		if failed != nil || out.Entries == 0 {
			return
		}
		got, err := CheckFile(bytes.NewReader(to.data), int64(len(to.data)))
		if err != nil || got != out.Remote || got.After != r.After || got.Complete != r.Complete || got.Epoch != r.Epoch {
			t.Fatalf("the file that was edited is %+v, %v; it was %+v", got, err, r)
		}
	})
}

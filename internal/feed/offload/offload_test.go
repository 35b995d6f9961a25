package offload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// target is a directory that fails, and changes what it gives, as a test says.
type target struct {
	blob.Target
	put, get, list error
	// cut is how many bytes of a blob are given, at most; 0: all. flip changes one of them.
	cut  int
	flip bool
}

func (t *target) Put(ctx context.Context, name string, from io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if t.put != nil {
		return t.put
	}
	return t.Target.Put(ctx, name, from, size, sum)
}

func (t *target) Get(ctx context.Context, name string, w io.Writer) error {
	if t.get != nil {
		_, _ = w.Write([]byte("a part"))
		return t.get
	}
	var all bytes.Buffer
	if err := t.Target.Get(ctx, name, &all); err != nil {
		return err
	}
	data := all.Bytes()
	if t.cut > 0 {
		data = data[:t.cut]
	}
	if t.flip {
		data[len(data)/2] ^= 1
	}
	_, err := w.Write(data)
	return err
}

func (t *target) List(ctx context.Context, prefix string) ([]blob.Info, error) {
	if t.list != nil {
		return nil, t.list
	}
	return t.Target.List(ctx, prefix)
}

// rig is a log with one sealed segment, and a target.
func rig(t *testing.T) (log *seglog.Log, sum string, to *target, o *Offloader, cache string) {
	t.Helper()
	log, err := seglog.Open(seglog.Options{Roots: []string{t.TempDir()}, Epoch: "of/this store", Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	if err := log.Append([]*seglog.Entry{{Position: 5, Kind: seglog.Put, Key: "k", Created: 5, Value: bytes.Repeat([]byte("v"), 300)}}, 9); err != nil {
		t.Fatal(err)
	}
	if err := log.Seal(); err != nil {
		t.Fatal(err)
	}
	inner, err := blob.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	to, cache = &target{Target: inner}, filepath.Join(t.TempDir(), "cache")
	if o, err = New(Config{Target: to, Cache: cache}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return log, log.Segments()[0].SHA256, to, o, cache
}

// TestTargetFails at each step: nothing counts as there before it is, a reader gets the error and asks again, and no part stays in the
// cache.
func TestTargetFails(t *testing.T) {
	log, sum, to, o, cache := rig(t)
	ctx, away := t.Context(), errors.New("the target is away")
	to.put = away
	if _, err := o.Upload(ctx, log, sum); !errors.Is(err, away) {
		t.Fatalf("upload: %v", err)
	}
	if all, err := o.List(ctx); len(all) != 0 || err != nil {
		t.Fatalf("after an upload that failed: %v, %v", all, err)
	}
	stopped, stop := context.WithCancel(ctx) // as when the process ends midway
	stop()
	to.put = nil
	if _, err := o.Upload(stopped, log, sum); !errors.Is(err, context.Canceled) {
		t.Fatalf("upload that was stopped: %v", err)
	}
	if all, _ := o.List(ctx); len(all) != 0 {
		t.Fatalf("after an upload that was stopped: %v", all)
	}
	if _, err := o.Upload(ctx, log, strings.Repeat("0", 64)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("upload of what the log has not: %v", err)
	}
	var r seglog.Remote
	for range 2 { // the second time it is there
		var err error
		if r, err = o.Upload(ctx, log, sum); err != nil {
			t.Fatal(err)
		}
	}
	to.list = away
	if _, err := o.List(ctx); !errors.Is(err, away) {
		t.Fatalf("list: %v", err)
	}
	to.list, to.get = nil, away
	if _, _, err := o.Open(ctx, r); !errors.Is(err, away) {
		t.Fatalf("open: %v", err)
	}
	to.get = nil
	var damaged *seglog.RemoteDamagedError
	for _, lie := range []func(){func() { to.cut = 40 }, func() { to.cut, to.flip = 0, true }} {
		lie()
		if _, _, err := o.Open(ctx, r); !errors.As(err, &damaged) {
			t.Fatalf("open of what the target has changed: %v", err)
		}
		if err := o.Check(ctx, r); !errors.As(err, &damaged) {
			t.Fatalf("check of what the target has changed: %v", err)
		}
	}
	if left, _ := os.ReadDir(cache); len(left) != 0 {
		t.Fatalf("left in the cache: %v", left)
	}
	to.flip = false
	f, size, err := o.Open(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := seglog.CheckFile(f, size); err != nil || got.SHA256 != sum {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestForeignFiles at a target are left alone, and are no segments.
func TestForeignFiles(t *testing.T) {
	log, sum, to, o, _ := rig(t)
	r, err := o.Upload(t.Context(), log, sum)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"README.txt", "segments/README.txt", "segments/e/notes.seg", "segments/" + filepath.Base(r.Name), r.Name + ".part",
		strings.Replace(r.Name, "00000000000000000000-", "00000000000000000099-", 1), // it would end before it begins
		strings.Replace(r.Name, "-00000", "-99999", 1),                               // not a number
	} {
		if err := to.Put(t.Context(), name, strings.NewReader("x"), 1, sha256.Sum256([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := o.List(t.Context()); len(all) != 1 || all[0] != r || err != nil {
		t.Fatalf("%v, %v; want %v", all, err, r)
	}
}

// FuzzName: what is taken as the name of a segment is the name that the segment has.
func FuzzName(f *testing.F) {
	f.Add(Name(seglog.Remote{Epoch: "e/%2f ", After: 1, Complete: 2, Newest: 3, SHA256: strings.Repeat("a", 64)}))
	f.Add("segments/e/x.seg")
	f.Fuzz(func(t *testing.T, name string) {
		r, ok := parse(name)
		if !ok {
			return
		}
		if Name(r) != name || r.Name != name || r.After < 0 || r.Complete <= r.After {
			t.Fatalf("%q is %+v, whose name is %q", name, r, Name(r))
		}
	})
}

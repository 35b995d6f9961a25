package etcd_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// save takes a snapshot of a server, as etcdctl snapshot save.
func save(t *testing.T, m *member) string {
	t.Helper()
	content, err := connect(t, m).Snapshot(background(t))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	path := filepath.Join(t.TempDir(), "etcd.snapshot")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, content); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// restored starts a server from a snapshot, as etcdutl snapshot restore, at the
// address of one that was stopped.
func restored(t *testing.T, path string, old *member, bump uint64) *member {
	t.Helper()
	m := newMember(t, "one", filepath.Join(t.TempDir(), "data"), quick, func(c *embed.Config) {
		c.ListenClientUrls, c.AdvertiseClientUrls = old.config.ListenClientUrls, old.config.AdvertiseClientUrls
	})
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: m.config.Name, OutputDataDir: m.config.Dir,
		PeerURLs: []string{m.config.AdvertisePeerUrls[0].String()}, InitialCluster: m.config.InitialCluster,
		InitialClusterToken: m.config.InitialClusterToken, RevisionBump: bump, MarkCompacted: bump > 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.start(t)
	return m
}

// TestSetBack is trap 8: an etcd that was restored from a snapshot has the same
// epoch and an older history. An instance that has seen more refuses it, after a
// restart and while it runs, until the epoch is changed.
func TestSetBack(t *testing.T) {
	old := startMember(t)
	url := stateURL(old)
	opts := etcd.Options{SeenFile: filepath.Join(t.TempDir(), "seen.json")}
	s := open(t, url, opts)
	commit(t, s, put("a", "1"))
	path := save(t, old)
	for range 5 {
		commit(t, s, put("a", "lost"))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	running := open(t, url, etcd.Options{})
	old.stop()
	m := restored(t, path, old, 0)

	_, err := etcd.Open(background(t), url, opts)
	var replaced *etcd.ReplacedError
	if !errors.As(err, &replaced) || !strings.Contains(err.Error(), "etcdctl put") {
		t.Fatalf("after a restart: %v", err)
	}
	if _, err := running.Commit(background(t), store.Txn{Ops: []store.Op{put("a", "2")}}); !errors.As(err, &replaced) {
		t.Errorf("while it runs: %v", err)
	}
	if _, _, _, err := running.Get(background(t), "a", 0); !errors.As(err, &replaced) {
		t.Errorf("a read: %v", err)
	}
	// An instance that has not seen more cannot notice.
	fresh := open(t, url, etcd.Options{SeenFile: filepath.Join(t.TempDir(), "other.json")})
	if rec, _, _, err := fresh.Get(background(t), "a", 0); err != nil || string(rec.Value) != "1" {
		t.Errorf("it has %q, %v", rec.Value, err)
	}
	if _, err := connect(t, m).Put(background(t), prefixOf(t, url)+"meta/epoch", "0123456789abcdef0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	again := open(t, url, opts)
	if again.Epoch() == s.Epoch() {
		t.Error("the epoch is the one of the lost history")
	}
	commit(t, again, put("a", "3"))
	// And a new epoch ends those that are open.
	for ctx := background(t); fresh.Ready(ctx) == nil && ctx.Err() == nil; {
	}
	if err := fresh.Ready(background(t)); !errors.As(err, &replaced) {
		t.Errorf("an instance of the old epoch: %v", err)
	}
}

// TestBumpRevision: restored as docs/how-to/etcd.md says, etcd goes on above all
// revisions, and who watched the lost history reads everything again.
func TestBumpRevision(t *testing.T) {
	old := startMember(t)
	url := stateURL(old)
	opts := etcd.Options{SeenFile: filepath.Join(t.TempDir(), "seen.json")}
	s := open(t, url, opts)
	kept := commit(t, s, put("a", "1"), put("b", "1"))
	path := save(t, old)
	lost := commit(t, s, put("a", "lost"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	old.stop()
	restored(t, path, old, 1_000_000_000)
	again := open(t, url, opts)
	if now := newest(t, again); now <= lost {
		t.Errorf("the revision is %d, a lost one was %d", now, lost)
	}
	for _, after := range []store.Revision{kept, lost} {
		w, err := again.Watch(background(t), "", after)
		if err == nil {
			_, err = drain(background(t), w, newest(t, again))
			w.Close()
		}
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("a watch after %d: %v", after, err)
		}
	}
	if got := records(t, again, store.ListOptions{}); len(got) != 2 || got[1].Modified != kept || string(got[0].Value) != "1" {
		t.Errorf("restored: %+v", got)
	}
	revision := commit(t, again, put("a", "2"))
	if got := events(t, again, "", revision-1, revision); len(got) != 1 || string(got[0].Prev.Value) != "1" {
		t.Errorf("after a write: %+v", got)
	}
}

// TestDeletedPrefix: a state whose keys were deleted is not served as empty.
func TestDeletedPrefix(t *testing.T) {
	m := shareMember(t)
	url := stateURL(m)
	s := open(t, url, etcd.Options{})
	commit(t, s, put("a", "1"))
	var err error
	if _, err = connect(t, m).Delete(background(t), prefixOf(t, url)+"meta/epoch"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Commit(background(t), store.Txn{Ops: []store.Op{put("a", "2")}})
	var replaced *etcd.ReplacedError
	if !errors.As(err, &replaced) {
		t.Errorf("a commit: %v", err)
	}
	if _, err := etcd.Open(context.Background(), url, etcd.Options{}); err == nil {
		t.Error("a state without an epoch was opened")
	}
}

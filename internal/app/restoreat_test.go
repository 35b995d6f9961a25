package app

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/backup"
)

// recordsOf the objects of a store, and of what else it has.
func recordsOf(t *testing.T, s store.Store) string {
	t.Helper()
	page, err := s.List(t.Context(), store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, r := range page.Records {
		fmt.Fprintf(&out, "%s=%s (%d %d)\n", r.Key, r.Value, r.Created, r.Modified)
	}
	return out.String()
}

// TestRestoreAt restores a random history to many times, from a backup in its middle and the segments since, which are in part local and
// in part offloaded, or only offloaded.
func TestRestoreAt(t *testing.T) {
	ctx, dir, place := t.Context(), t.TempDir(), t.TempDir()
	target, err := blob.Open(place)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openStore(ctx, "sqlite:", dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	offloader, err := openOffload(place, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f, err := feed.Open(ctx, feed.Config{
		Store: s, Prefix: feedPrefix, Skip: skipFromFeed, Roots: []string{filepath.Join(dir, "feed")}, Offload: offloader, OffloadAfter: -time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Run(running) }()

	random := rand.New(rand.NewPCG(1, 2))
	type moment struct {
		at   time.Time
		want string
	}
	var moments []moment
	other := store.Op{Kind: store.Put, Key: "/proxima/other", Value: []byte("as in the backup")}
	commit := func(ops ...store.Op) {
		t.Helper()
		at, err := s.Commit(ctx, store.Txn{Ops: ops})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Reach(ctx, seglog.Position(at)); err != nil {
			t.Fatal(err)
		}
	}
	change := func() {
		t.Helper()
		var ops []store.Op
		for i := range 1 + random.IntN(3) {
			op := store.Op{Kind: store.Put, Key: fmt.Sprintf("/registry/services/%d", i*5+random.IntN(5)), Value: fmt.Appendf(nil, "%d", random.Uint64())}
			if random.IntN(4) == 0 {
				op = store.Op{Kind: store.Delete, Key: op.Key}
			}
			ops = append(ops, op)
		}
		commit(ops...)
		for now := time.Now().UnixMilli(); time.Now().UnixMilli() < now+2; { // times of changes are in ms
		}
	}
	keep := func() {
		t.Helper()
		file := filepath.Join(t.TempDir(), "x.backup")
		out, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := backup.Write(ctx, out, s, backup.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := KeepBackup(ctx, target, file); err != nil {
			t.Fatal(err)
		}
	}
	commit(other)
	for range 20 {
		change()
	}
	keep()
	for i := range 60 {
		change()
		moments = append(moments, moment{time.Now().Truncate(time.Millisecond).Add(-time.Millisecond), recordsOf(t, s)})
		switch i {
		case 20, 40:
			if _, err := f.OffloadNow(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	local := moments[len(moments)-1]
	check := func(m moment, roots string) Restored {
		t.Helper()
		to := t.TempDir()
		restored, err := Restore(ctx, RestoreConfig{From: place, Offload: place, At: m.at, FeedRoots: []string{roots}, Store: "sqlite:", DataDir: to})
		if err != nil {
			t.Fatal(err)
		}
		s, err := openStore(ctx, "sqlite:", to, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := recordsOf(t, s); got != m.want {
			t.Fatalf("restored to %s:\n%s\nwant\n%s", m.at, got, m.want)
		}
		if restored.NewEpoch == restored.Epoch || restored.Base <= restored.Revision {
			t.Errorf("it goes on at %d, in epoch %s", restored.Base, restored.NewEpoch)
		}
		return restored
	}
	for i := 0; i < len(moments); i += 7 {
		if restored := check(moments[i], filepath.Join(dir, "feed")); !restored.Complete {
			t.Errorf("to %d: later changes are not known", i)
		}
	}
	if restored := check(local, filepath.Join(dir, "feed")); restored.Complete {
		t.Error("changes after the end of the feed are known")
	}
	if _, err := f.OffloadNow(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(local, t.TempDir()) // the machine is lost
	check(moments[30], t.TempDir())

	_, err = Restore(ctx, RestoreConfig{From: place, At: moments[30].at, FeedRoots: []string{filepath.Join(dir, "feed")}, Store: "sqlite:", DataDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "--feed-offload") {
		t.Errorf("without what was offloaded: %v", err)
	}
	_, err = Restore(ctx, RestoreConfig{From: place, At: moments[0].at.Add(-time.Hour), Offload: place, Store: "sqlite:", DataDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "no backup that is old enough") {
		t.Errorf("to a time before all backups: %v", err)
	}
	if n, err := PruneBackups(ctx, target, time.Now().Add(time.Hour)); n != 0 || err != nil {
		t.Errorf("the newest backup is not pruned: %d, %v", n, err)
	}
}

//go:build unix

package postgres

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestTimeGoesBack: a database that was set back goes on under another epoch, above all
// revisions that were given out; what is older cannot be asked for.
func TestTimeGoesBack(t *testing.T) {
	url, seen := testkit.Postgres(t), filepath.Join(t.TempDir(), "seen.json")
	var log bytes.Buffer
	s := open(t, url, Options{SeenFile: seen, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if strings.Contains(log.String(), "older than it was") {
		t.Errorf("a new state: %s", &log)
	}
	for _, value := range []string{"1", "2", "3"} {
		if _, err := s.Commit(t.Context(), put("a", value)); err != nil {
			t.Fatal(err)
		}
	}
	epoch := s.Epoch()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, url, Options{SeenFile: seen})
	if again.Epoch() != epoch {
		t.Error("another epoch, though nothing was lost")
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, change := range []string{
		`DELETE FROM proxima_history WHERE revision = 3`, `UPDATE proxima_live SET revision = 2`, `UPDATE proxima_meta SET revision = 2`,
	} {
		if _, err := conn.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	log.Reset()
	back := open(t, url, Options{SeenFile: seen, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if back.Epoch() == epoch || !strings.Contains(log.String(), "older than it was") {
		t.Errorf("epoch %s, log %s", back.Epoch(), &log)
	}
	rec, ok, at, err := back.Get(t.Context(), "a", 0)
	if err != nil || !ok || string(rec.Value) != "2" || at <= 1_000_000_000 {
		t.Errorf("%+v, %v at %d, %v", rec, ok, at, err)
	}
	if _, err := back.Watch(t.Context(), "", 3); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch of the lost history: %v", err)
	}
	if rev, err := back.Commit(t.Context(), put("a", "4")); err != nil || rev != at+1 {
		t.Errorf("%d, %v", rev, err)
	}
}

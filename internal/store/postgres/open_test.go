//go:build unix

package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestOpenRefuses(t *testing.T) {
	cases := []struct {
		name, statement string
		kind            any
		message         string
	}{
		{"a newer schema", `INSERT INTO proxima_schema (version) VALUES (2)`, new(*SchemaError),
			"schema version 2, this program supports up to 1"},
		{"a newer schema that needs newer programs", `INSERT INTO proxima_schema (version, needs) VALUES (2, 1), (3, 2)`, new(*SchemaError),
			"schema version 3, this program supports up to 1"},
		{"no bookkeeping", `DELETE FROM proxima_meta`, new(*DamagedError), "proxima_meta is empty"},
		{"a history that lost its end", `DELETE FROM proxima_history WHERE revision > 1`, new(*DamagedError),
			"recorded as 2, but the history ends at 1"},
		{"bookkeeping that was set back", `UPDATE proxima_meta SET revision = 1`, new(*DamagedError), "recorded as 1, but the history ends at 2"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			url := testkit.Postgres(t)
			s := open(t, url, Options{})
			for range 2 {
				if _, err := s.Commit(t.Context(), put("a", "1")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := session(t, url).Exec(t.Context(), c.statement); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), url, Options{})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !errors.As(err, c.kind) || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), "state postgres:///test") {
				t.Errorf("error %q (%T), want a %T with %q", err, err, c.kind, c.message)
			}
		})
	}
}

// TestOpenAdditiveSchema: tables that a newer program has added something to are used as
// before, and so are those of a program that wrote no column "needs".
func TestOpenAdditiveSchema(t *testing.T) {
	for name, statement := range map[string]string{
		"additive": `ALTER TABLE proxima_meta ADD COLUMN colour text; INSERT INTO proxima_schema (version, needs) VALUES (2, 1)`,
		"earlier":  `ALTER TABLE proxima_schema DROP COLUMN needs`,
	} {
		t.Run(name, func(t *testing.T) {
			url := testkit.Postgres(t)
			if err := open(t, url, Options{}).Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := session(t, url).Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
			if _, err := open(t, url, Options{}).Commit(t.Context(), put("a", "1")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNeedsOf(t *testing.T) {
	for text, want := range map[string]int{"CREATE TABLE x ();": 3, "-- needs: 2\nALTER": 2, "-- needs: 4\n": 0, "-- needs: x": 0} {
		if got, err := needsOf(text, 3); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
}

// TestOpenAtOnce: instances that start on an empty database at the same moment
// make one state.
func TestOpenAtOnce(t *testing.T) {
	url := with(t, testkit.Postgres(t), "search_path", "Odd Näme")
	epochs := make([]string, 4)
	var opening sync.WaitGroup
	for i := range epochs {
		opening.Go(func() {
			s, err := Open(context.Background(), url, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			epochs[i] = s.Epoch()
			_ = s.Close()
		})
	}
	opening.Wait()
	for _, epoch := range epochs {
		if epoch != epochs[0] || len(epoch) != 32 {
			t.Errorf("epochs %q", epochs)
		}
	}
}

// TestSecrets: no error and no log line has the password, however the URL is
// broken.
func TestSecrets(t *testing.T) {
	urls := []string{
		"postgres://user:hunter2@127.0.0.1:1/db",
		"postgres://user:hunter2@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/none",
		"postgres://user:hunter2@127.0.0.1:1/db?sslmode=no",
		"postgres://user@127.0.0.1:1/db?password=hunter2",
		"postgres://user@127.0.0.1:1/db?pass%77ord=hunter2&sslmode=no",
		"postgres://user@127.0.0.1:1/db?sslpassword=hunter2",
		"postgres://user:hunter2@127.0.0.1:x/db",
		"postgres://user:hunter2/@127.0.0.1/db",
		"postgres://user:1/hunter2@127.0.0.1/db",
		"postgres://user:#hunter2@127.0.0.1/db",
		"postgres://user:?hunter2@127.0.0.1/db",
		"postgres://user:hunter2%@127.0.0.1/db",
		"postgres://user:a@hunter2@127.0.0.1/db",
		"postgres://user:a:hunter2@127.0.0.1/db",
		"postgres://user:hunter2@127.0.0.1:1/db?x=%zz",
		"postgres://user:hunter2@127.0.0.1:1/db?search_path=a,b",
		"postgres://user:hunter2@127.0.0.1:1/db?pool_max_conns=x",
		"user=user password=hunter2 host=127.0.0.1",
		"mysql://user:hunter2@127.0.0.1/db",
	}
	for _, url := range urls {
		var log syncBuffer
		s, err := Open(t.Context(), url, Options{Logger: logTo(&log)})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s was opened", url)
			continue
		}
		t.Log(err)
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(log.String(), "hunter2") {
			t.Errorf("%s: the password is in %q or in the log:\n%s", url, err, log.String())
		}
	}
	// A server that trusts all connections ignores the password.
	var log syncBuffer
	s := open(t, with(t, testkit.Postgres(t), "password", "hunter2"), Options{Logger: logTo(&log)})
	if s.target.config.ConnConfig.Password != "hunter2" {
		t.Error("the password got lost")
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the password is in the log:\n%s", log.String())
	}
}

// TestHints: errors name the fix.
func TestHints(t *testing.T) {
	server := testkit.Postgres(t)
	for name, c := range map[string]struct{ url, message string }{
		"no database": {strings.Replace(server, "/test", "/none", 1), "create the database first"},
		"no server":   {"postgres://127.0.0.1:1/db", "connection refused"},
		"no TLS":      {"postgres://127.0.0.1:1/db?sslmode=sometimes", "sslmode"},
		"a standby":   {with(t, server, "default_transaction_read_only", "on"), "a standby, or set to be read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), c.url, Options{})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q does not contain %q on one line", err, c.message)
			}
			t.Log(err)
		})
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, testkit.Postgres(t), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestStrip(t *testing.T) {
	for url, want := range map[string][2]string{
		"postgres://h/db":                        {"postgres://h/db?", ""},
		"postgres://u:p%40%2Fss@h1:1,h2:2/db":    {"postgres://u@h1:1,h2:2/db?", "p@/ss"},
		"postgresql://u@h/db?sslmode=require":    {"postgresql://u@h/db?sslmode=require", ""},
		"postgres:///db?host=/run/pg&password=a": {"postgres:///db?host=%2Frun%2Fpg", "a"},
		"postgres://h/db?options=-c%20a%3Db+c":   {"postgres://h/db?options=-c%20a%3Db%2Bc", ""},
	} {
		stripped, password, err := strip(url)
		if stripped != want[0] || password != want[1] || err != nil {
			t.Errorf("%s: %q, %q, %v; want %q", url, stripped, password, err, want)
		}
	}
}

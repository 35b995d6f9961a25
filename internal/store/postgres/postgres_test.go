//go:build unix

package postgres

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
	"github.com/proxima-mesh/proxima/internal/store/watch"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) {
	flag.Parse()
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "rapid.checks" })
	if !explicit {
		// Each check opens a store, which is slower here than elsewhere.
		if err := flag.Set("rapid.checks", "25"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

var schemas atomic.Int64

// inSchema names a state of its own within a database.
func inSchema(t testing.TB, database string) string {
	t.Helper()
	return with(t, database, "search_path", fmt.Sprintf("state %d", schemas.Add(1)))
}

// with sets a parameter of a URL.
func with(t testing.TB, rawURL, key, value string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(key, value)
	u.RawQuery = query.Encode()
	return u.String()
}

func open(t testing.TB, url string, opts Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// session is a separate connection, to inspect the database and to inject faults.
func session(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func put(key, value string) store.Txn {
	return store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: []byte(value)}}}
}

func TestContract(t *testing.T) {
	database := testkit.Postgres(t)
	for name, recent := range map[string]watch.Limits{
		"recent events in memory":   {},
		"history from the database": {Events: 1, Bytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
			urls := map[store.Store]string{}
			start := func(t *testing.T, url string) store.Store {
				s := open(t, url, Options{Clock: clock, Recent: recent})
				urls[s] = url
				return s
			}
			storetest.Run(t,
				func(t *testing.T) store.Store { return start(t, inSchema(t, database)) },
				storetest.Options{Clock: clock, Reopen: func(t *testing.T, s store.Store) store.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					return start(t, urls[s])
				}})
		})
	}
}

// TestContractUnderFaults: a caller that tries again loses nothing by faults.
func TestContractUnderFaults(t *testing.T) {
	database := testkit.Postgres(t)
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	storetest.Run(t, func(t *testing.T) store.Store {
		s := open(t, inSchema(t, database), Options{Clock: clock})
		return faulty.Retrying{Store: faulty.New(s, 1, faulty.Probabilities{Calls: 0.1, Batches: 0.1})}
	}, storetest.Options{Clock: clock})
}

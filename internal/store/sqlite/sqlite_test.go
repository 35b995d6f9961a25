package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	for name, recent := range map[string]watch.Limits{
		"recent events in memory": {},
		"history from the file":   {Events: 1, Bytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
			open := func(t *testing.T, path string) store.Store {
				s, err := Open(t.Context(), path, Options{Clock: clock, Recent: recent})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			storetest.Run(t,
				func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "state.db")) },
				storetest.Options{Clock: clock, Reopen: func(t *testing.T, s store.Store) store.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					return open(t, s.(*Store).path)
				}})
		})
	}
}

// TestContractUnderFaults: a caller that tries again loses nothing by faults.
func TestContractUnderFaults(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	open := func(t *testing.T, path string) store.Store {
		s, err := Open(t.Context(), path, Options{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return faulty.Retrying{Store: faulty.New(s, 1, faulty.Probabilities{Calls: 0.1, Batches: 0.1})}
	}
	storetest.Run(t,
		func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "state.db")) },
		storetest.Options{Clock: clock, Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, s.(faulty.Retrying).Store.Store.(*Store).path)
		}})
}

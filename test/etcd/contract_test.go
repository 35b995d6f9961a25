package etcd_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		runChild(child)
	}
	flag.Parse()
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "rapid.checks" })
	if !explicit {
		// Each check opens a store, which takes 0.1 s and more here.
		if err := flag.Set("rapid.checks", "15"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	code := m.Run()
	stopShared()
	os.Exit(code)
}

func open(t testing.TB, url string, opts etcd.Options) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(context.Background(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
}

func TestContract(t *testing.T) {
	// A compaction is one of the whole server, so no other state may be on it: a
	// compaction by another test would look like one by this one.
	for name, recent := range map[string]watch.Limits{
		"recent events in memory": {},
		"history from etcd":       {Events: 1, Bytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			server := startMember(t)
			urls := map[store.Store]string{}
			start := func(t *testing.T, url string) store.Store {
				s := open(t, url, etcd.Options{Clock: clock, Recent: recent})
				urls[s] = url
				return s
			}
			storetest.Run(t,
				func(t *testing.T) store.Store { return start(t, stateURL(server)) },
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
	clock := newClock()
	server := startMember(t)
	storetest.Run(t, func(t *testing.T) store.Store {
		s := open(t, stateURL(server), etcd.Options{Clock: clock})
		return faulty.Retrying{Store: faulty.New(s, 1, faulty.Probabilities{Calls: 0.1, Batches: 0.1})}
	}, storetest.Options{Clock: clock})
}

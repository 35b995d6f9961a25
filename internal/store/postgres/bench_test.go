//go:build unix

package postgres

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// benched opens the stores to compare, each n times on one state.
var benched = []struct {
	name string
	open func(b *testing.B) []store.Store
}{
	{"memory", func(*testing.B) []store.Store { return []store.Store{memory.New(memory.Options{})} }},
	{"sqlite", func(b *testing.B) []store.Store {
		s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), sqlite.Options{})
		if err != nil {
			b.Fatal(err)
		}
		return []store.Store{s}
	}},
	{"postgres", func(b *testing.B) []store.Store {
		return []store.Store{open(b, testkit.StartPostgres(b).URL(), Options{})}
	}},
	{"postgres-twice", func(b *testing.B) []store.Store {
		url := testkit.StartPostgres(b).URL()
		return []store.Store{open(b, url, Options{}), open(b, url, Options{})}
	}},
}

// BenchmarkCommit updates keys by compare-and-swap, values of 1 KiB, as the API
// server does. Where there are two instances, clients are shared out.
func BenchmarkCommit(b *testing.B) {
	for _, c := range benched {
		for _, clients := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/clients=%d", c.name, clients), func(b *testing.B) {
				stores := c.open(b)
				latencies := make([][]time.Duration, clients)
				var left atomic.Int64
				left.Store(int64(b.N))
				var done sync.WaitGroup
				b.ResetTimer()
				for i := range clients {
					done.Go(func() { latencies[i] = client(b, stores[i%len(stores)], i, &left) })
				}
				done.Wait()
				b.StopTimer()
				report(b, slices.Concat(latencies...))
				for _, s := range stores {
					_ = s.Close()
				}
			})
		}
	}
}

func client(b *testing.B, s store.Store, c int, left *atomic.Int64) (latencies []time.Duration) {
	const keys = 100
	value := make([]byte, 1024)
	var at [keys]store.Revision
	for i := 0; left.Add(-1) >= 0; i++ {
		key := fmt.Sprintf("/registry/things/%d/%d", c, i%keys)
		begin := time.Now()
		rev, err := s.Commit(b.Context(), store.Txn{
			Conditions: []store.Condition{{Key: key, Modified: at[i%keys]}},
			Ops:        []store.Op{{Kind: store.Put, Key: key, Value: value}},
		})
		if err != nil {
			b.Error(err)
			return latencies
		}
		latencies = append(latencies, time.Since(begin))
		at[i%keys] = rev
	}
	return latencies
}

func report(b *testing.B, latencies []time.Duration) {
	slices.Sort(latencies)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
	b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkWatch is the time from a commit's return to its event: at the store
// that committed it is there already, another instance has to hear of it.
func BenchmarkWatch(b *testing.B) {
	for _, c := range benched {
		b.Run(c.name, func(b *testing.B) {
			stores := c.open(b)
			w, err := stores[len(stores)-1].Watch(b.Context(), "", 0)
			if err != nil {
				b.Fatal(err)
			}
			arrived := make(chan time.Time)
			go func() {
				for range w.Batches() {
					arrived <- time.Now()
				}
			}()
			var latencies []time.Duration
			for b.Loop() {
				if _, err := stores[0].Commit(b.Context(), put("k", "v")); err != nil {
					b.Fatal(err)
				}
				returned := time.Now()
				latencies = append(latencies, max(0, (<-arrived).Sub(returned)))
			}
			report(b, latencies)
			w.Close()
			for _, s := range stores {
				_ = s.Close()
			}
		})
	}
}

// BenchmarkList reads pages as an API server does that starts.
func BenchmarkList(b *testing.B) {
	const keys = 10000
	for _, c := range benched[:3] {
		s := c.open(b)[0]
		for range 2 {
			var ops []store.Op
			for i := range keys {
				ops = append(ops, store.Op{Kind: store.Put, Key: fmt.Sprintf("k/%05d", i), Value: make([]byte, 1024)})
			}
			if _, err := s.Commit(b.Context(), store.Txn{Ops: ops}); err != nil {
				b.Fatal(err)
			}
		}
		for name, opts := range map[string]store.ListOptions{
			"newest=10000": {},
			"past=10000":   {At: keys},
			"newest=500":   {Limit: 500},
			"past=500":     {At: keys, Limit: 500},
		} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					if _, err := s.List(b.Context(), opts); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		_ = s.Close()
	}
}

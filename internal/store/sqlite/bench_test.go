package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// BenchmarkSync is one durable write of a page to the disk, the lower bound for a
// single commit.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	for b.Loop() {
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a state of 10,000 objects that a killed process left, with
// its log to recover and the checks; the goal is a second at the most.
func BenchmarkOpen(b *testing.B) {
	image := left(b)
	var took time.Duration
	for b.Loop() {
		took += reopen(b, image)
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "open-ms")
}

// BenchmarkCommit updates keys by compare-and-swap, values of 1 KiB, as the API
// server does.
func BenchmarkCommit(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s, err := Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			latencies := make([][]time.Duration, clients)
			var left atomic.Int64
			left.Store(int64(b.N))
			var done sync.WaitGroup
			b.ResetTimer()
			for c := range clients {
				done.Go(func() {
					latencies[c] = client(b, s, c, &left)
				})
			}
			done.Wait()
			b.StopTimer()
			all := slices.Sorted(slices.Values(slices.Concat(latencies...)))
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		})
	}
}

func client(b *testing.B, s *Store, c int, left *atomic.Int64) (latencies []time.Duration) {
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

// BenchmarkList reads pages as an API server does that starts.
func BenchmarkList(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const keys = 10000
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
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.List(b.Context(), opts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

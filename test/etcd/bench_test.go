package etcd_test

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/postgres"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// delay of a database in another place, there and back.
const delay = 5 * time.Millisecond

// benched opens the stores to compare: instances on one state. All sync to the
// disk before they acknowledge.
var benched = []struct {
	name string
	open func(b *testing.B) []store.Store
}{
	{"sqlite", func(b *testing.B) []store.Store {
		s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "state.db"), sqlite.Options{})
		if err != nil {
			b.Fatal(err)
		}
		return []store.Store{s}
	}},
	{"postgres/instances=1", func(b *testing.B) []store.Store { return openPostgres(b, 1, 0) }},
	{"postgres/instances=3", func(b *testing.B) []store.Store { return openPostgres(b, 3, 0) }},
	{"postgres/instances=3/delay=5ms", func(b *testing.B) []store.Store { return openPostgres(b, 3, delay) }},
	{"etcd/instances=1", func(b *testing.B) []store.Store { return openEtcd(b, 1, 0) }},
	{"etcd/instances=3", func(b *testing.B) []store.Store { return openEtcd(b, 3, 0) }},
	{"etcd/instances=1/delay=5ms", func(b *testing.B) []store.Store { return openEtcd(b, 1, delay) }},
	{"etcd/instances=3/delay=5ms", func(b *testing.B) []store.Store { return openEtcd(b, 3, delay) }},
	{"etcd/instances=3/members=3", func(b *testing.B) []store.Store {
		u := startCluster(b).url()
		return openAll(b, 3, func() (store.Store, error) { return etcd.Open(b.Context(), u, etcd.Options{}) })
	}},
}

// BenchmarkCommit updates keys by compare-and-swap, values of 1 KiB, as the API
// server does. Clients are shared out to the instances.
func BenchmarkCommit(b *testing.B) {
	for _, c := range benched {
		for _, clients := range []int{1, 24, 64} {
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
				all := slices.Concat(latencies...)
				slices.Sort(all)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
				b.ReportMetric(0, "ns/op") // says the same
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
		revision, err := s.Commit(b.Context(), store.Txn{
			Conditions: []store.Condition{{Key: key, Modified: at[i%keys]}},
			Ops:        []store.Op{{Kind: store.Put, Key: key, Value: value}},
		})
		if err != nil {
			b.Error(err)
			return latencies
		}
		latencies = append(latencies, time.Since(begin))
		at[i%keys] = revision
	}
	return latencies
}

func openAll(b *testing.B, n int, open func() (store.Store, error)) (all []store.Store) {
	b.Helper()
	for range n {
		s, err := open()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		all = append(all, s)
	}
	return all
}

func openEtcd(b *testing.B, instances int, delay time.Duration) []store.Store {
	b.Helper()
	address := startMember(b, func(c *embed.Config) { c.UnsafeNoFsync = false }).endpoint()
	if delay > 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		slow(b, l, "tcp", address, delay)
		address = l.Addr().String()
	}
	return openAll(b, instances, func() (store.Store, error) {
		return etcd.Open(b.Context(), "etcd://"+address, etcd.Options{})
	})
}

func openPostgres(b *testing.B, instances int, delay time.Duration) []store.Store {
	b.Helper()
	address := testkit.StartPostgres(b).URL()
	if delay > 0 {
		address = slowPostgres(b, address, delay)
	}
	return openAll(b, instances, func() (store.Store, error) {
		return postgres.Open(b.Context(), address, postgres.Options{})
	})
}

// slowPostgres puts a delay before a server that is reached by a Unix socket.
func slowPostgres(b *testing.B, address string, delay time.Duration) string {
	b.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	const socket = ".s.PGSQL.5432"
	query := u.Query()
	server, front := query.Get("host"), b.TempDir()
	l, err := net.Listen("unix", filepath.Join(front, socket))
	if err != nil {
		b.Fatal(err)
	}
	slow(b, l, "unix", filepath.Join(server, socket), delay)
	query.Set("host", front)
	u.RawQuery = query.Encode()
	return u.String()
}

// slow passes connections on, each direction half of the delay later. It keeps
// the bandwidth: what is on its way does not wait for what is before it.
func slow(b *testing.B, l net.Listener, network, server string, delay time.Duration) {
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			conn, err := net.Dial(network, server)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { carry(conn, client, delay/2) })
			running.Go(func() { carry(client, conn, delay/2) })
		}
	})
	b.Cleanup(func() { _ = l.Close(); running.Wait() })
}

func carry(to, from net.Conn, delay time.Duration) {
	type part struct {
		data []byte
		due  time.Time
	}
	parts := make(chan part, 4096)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer to.Close()
		for p := range parts {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	})
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parts <- part{buffer[:n], time.Now().Add(delay)}
		}
		if err != nil {
			break
		}
	}
	close(parts)
	writing.Wait()
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// Goals of durable creates per second with 8 clients.
const (
	goalSQLite   = 1000
	goalPostgres = 800
)

// writes measures creates and updates of ConfigMaps on each store.
func (b *bench) writes(ctx context.Context) error {
	fsync, err := syncTime(max(20, b.creates/40))
	if err != nil {
		return err
	}
	b.atMost("the disk: write and sync 4 KiB, p50", fsync, 0, "%.2f ms")
	url, end, err := b.server()
	if err != nil {
		b.row("postgres", "skipped: "+err.Error(), "", "")
	} else {
		defer end()
	}
	for _, s := range []struct {
		name, flag string
		goal       float64
	}{
		{"memory", "memory", 0}, {"sqlite", "sqlite:", goalSQLite}, {"postgres", url, goalPostgres},
	} {
		if s.flag == "" {
			continue
		}
		if err := b.writesOn(ctx, s.name, s.flag, s.goal); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// server is a PostgreSQL server, as durable as its defaults make it.
func (b *bench) server() (url string, end func(), err error) {
	if b.postgres != "" {
		return b.postgres, func() {}, nil
	}
	return testkit.LaunchPostgres()
}

func (b *bench) writesOn(ctx context.Context, name, store string, goal float64) error {
	p, err := b.startPlane(ctx, store)
	if err != nil {
		return err
	}
	defer p.end()
	for _, n := range []int{1, 8} {
		clients, err := p.clients(ctx, n)
		if err != nil {
			return err
		}
		count := b.creates
		if n == 1 {
			count /= 4
		}
		before, err := p.cpu()
		if err != nil {
			return err
		}
		took, err := each(n, count, func(w, i int) error {
			_, err := clients[w].CoreV1().ConfigMaps("default").Create(ctx, configMap(fmt.Sprintf("c-%d-%d", n, i), 100), metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		only := map[int]float64{8: goal}[n]
		b.atLeast(fmt.Sprintf("%s, %d clients: creates", name, n), float64(count)/took.Seconds(), only, "%.0f/s")
		took, err = each(n, count, func(w, i int) error {
			_, err := clients[w].CoreV1().ConfigMaps("default").Update(ctx, configMap(fmt.Sprintf("c-%d-%d", n, i), 120), metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		b.atLeast(fmt.Sprintf("%s, %d clients: updates", name, n), float64(count)/took.Seconds(), 0, "%.0f/s")
		after, err := p.cpu()
		if err != nil {
			return err
		}
		b.atMost(fmt.Sprintf("%s, %d clients: CPU of the control plane per write", name, n), perChange(before, after, 2*count), 0, "%.0f µs")
	}
	return nil
}

// syncTime is what durability costs here at the least: the median of writing a
// page at the end of a file and syncing it.
func syncTime(rounds int) (float64, error) {
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := make([]byte, 4096)
	var times durations
	for range rounds {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	return times.quantile(0.5), nil
}

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/cursor"
)

// idle is how many cursors are measured.
const idle = 10_000

// heap in bytes, of what is reachable.
func heap() float64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) + float64(m.StackInuse)
}

// measureCursors measures the memory of durable cursors: of their rows and what the feed keeps for them, and when all are open.
func measureCursors(dir string, _ int, out table, _ int) error {
	f, err := openFed(filepath.Join(dir, "cursors"), true)
	if err != nil {
		return err
	}
	defer f.stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all, err := cursor.New(ctx, cursor.Config{Store: f, Feed: f.feed})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = all.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for i := range 100 {
		if err := f.put(i); err != nil {
			return err
		}
	}
	before := heap()
	name := func(i int) string { return fmt.Sprintf("pulsar/default/shop/services/subscription-%d", i) }
	for i := range idle {
		if _, err := all.Create(ctx, name(i), cursor.Shared, 10, nil); err != nil {
			return err
		}
	}
	out.add("idle", (heap()-before)/1e6)
	open := make([]*cursor.Cursor, idle)
	for i := range open {
		if open[i], err = all.Open(ctx, name(i)); err != nil {
			return err
		}
	}
	out.add("open", (heap()-before)/1e6)
	began := time.Now()
	for i, c := range open {
		if err := c.AckThrough(20); err != nil {
			return fmt.Errorf("cursor %d: %w", i, err)
		}
		if err := c.Flush(ctx); err != nil {
			return err
		}
	}
	out.add("acks", idle/time.Since(began).Seconds())
	out.add("acked", (heap()-before)/1e6)
	for _, c := range open {
		if err := c.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

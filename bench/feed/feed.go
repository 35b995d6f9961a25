package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// group is how many entries are synced together.
const group = 500

// value as an object is, of some 200 bytes.
func value(i int) []byte {
	text, _ := json.Marshal(map[string]any{
		"kind": "Service", "metadata": map[string]any{"name": fmt.Sprintf("s%d", i%1000), "uid": fmt.Sprintf("%016x", rand.Uint64())},
		"spec": map[string]any{"ports": []int{i % 65536}, "clusterIP": fmt.Sprintf("10.96.%d.%d", i>>8&255, i&255)}, "generation": i,
	})
	for len(text) < 200 {
		text = append(text, ' ')
	}
	return text
}

func entries(n int) []*seglog.Entry {
	out := make([]*seglog.Entry, n)
	for i := range out {
		out[i] = &seglog.Entry{
			Position: seglog.Position(i + 1), Created: seglog.Position(i + 1), Time: time.Now(), Kind: seglog.Put, Last: true, Key: fmt.Sprintf("/registry/services/specs/shop/s%d", i%1000), Value: value(i),
		}
	}
	return out
}

func openLog(dir string) (*seglog.Log, error) {
	return seglog.Open(seglog.Options{Roots: []string{filepath.Join(dir, "feed")}, Epoch: "bench", Reserve: 1})
}

// fill a log, durably, in groups.
func fill(l *seglog.Log, all []*seglog.Entry) error {
	for len(all) > 0 {
		n := min(group, len(all))
		if err := l.Append(all[:n], 0); err != nil {
			return err
		}
		if err := l.Sync(); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func measureAppend(dir string, n int, out table, round int) error {
	all := entries(n)
	return alternate(round, func() error {
		l, err := openLog(dir)
		if err != nil {
			return err
		}
		defer l.Close()
		began := time.Now()
		if err := fill(l, all); err != nil {
			return err
		}
		out.add("feed", float64(n)/time.Since(began).Seconds())
		return nil
	}, func() error {
		s, err := openStream(dir)
		if err != nil {
			return err
		}
		defer s.close()
		took, err := s.fill(all)
		out.add("nats", float64(n)/took.Seconds())
		return err
	}, func() error {
		if peer == nil {
			return nil
		}
		took, err := peer.fill(peer.topic(), all)
		out.add("pulsar", float64(n)/took.Seconds())
		return err
	})
}

func measureCatchUp(dir string, n int, out table, round int) error {
	all := entries(n)
	return alternate(round, func() error {
		l, err := openLog(dir)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := fill(l, all); err != nil {
			return err
		}
		began, read := time.Now(), 0
		for r := l.Read(0); ; {
			got, err := r.Poll()
			if err != nil {
				return err
			}
			if len(got) == 0 {
				break
			}
			read += len(got)
		}
		if read != n {
			return fmt.Errorf("%d entries of %d were read", read, n)
		}
		out.add("feed", float64(n)/time.Since(began).Seconds())
		return nil
	}, func() error {
		s, err := openStream(dir)
		if err != nil {
			return err
		}
		defer s.close()
		if _, err := s.fill(all); err != nil {
			return err
		}
		took, err := s.read(n)
		out.add("nats", float64(n)/took.Seconds())
		return err
	}, func() error {
		if peer == nil {
			return nil
		}
		topic := peer.topic()
		if _, err := peer.fill(topic, all); err != nil {
			return err
		}
		took, err := peer.read(topic, n)
		out.add("pulsar", float64(n)/took.Seconds())
		return err
	})
}

// fed is a store on disk with a feed that follows it.
type fed struct {
	store.Store
	feed *feed.Feed
	stop func()
}

func openFed(dir string, with bool) (*fed, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s, err := sqlite.Open(context.Background(), filepath.Join(dir, "store.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	out := &fed{Store: s, stop: func() { s.Close() }}
	if !with {
		return out, nil
	}
	out.feed, err = feed.Open(context.Background(), feed.Config{Store: s, Prefix: "/registry/", Roots: []string{filepath.Join(dir, "feed")}})
	if err != nil {
		s.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = out.feed.Run(ctx) }()
	out.stop = func() { cancel(); <-done; s.Close() }
	return out, nil
}

func (f *fed) put(i int) error {
	_, err := f.Commit(context.Background(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: fmt.Sprintf("/registry/services/specs/shop/s%d", i%1000), Value: value(i)}}})
	return err
}

func measureTail(dir string, n int, out table, round int) error {
	n = max(min(n/100, 2000), 20)
	return alternate(round, func() error {
		f, err := openFed(filepath.Join(dir, "fed"), true)
		if err != nil {
			return err
		}
		defer f.stop()
		arrived := make(chan time.Time, n)
		go func() {
			for r := f.feed.Log.Read(0); ; {
				got, err := r.Next(context.Background())
				if err != nil {
					return
				}
				for range got {
					arrived <- time.Now()
				}
			}
		}()
		var after, all []time.Duration
		for i := range n {
			began := time.Now()
			if err := f.put(i); err != nil {
				return err
			}
			acked := time.Now()
			at := <-arrived
			after, all = append(after, max(at.Sub(acked), 0)), append(all, at.Sub(began))
			time.Sleep(time.Millisecond)
		}
		tail(out, "feed", after, all)
		return nil
	}, func() error {
		s, err := openStream(filepath.Join(dir, "nats"))
		if err != nil {
			return err
		}
		defer s.close()
		after, all, err := s.tail(n)
		if err == nil {
			tail(out, "nats", after, all)
		}
		return err
	}, func() error {
		if peer == nil {
			return nil
		}
		after, all, err := peer.tail(n)
		if err == nil {
			tail(out, "pulsar", after, all)
		}
		return err
	})
}

func tail(out table, name string, after, all []time.Duration) {
	out.add(name+"50", quantile(after, 0.5))
	out.add(name+"99", quantile(after, 0.99))
	out.add(name+"All50", quantile(all, 0.5))
	out.add(name+"All99", quantile(all, 0.99))
}

func measureCost(dir string, n int, out table, round int) error {
	n = max(n/10, 100)
	one := func(name string, with bool) func() error {
		return func() error {
			f, err := openFed(filepath.Join(dir, name), with)
			if err != nil {
				return err
			}
			defer f.stop()
			var writers sync.WaitGroup
			var next atomic.Int64
			var failed atomic.Value
			began := time.Now()
			for range 8 {
				writers.Go(func() {
					for {
						i := int(next.Add(1))
						if i > n {
							return
						}
						if err := f.put(i); err != nil {
							failed.Store(err)
							return
						}
					}
				})
			}
			writers.Wait()
			if err, ok := failed.Load().(error); ok {
				return err
			}
			out.add(name, float64(n)/time.Since(began).Seconds())
			return nil
		}
	}
	return alternate(round, one("alone", false), one("with", true))
}

package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// checkHammer lets writers increment shared counters by compare-and-swap while
// watchers rebuild the state. No increment is lost, every watcher ends with the
// state that a list shows, and saw every revision once.
func checkHammer(f *fixture) {
	const writers, increments, counters, watchers = 8, 40, 3, 4
	seen := make([]replica, watchers)
	var done, following sync.WaitGroup
	stopped := make(chan struct{}) // closed when end is known
	var end store.Revision
	for i := range seen {
		w := f.watch("n/", 0)
		following.Go(func() { seen[i].follow(w, stopped, &end) })
	}
	for i := range writers {
		done.Go(func() {
			for j := range increments {
				if err := increment(f, fmt.Sprintf("n/%d", (i+j)%counters)); err != nil {
					f.Errorf("increment: %v", err)
					return
				}
			}
		})
	}
	done.Wait()
	end = f.revision()
	close(stopped)
	following.Wait()
	f.equal("changes", end, store.Revision(writers*increments))
	want := contents(f.list(store.ListOptions{}))
	f.equal("sum of the counters", sum(want), writers*increments)
	for i := range seen {
		if seen[i].err != nil {
			f.Errorf("watcher %d: %v", i, seen[i].err)
		}
		f.equal(fmt.Sprintf("watcher %d", i), seen[i].state, want)
	}
}

func increment(f *fixture, key string) error {
	for {
		rec, _, _, err := f.s.Get(f.Context(), key, 0)
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(string(rec.Value))
		_, err = f.s.Commit(f.Context(), store.Txn{
			Conditions: []store.Condition{{Key: key, Modified: rec.Modified}},
			Ops:        []store.Op{put(key, strconv.Itoa(n+1))},
		})
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}

// replica is the state as a watcher rebuilds it.
type replica struct {
	state    map[string]string
	revision store.Revision
	err      error
}

// follow applies batches until the writers are done and all they wrote is seen.
// The watcher is the only one that writes its replica.
func (r *replica) follow(w store.Watcher, stopped <-chan struct{}, last *store.Revision) {
	r.state = map[string]string{}
	for {
		select {
		case b, ok := <-w.Batches():
			if !ok {
				r.err = fmt.Errorf("ended: %w", w.Err())
				return
			}
			r.apply(b)
		case <-stopped:
			batches, err := collect(w, *last)
			for _, b := range batches {
				r.apply(b)
			}
			r.err = errors.Join(r.err, err)
			return
		}
	}
}

func (r *replica) apply(b store.Batch) {
	for _, e := range b.Events {
		before, existed := r.state[e.Record.Key]
		switch {
		case e.Record.Modified != r.revision+1:
			r.err = errors.Join(r.err, fmt.Errorf("revision %d follows %d", e.Record.Modified, r.revision))
		case existed != (e.Prev != nil) || (existed && before != string(e.Prev.Value)):
			r.err = errors.Join(r.err, fmt.Errorf("revision %d: before it was %q, the event has %+v", e.Record.Modified, before, e.Prev))
		}
		r.revision = e.Record.Modified
		if e.Kind == store.Put {
			r.state[e.Record.Key] = string(e.Record.Value)
		} else {
			delete(r.state, e.Record.Key)
		}
	}
}

// checkAtomicity moves amounts between accounts in transactions. Neither a
// reader nor a watcher ever sees a sum that is off, nor a batch that is split.
func checkAtomicity(f *fixture) {
	const accounts, movers, moves, start = 4, 4, 30, 100
	var ops []store.Op
	for i := range accounts {
		ops = append(ops, put(fmt.Sprintf("acct/%d", i), strconv.Itoa(start)))
	}
	f.commit(ops...)
	w := f.watch("", 0)
	stop := make(chan struct{})
	var moving, reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				page, err := f.s.List(f.Context(), store.ListOptions{Prefix: "acct/"})
				if err != nil || sum(contents(page)) != accounts*start {
					f.Errorf("a reader at %d sees %v, %v", page.Revision, contents(page), err)
					return
				}
				// What was read can be followed at once.
				w, err := f.s.Watch(f.Context(), "", page.Revision)
				if err != nil {
					f.Errorf("watch after a list at %d: %v", page.Revision, err)
					return
				}
				w.Close()
			}
		})
	}
	for i := range movers {
		moving.Go(func() {
			for j := range moves {
				if err := move(f, fmt.Sprintf("acct/%d", i%accounts), fmt.Sprintf("acct/%d", (i+j%3+1)%accounts)); err != nil {
					f.Errorf("move: %v", err)
					return
				}
			}
		})
	}
	moving.Wait()
	close(stop)
	reading.Wait()
	batches, err := collect(w, f.revision())
	if err != nil {
		f.Fatal(err)
	}
	var r replica
	r.state = map[string]string{}
	for _, b := range batches {
		r.apply(b)
		if sum(r.state) != accounts*start {
			f.Fatalf("a watcher at %d sees %v", b.Revision, r.state)
		}
	}
	if r.err != nil {
		f.Error(r.err)
	}
	if got, want := len(batches), movers*moves+1; got != want && (got > want || !f.s.Properties().Merges) {
		f.Errorf("%d batches for %d transactions", got, want)
	}
}

func sum(state map[string]string) int {
	total := 0
	for _, v := range state {
		n, _ := strconv.Atoi(v)
		total += n
	}
	return total
}

func move(f *fixture, from, to string) error {
	for {
		page, err := f.s.List(f.Context(), store.ListOptions{Prefix: "acct/"})
		if err != nil {
			return err
		}
		var txn store.Txn
		for _, r := range page.Records {
			by := map[string]int{from: -1, to: 1}[r.Key]
			if by == 0 {
				continue
			}
			n, _ := strconv.Atoi(string(r.Value))
			txn.Conditions = append(txn.Conditions, store.Condition{Key: r.Key, Modified: r.Modified})
			txn.Ops = append(txn.Ops, put(r.Key, strconv.Itoa(n+by)))
		}
		_, err = f.s.Commit(f.Context(), txn)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
}

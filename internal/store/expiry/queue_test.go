package expiry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDeadline(t *testing.T) {
	now := time.Date(2025, 1, 2, 3, 4, 5, 6, time.FixedZone("east", 3600))
	for ttl, want := range map[time.Duration]time.Time{
		0:                      {},
		1:                      now.Add(time.Second),
		time.Second:            now.Add(time.Second),
		time.Second + 1:        now.Add(2 * time.Second),
		90 * time.Minute:       now.Add(90 * time.Minute),
		999 * time.Millisecond: now.Add(time.Second),
	} {
		if got := Deadline(now, ttl); !got.Equal(want) {
			t.Errorf("%v: %v, want %v", ttl, got, want)
		}
	}
}

// recorder commits by taking note, and shows the queue what it did.
type recorder struct {
	queue *Queue

	mu       sync.Mutex
	revision store.Revision
	keys     map[string]store.Revision
	log      []string
	errs     []error // for the next commits
}

func (r *recorder) put(key string, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	r.keys[key] = r.revision
	r.queue.Observe([]store.Event{{Kind: store.Put, Record: store.Record{
		Key: key, Modified: r.revision, Expires: Deadline(time.Now(), ttl),
	}}})
}

func (r *recorder) commit(_ context.Context, txn store.Txn) (store.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) > 0 {
		err := r.errs[0]
		r.errs = r.errs[1:]
		r.log = append(r.log, fmt.Sprint("error: ", err))
		return 0, err
	}
	for _, c := range txn.Conditions {
		if r.keys[c.Key] != c.Modified {
			return 0, &store.ConflictError{Condition: c}
		}
	}
	text := ""
	for _, op := range txn.Ops {
		text += op.Key
		delete(r.keys, op.Key)
		r.queue.Observe([]store.Event{{Kind: store.Delete, Record: store.Record{Key: op.Key}}})
	}
	r.log = append(r.log, text)
	return 0, nil
}

// run lets a queue work in a bubble of its own time.
func run(t *testing.T, f func(r *recorder, wait func(time.Duration) []string)) {
	runBy(t, clock.RealClock{}, f)
}

func runBy(t *testing.T, c clock.Clock, f func(r *recorder, wait func(time.Duration) []string)) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{queue: New(c, slog.New(slog.DiscardHandler)), keys: map[string]store.Revision{}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.queue.Run(ctx, r.commit)
		}()
		f(r, func(d time.Duration) []string {
			time.Sleep(d) // the bubble's time
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			log := r.log
			r.log = nil
			return log
		})
		cancel()
		<-done
	})
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestRun(t *testing.T) {
	run(t, func(r *recorder, wait func(time.Duration) []string) {
		r.put("b", 2*time.Second)
		r.put("a", time.Second)
		r.put("c", time.Hour)
		r.put("d", 2*time.Second)
		r.put("e", 2*time.Second)
		r.put("e", 0) // lives on
		expect(t, "before", wait(time.Second-1))
		expect(t, "first", wait(1), "a")
		expect(t, "together", wait(time.Second), "bd")
		expect(t, "late", wait(time.Hour-2*time.Second-1))
		r.put("c", time.Second)
		expect(t, "renewed", wait(time.Second-1))
		expect(t, "renewed, due", wait(1), "c")
	})
}

// TestFailure: an error of the medium is not the end.
func TestFailure(t *testing.T) {
	run(t, func(r *recorder, wait func(time.Duration) []string) {
		r.mu.Lock()
		r.errs = []error{errors.New("disk full")}
		r.mu.Unlock()
		r.put("a", time.Second)
		expect(t, "refused", wait(time.Second), "error: disk full")
		expect(t, "again", wait(retry), "a")
	})
}

// TestRace: a key that is written when its deletion is on the way survives, and
// does not save the others.
func TestRace(t *testing.T) {
	run(t, func(r *recorder, wait func(time.Duration) []string) {
		r.put("a", time.Second)
		r.put("b", time.Second)
		r.put("c", time.Second)
		r.mu.Lock()
		r.keys["b"]++ // written, but not observed yet
		r.mu.Unlock()
		expect(t, "one by one", wait(time.Second), "a", "c")
		r.put("b", time.Second)
		expect(t, "written with a deadline", wait(time.Second), "b")
	})
}

// dozing is a clock that lets time pass before it starts its first timer, as a
// machine does that is busy or asleep.
type dozing struct {
	clock.RealClock
	once sync.Once
}

func (d *dozing) NewTimer(wait time.Duration) clock.Timer {
	d.once.Do(func() { time.Sleep(900 * time.Millisecond) }) // of the bubble
	return d.RealClock.NewTimer(wait)
}

// TestTimeThatPassesBeforeTheTimer does not make a key live longer.
func TestTimeThatPassesBeforeTheTimer(t *testing.T) {
	runBy(t, &dozing{}, func(r *recorder, wait func(time.Duration) []string) {
		expect(t, "nothing", wait(0))
		r.put("a", time.Second)
		expect(t, "in time", wait(time.Second), "a")
	})
}

package keyring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// bed is a store with encrypted records, and what rotates them.
type bed struct {
	*testing.T
	*Rotation
	inner *memory.Store
	now   time.Time
	// rewritten counts; hook runs before each, and may fail it.
	rewritten int
	hook      func(key string) error
}

func newBed(t *testing.T, records int) *bed {
	b := &bed{T: t, inner: memory.New(memory.Options{}), now: time.Now(), hook: func(string) error { return nil }}
	t.Cleanup(func() { _ = b.inner.Close() })
	b.Rotation = &Rotation{
		Ring: openRing(t, keyFile(t)), Store: b.inner, Prefixes: []string{"/secrets/"}, Rewrite: b.rewrite,
		Now: func() time.Time { return b.now },
	}
	for i := range records {
		b.put(fmt.Sprintf("/secrets/%04d", i), fmt.Sprint("plain ", i))
	}
	plain := []store.Op{{Kind: store.Put, Key: "/other", Value: []byte("plain")}}
	if _, err := b.inner.Commit(t.Context(), store.Txn{Ops: plain}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) put(key, plain string) {
	b.Helper()
	op := store.Op{Kind: store.Put, Key: key, Value: sealIn(b.T, b.Ring, key, plain)}
	if _, err := b.inner.Commit(b.Context(), store.Txn{Ops: []store.Op{op}}); err != nil {
		b.Fatal(err)
	}
}

// rewrite does what an update without a change does in the API.
func (b *bed) rewrite(ctx context.Context, key string) error {
	if err := b.hook(key); err != nil {
		return err
	}
	rec, ok, _, err := b.inner.Get(ctx, key, 0)
	if err != nil || !ok {
		return err
	}
	plain, stale, err := b.Ring.Unseal([]byte(key), rec.Value)
	if err != nil || !stale {
		return err
	}
	sealed, err := b.Ring.Seal([]byte(key), plain)
	if err == nil {
		_, err = b.inner.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: sealed}}})
	}
	b.rewritten++
	return err
}

// check that a newly opened ring can read all records.
func (b *bed) check(records int) {
	b.Helper()
	ring := openRing(b.T, b.Ring.Path())
	page, err := b.inner.List(b.Context(), store.ListOptions{Prefix: "/secrets/"})
	if err != nil || len(page.Records) != records {
		b.Fatalf("%d records, %v", len(page.Records), err)
	}
	for i, rec := range page.Records {
		if plain, _, err := ring.Unseal([]byte(rec.Key), rec.Value); err != nil || string(plain) != fmt.Sprint("plain ", i) {
			b.Errorf("%s: %q, %v", rec.Key, plain, err)
		}
	}
}

func (b *bed) status() Status {
	b.Helper()
	s, err := b.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func TestRotate(t *testing.T) {
	const records = 450 // more than two pages
	b := newBed(t, records)
	old := b.Ring.Keys()[0].ID
	if more, err := b.Step(t.Context(), time.Hour, true); more || err != nil {
		t.Fatal(more, err)
	}
	b.check(records)
	s := b.status()
	if len(s.Keys) != 2 || s.Keys[0].ID == old || s.Keys[0].Records != records || s.Keys[1].Records != 0 || s.Outdated() != 0 {
		t.Errorf("status %+v", s)
	}
	// Old requests may still be under way.
	var unfinished *UnfinishedError
	if _, err := b.Prune(t.Context()); !errors.As(err, &unfinished) || unfinished.Wait == 0 {
		t.Errorf("prune at once: %v", err)
	}
	b.now = b.now.Add(2 * settle)
	dropped, err := b.Prune(t.Context())
	if err != nil || len(dropped) != 1 || dropped[0].ID != old {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	b.check(records)
	if len(b.Ring.Keys()) != 1 {
		t.Errorf("keys %v", b.Ring.Keys())
	}
	// History does not need the key either.
	if _, err := b.inner.Watch(t.Context(), "", 1); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("watching from before: %v", err)
	}
	if dropped, err := b.Prune(t.Context()); err != nil || len(dropped) > 0 {
		t.Errorf("prune again: %v, %v", dropped, err)
	}
}

// TestRotateCutShort stops a rotation after every step that it can stop after,
// as a crash would: the ring is read from the file again.
func TestRotateCutShort(t *testing.T) {
	const records = 5
	for after := range records + 1 {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			b := newBed(t, records)
			crash := errors.New("crash")
			left := after
			ctx, cancel := context.WithCancel(t.Context())
			b.hook = func(string) error {
				if left--; left < 0 {
					cancel()
					return crash
				}
				return nil
			}
			_, err := b.Step(ctx, time.Hour, true)
			if after < records && err == nil {
				t.Error("no error")
			}
			cancel()
			b.hook = func(string) error { return nil }
			b.Ring = openRing(t, b.Ring.Path())
			b.check(records)
			if after < records {
				b.now = b.now.Add(time.Hour)
				var unfinished *UnfinishedError
				if _, err := b.Prune(t.Context()); !errors.As(err, &unfinished) || unfinished.Records != records-after {
					t.Errorf("prune in the middle: %v", err)
				}
				// What was begun is finished; no second key is made.
				if more, err := b.Step(t.Context(), time.Hour, true); more || err != nil {
					t.Fatal(more, err)
				}
			}
			if s := b.status(); len(s.Keys) != 2 || s.Keys[0].Records != records || b.rewritten != records {
				t.Errorf("status %+v, %d rewritten", s, b.rewritten)
			}
			b.check(records)
		})
	}
}

// TestRotateInSteps: a step ends when its time is over.
func TestRotateInSteps(t *testing.T) {
	const records = 10
	b := newBed(t, records)
	b.hook = func(string) error { b.now = b.now.Add(time.Second); return nil }
	steps := 0
	for more := true; more; steps++ {
		var err error
		if more, err = b.Step(t.Context(), 3*time.Second, steps == 0); err != nil {
			t.Fatal(err)
		}
	}
	if steps != 4 || b.status().Outdated() != 0 || len(b.Ring.Keys()) != 2 {
		t.Errorf("%d steps, status %+v", steps, b.status())
	}
}

// TestRotateAroundTrouble: what cannot be rewritten does not keep the rest from it.
func TestRotateAroundTrouble(t *testing.T) {
	b := newBed(t, 5)
	lost := openRing(t, keyFile(t))
	for key, value := range map[string][]byte{
		"/secrets/plain": []byte("plain"), "/secrets/lost": sealIn(t, lost, "/secrets/lost", "x"),
	} {
		if _, err := b.inner.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: value}}}); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("refused")
	b.hook = func(key string) error {
		if key == "/secrets/0002" {
			return refused
		}
		return nil
	}
	if _, err := b.Step(t.Context(), time.Hour, true); !errors.Is(err, refused) || !strings.Contains(err.Error(), "1 records") {
		t.Errorf("error %v", err)
	}
	s := b.status()
	if s.Outdated() != 1 || len(s.Unreadable) != 1 || len(s.Keys) != 3 || !s.Keys[2].Missing || s.Keys[0].Records != 4 {
		t.Errorf("status %+v", s)
	}
	b.hook = func(string) error { return nil }
	if _, err := b.Step(t.Context(), time.Hour, true); err != nil {
		t.Error(err)
	}
	b.now = b.now.Add(time.Hour)
	if dropped, err := b.Prune(t.Context()); err != nil || len(dropped) != 1 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	// A lost key does not prevent another rotation.
	if _, err := b.Step(t.Context(), time.Hour, true); err != nil || len(b.Ring.Keys()) != 2 {
		t.Errorf("keys %v, %v", b.Ring.Keys(), err)
	}
}

// TestRotateUnderFaults: with every tenth call failing, nothing is lost.
func TestRotateUnderFaults(t *testing.T) {
	const records = 300
	b := newBed(t, records)
	faults := faulty.New(b.inner, 7, faulty.Probabilities{Calls: 0.2})
	b.Store = faults
	b.hook = func(string) error {
		_, err := faults.Revision(t.Context())
		return err
	}
	for try := 0; ; try++ {
		more, err := b.Step(t.Context(), time.Hour, true)
		if err == nil && !more && b.rewritten >= records {
			break
		}
		if try > 200 {
			t.Fatal("no end")
		}
	}
	b.now = b.now.Add(time.Hour)
	for range 50 {
		_, _ = b.Prune(t.Context())
		b.check(records)
	}
	if len(b.Ring.Keys()) != 1 || faults.Injected() == 0 {
		t.Errorf("%d keys, %d faults", len(b.Ring.Keys()), faults.Injected())
	}
}

func TestAnySealed(t *testing.T) {
	b := newBed(t, 0)
	if found, err := AnySealed(t.Context(), b.inner, b.Prefixes); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
	b.put("/secrets/a", "x")
	if found, err := AnySealed(t.Context(), b.inner, b.Prefixes); !found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestHandler(t *testing.T) {
	b := newBed(t, 3)
	h := b.Handler(slog.New(slog.DiscardHandler))
	ask := func(method, path, body string, code int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
		got, _ := io.ReadAll(w.Body)
		if w.Code != code || !strings.Contains(string(got), want) {
			t.Errorf("%s %s: %d %s; want %d %s", method, path, w.Code, got, code, want)
		}
	}
	ask("GET", StatusPath, "", http.StatusOK, `"records":3`)
	ask("POST", RotatePath, "{", http.StatusBadRequest, "rotate request")
	ask("POST", RotatePath, `{"other":1}`, http.StatusBadRequest, "unknown field")
	ask("POST", RotatePath, "{}", http.StatusOK, `"encrypts":true,"records":3`)
	ask("GET", RotatePath, "", http.StatusMethodNotAllowed, "")
	ask("POST", PrunePath, "", http.StatusOK, `"waitSeconds"`)
	b.busy.Lock()
	ask("POST", PrunePath, "", http.StatusConflict, "under way")
	ask("POST", RotatePath, "{}", http.StatusConflict, "under way")
	b.busy.Unlock()
	b.now = b.now.Add(time.Hour)
	ask("POST", PrunePath, "", http.StatusOK, `"dropped":["`)
	b.put("/secrets/x", "x")
	if _, err := b.Ring.add(b.now); err != nil {
		t.Fatal(err)
	}
	ask("POST", PrunePath, "", http.StatusConflict, "rotate first")
}

package feed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed/offload"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
)

// flaky is a target that may be away.
type flaky struct {
	blob.Target
	away atomic.Bool
}

var errAway = errors.New("the target is away")

func (f *flaky) Put(ctx context.Context, name string, from io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if f.away.Load() {
		return errAway
	}
	return f.Target.Put(ctx, name, from, size, sum)
}

func (f *flaky) Get(ctx context.Context, name string, w io.Writer) error {
	if f.away.Load() {
		return errAway
	}
	return f.Target.Get(ctx, name, w)
}

func (f *flaky) List(ctx context.Context, prefix string) ([]blob.Info, error) {
	if f.away.Load() {
		return nil, errAway
	}
	return f.Target.List(ctx, prefix)
}

// offloading gives a rig a target; what is there leaves the roots at once.
func (r *rig) offloading(dir string) *flaky {
	r.t.Helper()
	inner, err := blob.Open(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	target := &flaky{Target: inner}
	r.with = func(c *Config) {
		o, err := offload.New(offload.Config{Target: target, Cache: filepath.Join(r.dir, "cache"), CacheBytes: 1})
		if err != nil {
			r.t.Fatal(err)
		}
		c.Offload, c.OffloadAfter = o, -time.Hour
	}
	return target
}

// fill writes changes, and returns what the state was at each revision.
func (r *rig) fill(n int) map[store.Revision]string {
	r.t.Helper()
	out := map[store.Revision]string{}
	for i := range n {
		key, value := fmt.Sprintf("/registry/x/%d", i%7), fmt.Sprintf("%d %s", i, strings.Repeat(fmt.Sprint(i), 60))
		if i%5 == 4 && r.live[key] != "" {
			value = ""
		}
		at := r.put(r.t.Context(), key, value)
		if r.live[key] = value; value == "" {
			delete(r.live, key)
		}
		out[at] = fmt.Sprint(r.live)
		r.reached(at) // so that batches are small, and segments many
	}
	return out
}

// compare the state at each revision with what it was.
func (r *rig) compare(want map[store.Revision]string) error {
	for at, text := range want {
		items, err := r.feed.State(r.t.Context(), "/registry/x/", seglog.Position(at))
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, i := range items {
			got[i.Key] = string(i.Value)
		}
		if fmt.Sprint(got) != text {
			return fmt.Errorf("at %d it was %v, want %s", at, got, text)
		}
	}
	return nil
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) offloadNow() {
	r.t.Helper()
	_, err := r.feed.OffloadNow(r.t.Context())
	r.must(err)
}

func (r *rig) local() (files int) {
	for _, s := range r.feed.Log.Segments() {
		files += len(s.Copies)
	}
	return files
}

func TestOffload(t *testing.T) {
	r, place := stoppedRig(t), t.TempDir()
	target := r.offloading(place)
	r.start()
	want := r.fill(300)
	r.offloadNow()
	s := r.feed.Status(t.Context())
	if n := r.local(); n > 1 || s.Offload.Segments < 3 || s.Offload.Pending != 0 || s.Offload.Problem != "" {
		t.Errorf("%d files are at the roots; %+v", n, s.Offload)
	}
	r.must(r.compare(want))

	// A target that is away stops nothing, and is named.
	target.away.Store(true)
	more := r.fill(20)
	if _, err := r.feed.OffloadNow(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("offload to a target that is away: %v", err)
	}
	if s := r.feed.Status(t.Context()); !strings.Contains(s.Offload.Problem, errAway.Error()) || s.Problem != "" {
		t.Errorf("status: %+v, %s", s.Offload, s.Problem)
	}
	r.must(r.compare(more))
	if err := r.compare(want); !errors.Is(err, errAway) {
		t.Errorf("what is only at a target that is away: %v", err)
	}

	// So it is after a restart.
	r.stop()
	r.start()
	if err := r.compare(want); !errors.Is(err, errAway) && !strings.Contains(fmt.Sprint(err), "not listed yet") {
		t.Errorf("after a restart: %v", err)
	}
	target.away.Store(false)
	r.offloadNow()
	r.must(r.compare(want))
	r.must(r.compare(more))
	found, err := r.feed.Verify(t.Context())
	if err != nil || len(found.Problems) > 0 || found.Offloaded < 4 {
		t.Errorf("verified: %+v, %v", found, err)
	}
}

// TestOffloadAlone: the roots are lost, and the store has forgotten.
func TestOffloadAlone(t *testing.T) {
	r, place := stoppedRig(t), t.TempDir()
	r.offloading(place)
	r.start()
	want := r.fill(200)
	r.offloadNow()
	r.stop()
	at, err := r.store.Revision(t.Context())
	r.must(err)
	r.must(r.store.Compact(t.Context(), at-10))
	r.dir = t.TempDir()
	r.offloading(place)
	r.start()
	r.must(r.compare(r.fill(10)))
	r.offloadNow()
	if first, _ := r.feed.Log.First(); first != 0 {
		t.Errorf("it begins after %d", first)
	}
	r.must(r.compare(want))
}

// TestOffloadOfInstances: two instances have other segments of the same store.
func TestOffloadOfInstances(t *testing.T) {
	a, place := stoppedRig(t), t.TempDir()
	a.offloading(place)
	a.start()
	b := &rig{t: t, store: a.store, dir: t.TempDir()}
	b.offloading(place)
	want := a.fill(100)
	b.start()
	at, err := a.store.Revision(t.Context())
	a.must(err)
	b.reached(at)
	for range 2 {
		b.offloadNow()
		a.offloadNow()
	}
	files, _ := filepath.Glob(filepath.Join(place, "segments", "*", "*.seg"))
	if n := len(files); n < 3 || len(b.feed.Log.Segments()) >= n {
		t.Errorf("%d segments at the target", n)
	}
	for _, r := range []*rig{a, b} {
		r.must(r.compare(want))
	}
}

func TestOffloadOfDamage(t *testing.T) {
	r, place := stoppedRig(t), t.TempDir()
	r.offloading(place)
	r.start()
	want := r.fill(200)
	r.offloadNow()
	files, _ := filepath.Glob(filepath.Join(place, "segments", "*", "*.seg"))
	slices.Sort(files)
	data, err := os.ReadFile(files[1])
	r.must(err)
	data[len(data)/3] ^= 1
	r.must(os.WriteFile(files[1], data, 0o600))
	var damaged *seglog.DamagedError
	if err := r.compare(want); !errors.As(err, &damaged) || !strings.Contains(err.Error(), filepath.Base(files[1])) {
		t.Errorf("a segment whose checksum is wrong: %v", err)
	}
	found, err := r.feed.Verify(t.Context())
	if err != nil || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], filepath.Base(files[1])) {
		t.Errorf("verified: %+v, %v", found, err)
	}
}

// removing is a target at which a segment is deleted while it is read: by another instance, whose retention is over or which has redacted it.
type removing struct {
	blob.Target
	name string // that ends so
	part bool   // of it a part is read before
}

func (r *removing) Get(ctx context.Context, name string, w io.Writer) error {
	if !strings.HasSuffix(name, r.name) {
		return r.Target.Get(ctx, name, w)
	}
	if r.part {
		if _, err := w.Write([]byte("a part")); err != nil {
			return err
		}
	}
	if err := r.Target.Delete(ctx, name); err != nil {
		return err
	}
	if r.part {
		return nil
	}
	return blob.ErrNotFound
}

// TestVerifyOfDeleted: a segment that is deleted at the target while all are verified is no damage.
func TestVerifyOfDeleted(t *testing.T) {
	for _, part := range []bool{false, true} {
		r, place := stoppedRig(t), t.TempDir()
		target := r.offloading(place)
		r.start()
		r.fill(200)
		r.offloadNow()
		files, _ := filepath.Glob(filepath.Join(place, "segments", "*", "*.seg"))
		slices.Sort(files)
		target.Target = &removing{Target: target.Target, name: filepath.Base(files[1]), part: part}
		found, err := r.feed.Verify(t.Context())
		if err != nil || len(found.Problems) > 0 || found.Offloaded != len(files)-1 {
			t.Errorf("part %t: verified %d segments of %d: %+v, %v", part, found.Offloaded, len(files), found, err)
		}
	}
}

func TestOffloadRetention(t *testing.T) {
	r, place := stoppedRig(t), t.TempDir()
	r.offloading(place)
	inner := r.with
	r.with = func(c *Config) { inner(c); c.OffloadRetention = time.Nanosecond }
	r.start()
	r.fill(100)
	r.offloadNow()
	r.feed.mu.Lock()
	r.feed.offloaded.pruned = time.Time{}
	r.feed.mu.Unlock()
	r.fill(1)
	r.offloadNow()
	files, _ := filepath.Glob(filepath.Join(place, "segments", "*", "*.seg"))
	if first, _ := r.feed.Log.First(); len(files) > 1 || first == 0 {
		t.Errorf("%d segments are left at the target; the feed begins after %d", len(files), first)
	}
}

// TestOffloadRetentionOfOtherEpochs: what was offloaded before the store was restored grows old, too.
func TestOffloadRetentionOfOtherEpochs(t *testing.T) {
	r := stoppedRig(t)
	target := r.offloading(t.TempDir())
	inner := r.with
	r.with = func(c *Config) { inner(c); c.OffloadRetention = time.Hour }
	now := time.Now()
	for epoch, newest := range map[string]time.Time{"old": now.Add(-2 * time.Hour), "recent": now} {
		name := offload.Name(seglog.Remote{Epoch: epoch, After: 1, Complete: 2, Newest: newest.UnixMilli(), SHA256: strings.Repeat("0", 64)})
		data := strings.NewReader(epoch)
		r.must(target.Put(t.Context(), name, data, data.Size(), sha256.Sum256([]byte(epoch))))
	}
	r.start()
	if _, err := r.feed.OffloadNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := target.List(t.Context(), "")
	r.must(err)
	for _, b := range all {
		if strings.Contains(b.Name, "/old/") {
			t.Errorf("%s is still there", b.Name)
		}
	}
	if !slices.ContainsFunc(all, func(b blob.Info) bool { return strings.Contains(b.Name, "/recent/") }) {
		t.Errorf("what is not old was removed: %v", all)
	}
}

package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/offload"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// stored are pods, as JSON. encoded is called when one is written the next time; nil: nothing is.
type stored struct {
	pods
	mu      sync.Mutex
	encoded func()
}

func (s *stored) Prefix(_ *resource.Descriptor, name resource.Key) string {
	return "/registry/pods/" + name.Namespace + "/" + name.Name
}

func (s *stored) Encode(ctx context.Context, key string, obj resource.Object) ([]byte, error) {
	s.mu.Lock()
	do := s.encoded
	s.encoded = nil
	s.mu.Unlock()
	if do != nil {
		do()
	}
	return s.pods.Encode(ctx, key, obj)
}

// records are rows of the store, not encrypted.
type records struct{ store.Store }

func (r records) Names(ctx context.Context, prefix string) (out []string, err error) {
	page, err := r.List(ctx, store.ListOptions{Prefix: "/records/" + prefix})
	for i := range page.Records {
		out = append(out, strings.TrimPrefix(page.Records[i].Key, "/records/"))
	}
	return out, err
}

func (r records) Load(ctx context.Context, name string) ([]byte, error) {
	rec, _, _, err := r.Get(ctx, "/records/"+name, 0)
	return rec.Value, err
}

func (r records) Create(ctx context.Context, name string, data []byte) error {
	_, err := r.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/records/" + name, Value: data}}})
	return err
}

func (r records) Watch(ctx context.Context, changed func()) error {
	changed()
	<-ctx.Done()
	return nil
}

// instance of a control plane, as far as it redacts.
type instance struct {
	t     testing.TB
	store store.Store
	feed  *feed.Feed
	*Redactions
	objects *stored
	roots   []string
	now     time.Time
	stop    func()
}

// start an instance with two roots below a directory, on a store, with a target. Its redactions do not run by themselves.
func start(t testing.TB, s store.Store, name, dir, target string) *instance {
	t.Helper()
	i := &instance{t: t, store: s, objects: &stored{}, now: time.Now(), roots: []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}}
	to, err := blob.Open(target)
	must(t, err)
	o, err := offload.New(offload.Config{Target: to, Cache: filepath.Join(dir, "cache")})
	must(t, err)
	i.feed, err = feed.Open(t.Context(), feed.Config{
		Store: s, Prefix: "/registry/", Roots: i.roots, Copies: 2, Retention: 1 << 40, Offload: o, OffloadAfter: time.Hour,
	})
	must(t, err)
	i.Redactions, err = New(Config{
		Feed: i.feed, Store: s, Objects: i.objects, Records: records{s}, Memory: filepath.Join(dir, "redactions.json"), Instance: name,
		Kind: func(_, name string) *resource.Descriptor {
			if name == "pods" {
				return kind.Pod
			}
			return nil
		},
		Now: func() time.Time { return i.now },
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = i.feed.Run(ctx) })
	i.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(i.stop)
	return i
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put a pod with annotations, and have the feeds take it.
func put(t testing.TB, s store.Store, name string, annotations map[string]string, feeds ...*instance) {
	t.Helper()
	value, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations}})
	must(t, err)
	at, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/registry/pods/shop/" + name, Value: value}}})
	must(t, err)
	for _, i := range feeds {
		must(t, i.feed.Reach(t.Context(), seglog.Position(at)))
	}
}

// fill writes changes of pods whose annotations have secrets, of which the last state has none, in several segments.
func fill(t testing.TB, s store.Store, annotations int, feeds ...*instance) {
	t.Helper()
	for round := range 4 {
		for pod := range 5 {
			all := map[string]string{}
			for n := range annotations {
				all[fmt.Sprint("a", n)] = fmt.Sprintf("secret-%d-%d-%d", n, pod, round)
			}
			put(t, s, fmt.Sprint("p", pod), all, feeds...)
		}
		for _, i := range feeds {
			_, err := i.feed.OffloadNow(t.Context())
			must(t, err)
		}
	}
	for pod := range 5 {
		put(t, s, fmt.Sprint("p", pod), nil, feeds...)
	}
}

// request to redact an annotation of a pod.
func request(pod, annotation int) Request {
	return Request{Resource: "pods", Namespace: "shop", Name: fmt.Sprint("p", pod), Field: fmt.Sprintf("metadata.annotations.a%d", annotation)}
}

// files that have a text, of all below directories.
func files(t testing.TB, text string, dirs ...string) (out []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(path, ".seg") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			has := bytes.Contains(data, []byte(text)) // else it is compressed
			_, err = seglog.EditFile(bytes.NewReader(data), int64(len(data)), discarded{}, seglog.Editor{Edit: func(e *seglog.Entry, _ []string) (*seglog.Entry, error) {
				has = has || bytes.Contains(e.Value, []byte(text)) || bytes.Contains(e.PrevValue, []byte(text))
				return e, nil
			}})
			if err != nil && !strings.Contains(err.Error(), "not sealed") {
				return fmt.Errorf("%s: %w", path, err)
			}
			if has {
				out = append(out, path)
			}
			return nil
		})
		must(t, err)
	}
	return out
}

// discarded takes what is written.
type discarded struct{}

func (discarded) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// look for what is to be redacted, once, and report.
func (i *instance) look() {
	i.t.Helper()
	must(i.t, i.pass(i.t.Context(), true))
	must(i.t, i.report(i.t.Context()))
}

func (i *instance) whole() {
	i.t.Helper()
	v, err := i.feed.Verify(i.t.Context())
	if err != nil || len(v.Problems) > 0 || v.Local == 0 || v.Offloaded == 0 {
		i.t.Errorf("verified: %+v, %v", v, err)
	}
}

// TestInstances: of two instances that share a target each redacts what it has, at the same time, too, and each says how far both are.
func TestInstances(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	target, dirs := t.TempDir(), []string{t.TempDir(), t.TempDir()}
	a, b := start(t, s, "a", dirs[0], target), start(t, s, "b", dirs[1], target)
	for _, i := range []*instance{a, b} {
		i.look() // they are known to each other
	}
	fill(t, s, 2, a, b)
	all := append([]string{target}, dirs...)
	if len(files(t, "secret-0-1-", dirs[0])) == 0 || len(files(t, "secret-0-1-", dirs[1])) == 0 || len(files(t, "secret-0-1-", target)) == 0 {
		t.Fatal("the value is not where it should be yet")
	}
	done, err := a.Redact(t.Context(), request(1, 0), "test")
	must(t, err)
	if !done.Done || done.Everywhere() || len(done.Instances) != 2 || !done.Instances[0].Done || done.Instances[1].Name != "b" || !slices.Equal(done.Instances[1].Outstanding, []string{notLooked}) {
		t.Errorf("one has redacted: %+v", done)
	}
	if len(files(t, "secret-0-1-", dirs[0], target)) > 0 || len(files(t, "secret-0-1-", dirs[1])) == 0 {
		t.Error("the value is not where only the other instance has it")
	}
	b.look()
	for _, i := range []*instance{a, b} {
		list, err := i.List(t.Context())
		if err != nil || len(list) != 1 || !list[0].Everywhere() || len(list[0].Instances) != 2 {
			t.Errorf("both have redacted: %+v, %v", list, err)
		}
	}

	// At the same time, each its own, while both carry out both.
	var both sync.WaitGroup
	for n, i := range []*instance{a, b} {
		both.Go(func() {
			if _, err := i.Redact(t.Context(), request(2, n), "test"); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	for range 2 { // what one has uploaded, the other has not seen yet
		a.look()
		b.look()
	}
	for _, i := range []*instance{a, b} {
		list, err := i.List(t.Context())
		if err != nil || len(list) != 3 || slices.ContainsFunc(list, func(s Status) bool { return !s.Everywhere() }) {
			t.Errorf("all is redacted: %+v, %v", list, err)
		}
		i.whole()
	}
	for _, text := range []string{"secret-0-1-", "secret-0-2-", "secret-1-2-"} {
		if left := files(t, text, all...); len(left) > 0 {
			t.Errorf("%s is in %v", text, left)
		}
	}

	// An instance that ends is outstanding with what comes then, until it is gone for long. One that has nothing new does not write.
	b.stop()
	before, _ := s.Revision(t.Context())
	a.look()
	if after, _ := s.Revision(t.Context()); after != before {
		t.Error("an instance reports what it has reported")
	}
	done, err = a.Redact(t.Context(), request(3, 0), "test")
	must(t, err)
	if done.Everywhere() {
		t.Errorf("an instance that has ended has redacted: %+v", done)
	}
	a.now = a.now.Add(forgetAfter + time.Hour)
	list, err := a.List(t.Context())
	if err != nil || slices.ContainsFunc(list, func(s Status) bool { return len(s.Instances) != 1 || !s.Everywhere() }) {
		t.Errorf("an instance that is gone for long: %+v, %v", list, err)
	}
}

// unmount leaves an empty directory in the place of a root; mount brings it back, and what was written meanwhile is hidden.
func (i *instance) unmount() {
	must(i.t, errors.Join(os.Rename(i.roots[1], i.roots[1]+".away"), os.Mkdir(i.roots[1], 0o700)))
}

func (i *instance) mount() {
	must(i.t, errors.Join(os.RemoveAll(i.roots[1]), os.Rename(i.roots[1]+".away", i.roots[1])))
}

// TestUnmounted: a redaction is not done while a root is away, also if that went away while it was redacted, and it is when the root is back and
// was redacted.
func TestUnmounted(t *testing.T) {
	s := memory.New(memory.Options{})
	defer s.Close()
	dir, target := t.TempDir(), t.TempDir()
	i := start(t, s, "", dir, target)
	i.look()
	fill(t, s, 3, i)
	outstanding := func(when string, done *Status) {
		t.Helper()
		if done.Done || len(done.Outstanding) != 1 || !strings.Contains(done.Outstanding[0], i.roots[1]+" is not the disk that it was") || len(i.Problems()) != 1 {
			t.Errorf("%s: done %t, outstanding %q, problems %q", when, done.Done, done.Outstanding, i.Problems())
		}
	}
	after := func(when string) {
		t.Helper()
		i.look()
		list, err := i.List(t.Context())
		if err != nil || slices.ContainsFunc(list, func(s Status) bool { return !s.Done }) || len(i.Problems()) > 0 {
			t.Errorf("%s: %+v, %v", when, list, err)
		}
	}
	i.unmount()
	done, err := i.Redact(t.Context(), request(0, 0), "test")
	must(t, err)
	outstanding("it was away", done)
	i.mount()
	if len(files(t, "secret-0-0-", i.roots[1])) == 0 {
		t.Fatal("nothing came back")
	}
	after("it came back")
	if left := files(t, "secret-0-0-", dir, target); len(left) > 0 {
		t.Errorf("it came back: the value is in %v", left)
	}

	i.objects.encoded = i.unmount
	done, err = i.Redact(t.Context(), request(0, 1), "test")
	must(t, err)
	outstanding("it went away meanwhile", done)

	// So it is after a restart, which must not take the empty directory for the root.
	i.stop()
	i = start(t, s, "", dir, target)
	i.look()
	list, err := i.List(t.Context())
	must(t, err)
	outstanding("after a restart", &list[1])
	i.stop()
	i.mount()
	i = start(t, s, "", dir, target)
	after("it came back, and a restart")
	if left := files(t, "secret-0-", dir, target); len(left) == 0 {
		t.Error("other values are gone")
	}
	for _, text := range []string{"secret-0-0-", "secret-1-0-"} {
		if left := files(t, text, dir, target); len(left) > 0 {
			t.Errorf("%s is in %v", text, left)
		}
	}

	// The disk is lost for good: who says so has the redaction done.
	mark, err := os.ReadFile(filepath.Join(i.roots[1], markFile))
	must(t, err)
	i.unmount()
	done, err = i.Redact(t.Context(), request(0, 2), "test")
	must(t, err)
	outstanding("it is lost", done)
	if !strings.Contains(done.Outstanding[0], "write "+strings.TrimSpace(string(mark))+" to "+filepath.Join(i.roots[1], markFile)) {
		t.Errorf("the way out is not told: %s", done.Outstanding[0])
	}
	must(t, os.WriteFile(filepath.Join(i.roots[1], markFile), mark, 0o600))
	after("it is lost, as was said")
	i.whole()
}

package follow_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/follow"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"name": name}}}
}

// listener notes what it is told, as text.
type listener struct {
	mu   sync.Mutex
	told []string
	// fail is the answer to the next change.
	fail error
}

func (l *listener) tell(c follow.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := ""
	switch {
	case c.Lost != nil:
		text = "lost: " + c.Lost.Error()
	case c.Removed != nil:
		text = "removed " + c.Removed.GetName()
	default:
		names := []string{}
		for key := range c.Keys() {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		text = fmt.Sprintf("set %s", strings.Join(names, " "))
		if c.Fresh {
			text = "fresh: " + text
		}
	}
	l.told = append(l.told, text)
	err := l.fail
	if c.Lost == nil {
		l.fail = nil
	}
	return err
}

// hears waits until nothing moves any more, and compares what was told since.
func (l *listener) hears(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.told, want) {
		t.Errorf("told %q, want %q", l.told, want)
	}
	l.told = nil
}

func followed(t *testing.T, selection resource.ListOptions, test func(*resourcetest.Client, *listener)) {
	synctest.Test(t, func(t *testing.T) {
		client, l := resourcetest.New(kind.ConfigMap), &listener{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := follow.Run(ctx, follow.Config{
				Client: client, Kind: kind.ConfigMap, Select: selection, Logger: slog.New(slog.DiscardHandler),
				Pause: follow.Pause{First: time.Second, Last: 4 * time.Second},
			}, l.tell); err != nil {
				t.Error(err)
			}
		})
		test(client, l)
		cancel()
		running.Wait()
	})
}

// TestRun: all there is, each change, and after each break the truth anew.
func TestRun(t *testing.T) {
	followed(t, resource.ListOptions{}, func(client *resourcetest.Client, l *listener) {
		l.hears(t, "fresh: set ")
		client.Seed(configMap("a"))
		client.Seed(configMap("b"))
		client.Seed(configMap("a"))
		l.hears(t, "set a", "set b", "set a")
		remove := func(name string) {
			t.Helper()
			if err := client.Delete(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}
		remove("a")
		l.hears(t, "removed a")

		client.Disconnect()
		l.hears(t, "lost: watch of configmaps ended")
		client.Seed(configMap("c"))
		remove("b")
		l.hears(t)
		time.Sleep(time.Second)
		l.hears(t, "fresh: set c")

		client.Expire()
		l.hears(t, "lost: history is gone")
		time.Sleep(2 * time.Second)
		l.hears(t, "fresh: set c")

		l.fail = errors.New("too much")
		client.Seed(configMap("d"))
		l.hears(t, "set d", "lost: too much")
		time.Sleep(4 * time.Second)
		l.hears(t, "fresh: set c d")
	})
}

func TestSelection(t *testing.T) {
	only := resource.ListOptions{Labels: labels.SelectorFromSet(labels.Set{"name": "a"})}
	followed(t, only, func(client *resourcetest.Client, l *listener) {
		l.hears(t, "fresh: set ")
		client.Seed(configMap("a"), configMap("b"))
		l.hears(t, "set a")
		client.Disconnect()
		time.Sleep(time.Second)
		l.hears(t, "lost: watch of configmaps ended", "fresh: set a")
	})
}

// TestAway: a server that refuses is asked less and less often.
func TestAway(t *testing.T) {
	followed(t, resource.ListOptions{}, func(client *resourcetest.Client, l *listener) {
		l.hears(t, "fresh: set ")
		var asked []time.Duration
		began := time.Now()
		client.Intercept(func(resourcetest.Call) error {
			asked = append(asked, time.Since(began))
			return apierrors.NewServiceUnavailable("away")
		})
		client.Disconnect()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		want := []time.Duration{1, 3, 7, 11, 15}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(asked, want) {
			t.Errorf("asked at %v, want %v", asked, want)
		}
	})
}

// TestSeveral: each kind has a watch of its own, and all are told in one place.
func TestSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.ConfigMap, kind.Node)
		client.Seed(configMap("a"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		kinds := []*resource.Descriptor{kind.ConfigMap, kind.Node}
		changes := make(chan follow.Change)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			follow.Several(ctx, follow.Config{Client: client, Pause: follow.Pause{First: time.Second, Last: time.Second}}, kinds, changes)
		})
		for _, what := range []string{"fresh", "lost", "fresh"} {
			told := map[*resource.Descriptor]string{}
			for range kinds {
				c := <-changes
				told[c.Kind] = map[bool]string{true: "fresh", false: "lost"}[c.Fresh && len(c.Set) == 1 && c.Lost == nil]
			}
			if told[kinds[0]] != what || told[kinds[1]] != what {
				t.Errorf("told %v, want %s of both", told, what)
			}
			if what == "fresh" {
				client.Disconnect()
			}
		}
		cancel()
		running.Wait()
	})
}

// TestRetry: after an attempt that went well for long the pauses begin anew.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lasting := []time.Duration{0, 0, 0, 0, 5 * time.Second, 0, 0}
		var pauses []time.Duration
		attempts := 0
		follow.Retry(ctx, follow.Pause{First: time.Second, Last: 4 * time.Second}, func(context.Context) error {
			if attempts == len(lasting) {
				cancel()
				return errors.New("nobody hears of this one")
			}
			time.Sleep(lasting[attempts])
			attempts++
			return nil
		}, func(err error, pause time.Duration) {
			if err == nil {
				t.Error("no reason")
			}
			pauses = append(pauses, pause/time.Second)
		})
		if want := []time.Duration{1, 2, 4, 4, 1, 2, 4}; !slices.Equal(pauses, want) {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
	})
}

// TestEndsAtOnce: neither a pause nor a silent watch keeps Run.
func TestEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		follow.Retry(ctx, follow.Pause{First: time.Hour, Last: time.Hour}, func(context.Context) error {
			return errors.New("no")
		}, func(error, time.Duration) { time.AfterFunc(time.Second, cancel) })
		if took := time.Since(began); took != time.Second {
			t.Errorf("after %s", took)
		}
	})
}

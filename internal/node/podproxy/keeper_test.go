package podproxy

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// world is the namespaces of a node, in memory: the addresses and the rules of each.
type world struct {
	mu     sync.Mutex
	spaces map[string]*space
	puts   int
	at     *space // that of the thread
	fail   error
}

type space struct {
	w         *world
	addresses []netip.Addr
	owner     string
}

func (s *space) Addresses() ([]netip.Addr, error) { return s.addresses, nil }
func (s *space) Close() error                     { return nil }
func (s *space) Do(f func() error) error {
	s.w.at = s
	defer func() { s.w.at = nil }()
	return f()
}

// set changes the world while the keeper runs.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) kernel() kernel {
	return kernel{
		names: func() (out []string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for name := range w.spaces {
				out = append(out, name)
			}
			return out, nil
		},
		open: func(name string) (namespace, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if s := w.spaces[name]; s != nil {
				return s, nil
			}
			return nil, errors.New("an ordinary file")
		},
		stands: func(r redirect.Rules) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.at.owner == r.Owner, nil
		},
		put: func(r redirect.Rules) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.fail != nil {
				return w.fail
			}
			w.puts++
			w.at.owner = r.Owner
			return nil
		},
	}
}

func pod(name, address string) Pod {
	return Pod{
		Key: resource.Key{Namespace: "shop", Name: name}, Addresses: []netip.Addr{netip.MustParseAddr(address)},
		Rules: redirect.Rules{Owner: "default/shop/" + name},
	}
}

// TestKeeper: rules are put into the namespace with the address of a Pod, whenever that comes, once; put
// back where they are gone; and into no other namespace.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		own := &space{w: w, addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
		other := &space{w: w, addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}}
		w.spaces = map[string]*space{"cni-other": other, "file": nil}
		var log strings.Builder
		k := New(Config{Dir: "/run/netns", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		k.kernel = w.kernel()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		k.Set([]Pod{pod("web", "10.0.0.1")})
		none, changed := k.Waiting()
		if len(none) > 0 {
			t.Errorf("a pod that has just come waits: %v", none)
		}
		waits := func(want string) {
			t.Helper()
			select {
			case <-changed:
			default:
				t.Error("no change is told")
			}
			var why map[resource.Key]string
			why, changed = k.Waiting()
			if got := why[resource.Key{Namespace: "shop", Name: "web"}]; want == "" && len(why) > 0 || !strings.Contains(got, want) {
				t.Errorf("%v, want %q", why, want)
			}
		}
		pass(time.Minute)
		waits("agent.netnsDir")
		if n := testutil.ToFloat64(k.waiting); n != 1 || w.puts != 0 {
			t.Errorf("%v pods wait, %d puts", n, w.puts)
		}
		if n := strings.Count(log.String(), "no network namespace in /run/netns has one of its addresses"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		w.set(func() {
			w.fail = errors.New("no nf_tables")
			w.spaces["cni-web"] = own
		})
		pass(time.Minute)
		if n := strings.Count(log.String(), "no nf_tables"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		waits("no nf_tables")
		w.set(func() { w.fail = nil })
		pass(5 * time.Second)
		waits("")
		if own.owner != "default/shop/web" || other.owner != "" || w.puts != 1 {
			t.Errorf("rules of %q and %q, %d puts", own.owner, other.owner, w.puts)
		}
		pass(time.Hour)
		if w.puts != 1 || testutil.ToFloat64(k.waiting) != 0 || testutil.ToFloat64(k.redirected) != 1 {
			t.Errorf("%d puts", w.puts)
		}
		w.set(func() { own.owner = "" })
		pass(again)
		if own.owner == "" {
			t.Error("rules that are gone are not put back")
		}
		// Another Pod of the same name, in a namespace of its own, later than the agent hears of it.
		k.Set([]Pod{pod("web", "10.0.0.2")})
		pass(time.Second)
		next := &space{w: w, addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
		w.set(func() { w.spaces["cni-next"] = next })
		pass(5 * time.Second)
		if next.owner == "" {
			t.Error("no rules for the next pod")
		}
		k.Set(nil)
		pass(time.Second)
		if testutil.ToFloat64(k.redirected) != 0 || len(k.since) != 0 {
			t.Error("pods that are gone are kept")
		}
	})
}

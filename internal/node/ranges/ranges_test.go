package ranges

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// applied is what was applied last. It may refuse once.
type applied struct {
	mu      sync.Mutex
	ranges  []netip.Prefix
	refuses bool
}

func (a *applied) apply(ranges []netip.Prefix) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuses {
		a.refuses = false
		return errors.New("not now")
	}
	a.ranges = ranges
	return nil
}

func (a *applied) has() []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ranges
}

func (a *applied) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuses = true
}

func newKeeper(dir string) *Keeper {
	return New(Config{Dir: dir, Saved: func(string, error) {}, Logger: slog.New(slog.DiscardHandler)})
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// TestRangesAreFollowed: what the mode works by, and what is kept for a start
// without a control plane, are the ranges there are, also after a watch broke or
// the mode refused them.
func TestRangesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.ServiceCIDR)
		mode := &applied{}
		k := newKeeper(t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := k.Run(ctx, client, mode.apply); err != nil {
				t.Error(err)
			}
		})
		uses := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var prefixes []netip.Prefix
			for _, text := range want {
				prefixes = append(prefixes, netip.MustParsePrefix(text))
			}
			kept, err := Read(k.config.Dir)
			if err != nil || !slices.Equal(mode.has(), prefixes) || !slices.Equal(kept, prefixes) {
				t.Errorf("%s: mode %v, kept %v (%v), want %v", what, mode.has(), kept, err, prefixes)
			}
		}
		remove := func(name string) {
			t.Helper()
			if err := client.Delete(t.Context(), kind.ServiceCIDR, resource.Key{Name: name}, resource.Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		client.Seed(serviceCIDR("kubernetes", "10.96.0.0/16", "fd00:96::/108"))
		uses("the first", "10.96.0.0/16", "fd00:96::/108")
		client.Seed(serviceCIDR("more", "10.100.0.0/24"))
		uses("another", "10.96.0.0/16", "10.100.0.0/24", "fd00:96::/108")

		client.Disconnect()
		synctest.Wait()
		remove("more")
		client.Seed(serviceCIDR("late", "10.101.0.0/24"))
		uses("the watch is broken", "10.96.0.0/16", "10.100.0.0/24", "fd00:96::/108")
		time.Sleep(firstRetry) // of the bubble
		uses("and back", "10.96.0.0/16", "10.101.0.0/24", "fd00:96::/108")

		mode.refuse()
		remove("late")
		uses("the mode refuses", "10.96.0.0/16", "10.101.0.0/24", "fd00:96::/108")
		time.Sleep(lastRetry) // of the bubble
		uses("the mode takes them", "10.96.0.0/16", "fd00:96::/108")

		remove("kubernetes")
		uses("none is no answer", "10.96.0.0/16", "fd00:96::/108")
		cancel()
		running.Wait()
		if !slices.Equal(k.current, mode.has()) {
			t.Errorf("the keeper has %v, the mode %v", k.current, mode.has())
		}
	})
}

// TestRangesAreSavedLater: ranges that could not be saved are saved at the next look,
// though they have not changed since.
func TestRangesAreSavedLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	var failed error
	k := New(Config{Dir: dir, Saved: func(_ string, err error) { failed = err }, Logger: slog.New(slog.DiscardHandler)})
	now := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	mode := &applied{}
	if err := k.replace(now, mode.apply); err == nil || failed == nil {
		t.Fatalf("saved to a directory that is not there: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := k.replace(now, mode.apply); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if kept, err := Read(dir); err != nil || !slices.Equal(kept, now) {
		t.Errorf("the next start would find %v, %v", kept, err)
	}
}

// TestRangesOfTheLastRun: an agent that has ranges does not wait for the control plane, and
// one that has none reads them there.
func TestRangesOfTheLastRun(t *testing.T) {
	flags := []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	for _, c := range []struct {
		what, kept, want string
		away             bool
		calls            int
	}{
		{"kept", `["10.98.0.0/16"]`, "10.98.0.0/16", true, 0},
		{"the first start", "", "10.99.0.0/16", false, 1},
		{"the first start, without a control plane", "", "10.97.0.0/16", true, 1},
		{"damaged", `["10.98.0.0`, "10.99.0.0/16", false, 1},
		{"damaged, without a control plane", `["10.98.0.0`, "", true, 1},
		{"no range", `[]`, "10.99.0.0/16", false, 1},
		{"an empty one", `[""]`, "10.99.0.0/16", false, 1},
	} {
		dir, calls := t.TempDir(), 0
		connect := func() (resource.Client, error) {
			calls++
			if c.away {
				return nil, errors.New("connection refused")
			}
			client := resourcetest.New(kind.ServiceCIDR)
			client.Seed(serviceCIDR("kubernetes", "10.99.0.0/16"))
			return client, nil
		}
		if c.kept != "" {
			if err := os.WriteFile(filepath.Join(dir, fileName), []byte(c.kept), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		k := newKeeper(dir)
		got, err := k.Learn(t.Context(), connect, flags)
		if (err == nil) != (c.want != "") {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if err != nil {
			continue
		}
		if len(got) != 1 || got[0] != netip.MustParsePrefix(c.want) || calls != c.calls {
			t.Errorf("%s: ranges %v after %d requests, want %s after %d", c.what, got, calls, c.want, c.calls)
		}
		if kept, err := Read(dir); err != nil || !slices.Equal(kept, got) && !slices.Equal(got, flags) {
			t.Errorf("%s: the next start would find %v, %v", c.what, kept, err)
		}
		if err := errors.Join(k.Forget(), k.Forget()); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if kept, err := Read(dir); kept != nil || err != nil {
			t.Errorf("%s: forgotten, and still %v, %v", c.what, kept, err)
		}
	}
}

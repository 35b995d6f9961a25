package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// rangedMode takes ranges, or refuses them once.
type rangedMode struct {
	modes.Mode

	mu      sync.Mutex
	ranges  []netip.Prefix
	refuses bool
}

func (m *rangedMode) SetRanges(ranges []netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuses {
		m.refuses = false
		return errors.New("not now")
	}
	m.ranges = ranges
	return nil
}

func (m *rangedMode) has() []netip.Prefix {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ranges
}

func (m *rangedMode) refuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuses = true
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
		mode := &rangedMode{}
		a := &agent{cfg: NodeConfig{DataDir: t.TempDir()}, log: slog.New(slog.DiscardHandler), mode: mode}
		if err := os.Mkdir(a.dir(), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := a.followRanges(client)(ctx); err != nil {
				t.Error(err)
			}
		})
		uses := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var prefixes, kept []netip.Prefix
			for _, text := range want {
				prefixes = append(prefixes, netip.MustParsePrefix(text))
			}
			data, err := os.ReadFile(a.rangesFile())
			if err == nil {
				err = json.Unmarshal(data, &kept)
			}
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
		time.Sleep(rangesRetry) // of the bubble
		uses("and back", "10.96.0.0/16", "10.101.0.0/24", "fd00:96::/108")

		mode.refuse()
		remove("late")
		uses("the mode refuses", "10.96.0.0/16", "10.101.0.0/24", "fd00:96::/108")
		time.Sleep(rangesRetryMax) // of the bubble
		uses("the mode takes them", "10.96.0.0/16", "fd00:96::/108")

		remove("kubernetes")
		uses("none is no answer", "10.96.0.0/16", "fd00:96::/108")
		cancel()
		running.Wait()
		if !slices.Equal(a.cfg.ServiceCIDRs, mode.has()) {
			t.Errorf("the agent goes by %v, its mode by %v", a.cfg.ServiceCIDRs, mode.has())
		}
	})
}

// TestRangesOfTheLastRun: an agent that knows the ranges does not wait for the
// control plane, and one that does not asks it.
func TestRangesOfTheLastRun(t *testing.T) {
	var asked atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1","metadata":{"resourceVersion":"1"},
			"items":[{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.99.0.0/16"]}}]}`))
	}))
	defer api.Close()
	for _, c := range []struct {
		what, kept, want string
		asks             int32
	}{
		{"kept", `["10.98.0.0/16"]`, "10.98.0.0/16", 0},
		{"the first start", "", "10.99.0.0/16", 1},
		{"damaged", `["10.98.0.0`, "10.99.0.0/16", 1},
		{"no range", `[]`, "10.99.0.0/16", 1},
		{"an empty one", `[""]`, "10.99.0.0/16", 1},
	} {
		asked.Store(0)
		a := &agent{cfg: NodeConfig{DataDir: t.TempDir(), Cluster: &ClusterConfig{REST: &rest.Config{Host: api.URL}}}, log: slog.New(slog.DiscardHandler)}
		if err := os.Mkdir(a.dir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if c.kept != "" {
			if err := os.WriteFile(a.rangesFile(), []byte(c.kept), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.learnRanges(t.Context()); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if got := a.cfg.ServiceCIDRs; len(got) != 1 || got[0] != netip.MustParsePrefix(c.want) || asked.Load() != c.asks {
			t.Errorf("%s: ranges %v after %d requests, want %s after %d", c.what, got, asked.Load(), c.want, c.asks)
		}
		if kept, err := a.keptRanges(); err != nil || !slices.Equal(kept, a.cfg.ServiceCIDRs) {
			t.Errorf("%s: the next start would find %v, %v", c.what, kept, err)
		}
		if err := errors.Join(a.forgetRanges(), a.forgetRanges()); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if kept, err := a.keptRanges(); kept != nil || err != nil {
			t.Errorf("%s: forgotten, and still %v, %v", c.what, kept, err)
		}
	}
}

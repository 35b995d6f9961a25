package console

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

const (
	soakFor     = 8 * time.Hour
	soakViewers = 5
	soakRate    = 100 // changes a second
	// soakSamples are taken in that time; the first quarter is not compared.
	soakSamples = 40
)

// TestSoak: with 100 changes a second and five viewers, heap, sockets and goroutines of the control plane and the heap of a page stay as
// they are. PROXIMA_SOAK_FOR is another time than 8 hours.
func TestSoak(t *testing.T) {
	if os.Getenv("PROXIMA_SOAK") == "" {
		t.Skip("8 hours of changes: set PROXIMA_SOAK=1, and PROXIMA_SOAK_FOR=10m for less")
	}
	total := soakFor
	if text := os.Getenv("PROXIMA_SOAK_FOR"); text != "" {
		var err error
		if total, err = time.ParseDuration(text); err != nil {
			t.Fatalf("PROXIMA_SOAK_FOR: %v", err)
		}
	}
	s := newStage(t, direct)
	names := make([]string, 50)
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", i)
		s.service(names[i])
	}
	viewers := []context.Context{s.ctx}
	for range soakViewers - 1 {
		viewers = append(viewers, s.viewer(t))
	}
	ctx, stop := context.WithTimeout(t.Context(), total)
	defer stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	writes := 0
	writing.Go(func() { writes = s.write(ctx, names) })
	samples := map[string][]float64{}
	for range soakSamples {
		select {
		case <-ctx.Done():
		case <-time.After(total / (soakSamples + 1)):
		}
		for name, value := range s.measure(t, viewers) {
			samples[name] = append(samples[name], value)
		}
	}
	stop()
	writing.Wait()
	t.Logf("%d changes, %.0f a second", writes, float64(writes)/total.Seconds())
	for name, all := range samples {
		// What lasts is the least of a part, as garbage comes and goes.
		early, late := slices.Min(all[soakSamples/4:soakSamples/2]), slices.Min(all[3*soakSamples/4:])
		t.Logf("%s: %.1f at first, %.1f in the second quarter, %.1f in the last (most: %.1f)", name, all[0], early, late, slices.Max(all))
		grown, limit := late-early, map[string]float64{"heap of a page, MB": 5, "heap, MB": max(10, 0.1*early), "goroutines": 10, "sockets": 5}[name]
		if grown > limit {
			t.Errorf("%s grew by %.1f, limit %.1f", name, grown, limit)
		}
	}
	if float64(writes) < 0.9*soakRate*total.Seconds() {
		t.Errorf("%d changes in %v: this machine is too busy for %d a second", writes, total, soakRate)
	}
}

// viewer with a profile of its own.
func (s *stage) viewer(t *testing.T) context.Context {
	t.Helper()
	var id target.ID
	s.do(chromedp.ActionFunc(func(ctx context.Context) error {
		ctx = cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		profile, err := target.CreateBrowserContext().Do(ctx)
		if err == nil {
			id, err = target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(ctx)
		}
		return err
	}))
	ctx, cancel := chromedp.NewContext(s.ctx, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	err := chromedp.Run(ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument("if (location.protocol.startsWith('http')) sessionStorage.setItem('proxima-console-secret', " + quote(s.secret) + ")").Do(ctx)
		return err
	}), visit(s.origin+"/console/"), chromedp.Poll("document.querySelector('.pulse.live')", nil))
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

// write changes until ctx ends, and return how many.
func (s *stage) write(ctx context.Context, names []string) int {
	const writers = 10
	var written [writers]int
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			written[i] = s.writeSome(ctx, names, rand.New(rand.NewPCG(1, uint64(i))), writers*time.Second/soakRate)
		})
	}
	all.Wait()
	n := 0
	for _, x := range written {
		n += x
	}
	return n
}

func (s *stage) writeSome(ctx context.Context, names []string, r *rand.Rand, every time.Duration) (n int) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return n
		case <-ticker.C:
		}
		body := `{"endpoints": ` + endpoints(1+r.IntN(9), []string{"a", "ab", "abc", "aab", "c"}[r.IntN(5)]) + `}`
		q, err := http.NewRequestWithContext(ctx, http.MethodPatch, "https://"+s.plane.address+slicesPath+"/"+names[r.IntN(len(names))]+"-1", strings.NewReader(body))
		if err != nil {
			return n
		}
		q.Header.Set("Authorization", "Bearer "+s.plane.token)
		q.Header.Set("Content-Type", "application/merge-patch+json")
		if resp, err := s.plane.client.Do(q); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // its code is what counts
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				n++
			}
		}
	}
}

var (
	goroutines = regexp.MustCompile(`(?m)^go_goroutines (\S+)`)
	heapBytes  = regexp.MustCompile(`(?m)^go_gc_heap_live_bytes (\S+)`)
)

// measure the control plane and its pages.
func (s *stage) measure(t *testing.T, viewers []context.Context) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	q, err := http.NewRequest(http.MethodGet, "https://"+s.plane.address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+s.plane.token)
	resp, err := s.plane.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", resp.Status, err)
	}
	for name, find := range map[string]*regexp.Regexp{"goroutines": goroutines, "heap, MB": heapBytes} {
		m := find.FindSubmatch(text)
		if m == nil {
			t.Fatalf("/metrics has no %s", find)
		}
		x, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = x
	}
	out["heap, MB"] /= 1e6
	dir := fmt.Sprintf("/proc/%d/fd", s.plane.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			out["sockets"]++
		}
	}
	for _, ctx := range viewers {
		ctx, stop := context.WithTimeout(ctx, 2*patience)
		var heap float64
		var live bool
		err := chromedp.Run(ctx, heapprofiler.CollectGarbage(), chromedp.Evaluate("performance.memory.usedJSHeapSize / 1e6", &heap), chromedp.Evaluate("document.querySelector('.pulse.live') !== null", &live))
		stop()
		if err != nil {
			t.Fatal(err)
		}
		if !live {
			t.Error("a viewer is not live")
		}
		out["heap of a page, MB"] = max(out["heap of a page, MB"], heap)
	}
	return out
}

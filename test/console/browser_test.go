package console

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

// patience with a page on a busy machine.
const patience = 30 * time.Second

// startBrowser with one tab.
func startBrowser(t *testing.T, more ...chromedp.ExecAllocatorOption) (ctx context.Context, end func()) {
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(append(chromedp.DefaultExecAllocatorOptions[:], more...),
		chromedp.NoSandbox, // tests run as root
		chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("force-color-profile", "srgb"),
		chromedp.WSURLReadTimeout(patience),
	)...)
	ctx, cancel := chromedp.NewContext(allocator)
	end = func() { cancel(); stop() }
	if err := chromedp.Run(ctx); err != nil {
		end()
		t.Fatalf("Chromium does not start (apt-get install chromium): %v", err)
	}
	return ctx, end
}

// tab of the browser, which fails its test by any error, exception, report of the policy, or request elsewhere.
type tab struct {
	*testing.T
	ctx    context.Context
	origin string
	mu     sync.Mutex
	faults []string
	// expected are texts of faults that a test makes on purpose, and whether they came.
	expected map[string]bool
}

func openTab(t *testing.T, origin string, options ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	ctx, end := startBrowser(t, options...)
	b := &tab{T: t, ctx: ctx, origin: origin, expected: map[string]bool{}}
	chromedp.ListenTarget(ctx, b.listen)
	b.do(network.Enable(), log.Enable(), chromedp.EmulateViewport(1280, 900))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.faults {
			t.Error("in the page: " + f)
		}
		end()
	})
	return b
}

func (b *tab) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.expected {
		if strings.Contains(text, e) {
			b.expected[e] = true
			return
		}
	}
	b.faults = append(b.faults, text)
}

// expect faults that contain a text.
func (b *tab) expect(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected[text] = false
}

// came waits for a fault that is expected.
func (b *tab) came(text string) bool {
	for start := time.Now(); time.Since(start) < patience/3; time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		came := b.expected[text]
		b.mu.Unlock()
		if came {
			return true
		}
	}
	return false
}

func (b *tab) listen(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.fault("exception: %s", e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			b.fault("console: %s", e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			b.fault("log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") && !strings.HasPrefix(e.Request.URL, "blob:"+b.origin) {
			b.fault("a request elsewhere: %s", e.Request.URL)
		}
	}
}

func (b *tab) do(actions ...chromedp.Action) {
	b.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience)
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText.slice(0, 3000)", &text)) // for the message
		b.Fatalf("%v\nthe page shows:\n%s", err, text)
	}
}

// sees waits for a text.
func (b *tab) sees(text string) {
	b.Helper()
	b.is("document.body.innerText.replaceAll('\\u202f', ' ').includes(" + quote(text) + ")")
}

// is waits until an expression is true.
func (b *tab) is(expression string) {
	b.Helper()
	b.do(chromedp.Poll("!!("+expression+")", nil, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(patience/2)))
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// eval an expression.
func (b *tab) eval(expression string, to any) {
	b.Helper()
	b.do(chromedp.Evaluate(expression, to))
}

// go_ to an address in the page.
func (b *tab) at(hash string) {
	b.Helper()
	b.eval("location.hash = "+quote(hash), nil)
}

// now in pictures.
var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// clock of the page stands.
func (b *tab) standStill() {
	b.Helper()
	b.do(emulation.SetTimezoneOverride("UTC"), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(fmt.Sprintf(
			`{const D = Date, at = %d; globalThis.Date = class extends D { constructor(...a) { if (a.length) super(...a); else super(at); } static now() { return at; } };}`,
			now.UnixMilli())).Do(ctx)
		return err
	}))
}

// enter with the token.
func (b *tab) enter() {
	b.Helper()
	b.do(chromedp.Navigate(b.origin+"/console/"), chromedp.WaitVisible("input[type=password]"), chromedp.SendKeys("input[type=password]", fake.Token+"\r"), chromedp.WaitVisible("nav"))
	b.is("document.querySelector('main h1') !== null")
}

// serve a fake API with a status that has all pages.
func serve(t *testing.T, size fake.Size) (*fake.Server, string) {
	t.Helper()
	size.Now = now
	s, err := fake.Serve(fake.New(size))
	if err != nil {
		t.Fatal(err)
	}
	fill(s, size)
	l := httptest.NewServer(s)
	t.Cleanup(func() { s.Cut(); l.Close() })
	return s, l.URL
}

func fill(s *fake.Server, size fake.Size) {
	w := fake.New(size)
	status := admin.Status{Version: version.Get(), Role: "zone", Started: now.Add(-3 * time.Hour), Agents: []admin.AgentStatus{}}
	s.Put(admin.StatusPath, fake.Status(w, status))
	for path, value := range fake.Objects(w) {
		s.Put(path, value)
	}
	s.Set(w, fake.Problems(now))
}

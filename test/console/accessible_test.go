package console

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/proxima-mesh/proxima/test/console/fake"
)

//go:embed testdata/axe/axe.min.js
var axe string

func printed(to *[]byte) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		*to, _, err = page.PrintToPDF().Do(ctx)
		return err
	}
}

// look of the page: the scheme of colours, and whether they are forced.
func (b *tab) look(scheme, forced string) {
	b.Helper()
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "forced-colors", Value: forced}}))
}

func TestAccessible(t *testing.T) {
	t.Parallel()
	_, url := serve(t, small)
	b := openTab(t, url)
	b.do(chromedp.Navigate(url+"/console/"), chromedp.WaitVisible("input[type=password]"), chromedp.Evaluate(axe+"; 0", nil))
	b.violations("the way in")
	b.enter()
	b.do(chromedp.Evaluate(axe+"; 0", nil))
	for _, look := range [][2]string{{"light", "none"}, {"dark", "none"}, {"light", "active"}} {
		b.look(look[0], look[1])
		for _, p := range pages {
			b.at(p.hash)
			b.is(settled)
			b.violations(fmt.Sprint(p.name, " ", look))
		}
	}
	b.look("light", "none")
	t.Run("narrow", func(t *testing.T) {
		b.do(chromedp.EmulateViewport(320, 640))
		for _, p := range pages {
			b.at(p.hash)
			b.is(settled)
			var wide float64
			b.eval("document.documentElement.scrollWidth", &wide)
			if wide > 320 {
				var what string
				b.eval(`[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 321 && !e.closest('.scroll, pre')).slice(0, 5).map(e => e.outerHTML.slice(0, 120)).join('\n')`, &what)
				t.Errorf("%s is %v wide at 320:\n%s", p.name, wide, what)
			}
		}
		b.do(chromedp.EmulateViewport(1280, 900))
	})
	t.Run("keyboard", func(t *testing.T) { keyboard(b) })
	t.Run("many zones", func(t *testing.T) {
		_, url := serve(t, fake.Size{Zones: 20, Regions: 2, Services: 100, Measured: true})
		b := openTab(t, url)
		b.enter()
		b.is("document.querySelector('canvas')")
		b.do(chromedp.Evaluate(axe+"; 0", nil))
		b.violations("Overview of 20 zones")
		var rows, flows int
		b.eval("document.querySelector('details.numbers').open = true, Number(document.querySelector('details.numbers summary').innerText.replaceAll('\\u202f', '').match(/\\d+/)[0])", &flows)
		b.is("document.querySelector('details.numbers table')")
		b.eval("Number(document.querySelector('details.numbers table').getAttribute('aria-rowcount')) - 1", &rows)
		if rows != flows || flows == 0 {
			t.Errorf("the table has %d rows for %d flows", rows, flows)
		}
	})
}

// violations that axe finds.
func (b *tab) violations(where string) {
	b.Helper()
	var found []string
	b.do(chromedp.Evaluate(`axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}).then(r => r.violations.map(v => v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' ' + n.any.concat(n.all).map(c => c.message).join()).join(' | ')))`,
		&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, v := range found {
		b.Errorf("%s: %s", where, v)
	}
}

// keyboard alone reaches what can be used, and the focus is seen.
func keyboard(b *tab) {
	b.Helper()
	b.at("#/services")
	b.is(settled)
	b.eval("document.activeElement.blur(), scrollTo(0, 0)", nil)
	seen := map[string]bool{}
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		var at string
		b.eval(`(e => [e.tagName, (e.innerText || e.ariaLabel || e.type || '').slice(0, 20), getComputedStyle(e).outlineStyle].join(' '))(document.activeElement)`, &at)
		if strings.HasSuffix(at, " none") {
			b.Errorf("the focus is not seen at %s", at)
		}
		seen[strings.Fields(at)[0]] = true
	}
	for _, want := range []string{"A", "BUTTON", "INPUT", "SELECT", "DIV"} { // DIV: the scrolling list
		if !seen[want] {
			b.Errorf("no %s is reached with the keyboard: %v", want, seen)
		}
	}
	// A sort, a Service, and back.
	b.do(chromedp.Focus("thead button"), chromedp.KeyEvent(kb.Enter))
	b.is("location.hash.includes('sort=name') && document.querySelector('tbody th a')?.innerText.startsWith('data/')")
	b.do(chromedp.Focus("tbody th a"), chromedp.KeyEvent(kb.Enter))
	b.is("document.querySelector('main h1')?.innerText.startsWith('Service ') && document.activeElement.id == 'title'")
}

package console

import (
	"os"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/test/console/fake"
)

// TestSize: pages of 10,000 Services in 100 zones stay quick. PROXIMA_SOAK=1 compares the medians of 5 with the limits, which are of
// a machine that does nothing else; without it, one round with ten times the limits.
func TestSize(t *testing.T) {
	rounds, slack := 1, 10.0
	if os.Getenv("PROXIMA_SOAK") != "" {
		rounds, slack = 5, 1
	}
	_, url := serve(t, fake.Size{Zones: 100, Regions: 8, Services: 10_000, Measured: true, Priced: true})
	b := openTab(t, url)
	b.enter()
	took := map[string][]float64{}
	number := func(name, expression string) {
		b.Helper()
		var x float64
		b.do(chromedp.Evaluate(expression, &x, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		took[name] = append(took[name], x)
	}
	for range rounds {
		b.at("#/")
		b.do(chromedp.Reload(), chromedp.WaitVisible("nav"))
		b.is(settled + " && document.querySelector('.facts') && document.querySelector('main canvas.grid')")
		number("first paint", "performance.getEntriesByName('first-contentful-paint')[0].startTime")
		b.at("#/services?sort=name")
		b.is(settled + " && document.querySelectorAll('main tbody th').length > 20")
		number("frame while scrolling, p95", `new Promise(done => {
			const e = document.querySelector('main .scroll'), times = [];
			let last = performance.now(), n = 0;
			const step = () => { const now = performance.now(); times.push(now - last); last = now; e.scrollTop += 300; if (++n < 60) requestAnimationFrame(step); else done(times.sort((a, b) => a - b)[56]); };
			requestAnimationFrame(step);
		})`)
		number("key to rows", `new Promise(done => {
			const e = document.querySelector('input[type=search]'), began = performance.now();
			e.value = 'audit-99'; e.dispatchEvent(new Event('input', {bubbles: true}));
			const look = () => [...document.querySelectorAll('main tbody th')].every(e => e.innerText.includes('audit-99')) ? done(performance.now() - began) : requestAnimationFrame(look);
			look();
		})`)
		b.eval(`(e => { e.value = ''; e.dispatchEvent(new Event('input', {bubbles: true})); return 0; })(document.querySelector('input[type=search]'))`, nil)
		b.is("!location.hash.includes('q=')")
	}
	number("heap in MB", "performance.memory.usedJSHeapSize / 1e6")
	for name, limit := range map[string]float64{"first paint": 300, "frame while scrolling, p95": 33, "key to rows": 150, "heap in MB": 60} {
		all := slices.Sorted(slices.Values(took[name]))
		median := all[len(all)/2]
		t.Logf("%s: %.0f (limit %.0f)", name, median, limit)
		if median > slack*limit {
			t.Errorf("%s: %.0f, limit %.0f", name, median, slack*limit)
		}
	}
}

package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

// small world, with everything in it.
var small = fake.Size{Zones: 3, Regions: 1, Services: 40, Measured: true, Priced: true}

// pages by the address, with a path of the API that each needs.
var pages = []struct{ name, hash, needs string }{
	{"Services", "#/services", admin.SummaryServicesPath},
	{"Service", "#/services/shop/web", admin.SummaryServicePath},
	{"Problems", "#/problems", ""},
	{"Nodes", "#/nodes", "/api/v1/nodes"},
	{"Sites", "#/sites", ""},
	{"Policies", "#/policies", "/apis/mesh.proxima.dev/v1alpha1/workloadpolicies"},
	{"Proxy", "#/policies/shop/web-1", admin.ProxyDiffPath},
	{"Change", "#/changes/4100", admin.ChangesPath},
	{"Registries", "#/registries", ""},
	{"History", "#/history?namespace=shop", admin.FeedHistoryPath},
	{"Overview", "#/", ""},
}

// settled: the page has all that it asked for.
const settled = "document.querySelector('main h1') && !document.querySelector('main .loading')"

func TestFlows(t *testing.T) {
	t.Run("code", testCode)
	t.Run("token", testToken)
	t.Run("states", testStates)
	t.Run("questions", testQuestions)
	t.Run("paths", testPaths)
	t.Run("writes", testWrites)
}

func testToken(t *testing.T) {
	s, url := serve(t, small)
	b := openTab(t, url)
	b.expect("401")
	b.do(chromedp.Navigate(url+"/console/"), chromedp.WaitVisible("input[type=password]"), chromedp.SendKeys("input[type=password]", "wrong\r"))
	b.sees("the token is not valid")
	b.enter()
	b.sees("Flows between zones")
	// A reload keeps the token; it expires in the middle.
	b.do(chromedp.Reload(), chromedp.WaitVisible("nav"))
	s.Fail("/", 401)
	s.Cut()
	b.sees("not accepted any more")
	s.Fail("/", 0)
	b.enter()
	b.sees("Flows between zones")
}

func testStates(t *testing.T) {
	s, url := serve(t, small)
	b := openTab(t, url)
	b.enter()
	for _, p := range pages {
		b.at(p.hash)
		b.is(settled)
		if got := b.text("main h1"); !strings.HasPrefix(got, p.name) {
			t.Errorf("%s: the title is %q", p.name, got)
		}
		if got := b.text("main .command code"); !strings.HasPrefix(got, "proxima ") && !strings.HasPrefix(got, "kubectl ") {
			t.Errorf("%s: the command is %q", p.name, got)
		}
	}
	b.expect("the server responded with a status of 403")
	b.expect("the server responded with a status of 500")
	for _, p := range pages {
		if p.needs == "" {
			continue
		}
		release := s.Hold(p.needs)
		b.at("#/registries")
		b.is(settled)
		b.at(p.hash)
		b.is("document.querySelector('main .loading')")
		release()
		b.is(settled)
		b.at("#/registries")
		for _, code := range []int{403, 500} {
			s.Fail(p.needs, code)
			b.at(p.hash)
			b.is(fmt.Sprintf("document.querySelector('main .note.error')?.innerText.includes('%d')", code))
			s.Fail(p.needs, 0)
			b.at("#/registries")
			b.is("document.querySelector('main h1')?.innerText == 'Registries'")
		}
	}
	// Rights on a part, and nothing at all.
	s.Edit(func(w *fake.World) { w.Zones.Partial = "you may list the Services of 1 namespaces alone: shop" })
	for _, hash := range []string{"#/", "#/services"} {
		b.at(hash)
		b.sees("This is a part: you may list")
	}
	empty := small
	empty.Services = 0
	fill(s, empty)
	for hash, want := range map[string]string{"#/": "There are no Services", "#/services": "There are no Services"} {
		b.at("#/registries")
		b.at(hash)
		b.sees(want)
	}
	// A control plane without sources has no pages of them.
	s.Put(admin.StatusPath, map[string]any{"version": map[string]any{}, "role": "global", "federation": map[string]any{"zones": []any{map[string]any{"name": "east", "enabled": true}}}})
	b.at("#/")
	b.do(chromedp.Reload())
	b.is(settled + " && document.querySelectorAll('nav a').length == 2 && document.querySelector('main h1').innerText == 'Sites'")
	b.sees("not connected")
	s.Put(admin.StatusPath, map[string]any{"version": map[string]any{}, "role": "standalone", "agents": []any{}, "leases": map[string]any{}, "store": map[string]any{}, "catalog": map[string]any{}})
	b.do(chromedp.Reload())
	b.is("document.querySelectorAll('nav a').length == 5")
	if menu := b.text("nav"); strings.Contains(menu, "History") || strings.Contains(menu, "Sites") || strings.Contains(menu, "Registries") {
		t.Errorf("the menu is %q", menu)
	}
}

// text of an element; empty: there is none.
func (b *tab) text(selector string) string {
	b.Helper()
	var text string
	b.eval("document.querySelector("+quote(selector)+")?.innerText ?? ''", &text)
	return text
}

// TestStream waits most of its time, so that others go on.
func TestStream(t *testing.T) {
	t.Parallel()
	s, url := serve(t, small)
	b := openTab(t, url)
	b.enter()
	b.is("document.querySelector('.pulse.live')")
	s.Edit(func(w *fake.World) { w.Zones.Total.Services = 12345 })
	b.is("document.querySelector('.facts').innerText.replaceAll('\\u202f', '').includes('12345')")
	// A tab that is not seen has no stream, and goes on when it is seen again.
	show := func(hidden bool) {
		b.eval(fmt.Sprintf("Object.defineProperty(document, 'hidden', {value: %v, configurable: true}), document.dispatchEvent(new Event('visibilitychange')), 0", hidden), nil)
	}
	show(true)
	b.is("document.querySelector('.pulse.hidden')")
	for start := time.Now(); s.Streams() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("a hidden tab keeps its stream")
		}
	}
	s.Edit(func(w *fake.World) { w.Zones.Total.Services = 4321 })
	back := time.Now()
	show(false)
	b.is("document.querySelector('.pulse.live') && document.querySelector('.facts').innerText.replaceAll('\\u202f', '').includes('4321')")
	if took := time.Since(back); took > 2*time.Second {
		t.Errorf("it was live again after %v", took)
	}
	// Silence is noticed; what was shown stays, greyed; then all goes on without a reload.
	began := time.Now()
	s.Silence(true)
	b.is("document.querySelector('.pulse.stale') && document.querySelector('.old .facts')")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("silence was noticed after %v", took)
	}
	s.Edit(func(w *fake.World) { w.Zones.Total.Services = 54321 })
	began = time.Now()
	s.Silence(false)
	b.is("document.querySelector('.pulse.live') && document.querySelector('.facts').innerText.replaceAll('\\u202f', '').includes('54321')")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it was live again after %v", took)
	}
	// A stream that is cut is opened again.
	s.Cut()
	s.Edit(func(w *fake.World) { w.Zones.Total.Services = 777 })
	b.is("document.querySelector('.pulse.live') && document.querySelector('.facts').innerText.includes('777')")
}

func testQuestions(t *testing.T) {
	_, url := serve(t, fake.Size{Zones: 12, Regions: 3, Services: 2000, Measured: true})
	b := openTab(t, url)
	b.enter()
	b.at("#/services")
	b.is(settled)
	b.is("document.querySelector('main tbody th') !== null")
	b.do(chromedp.SendKeys("input[type=search]", "cart-17"))
	b.is("[...document.querySelectorAll('main tbody th')].every(e => e.innerText.includes('cart-17')) && document.querySelectorAll('main tbody th').length > 0")
	b.is("location.hash.includes('q=cart-17')")
	b.at("#/services?sort=name")
	// Rows come as they are scrolled to.
	b.is("document.querySelector('main tbody th').innerText.startsWith('data/')")
	b.is("(document.querySelector('main .scroll').scrollTop += 4000, document.querySelector('.under').innerText.startsWith('400 of'))")
	var drawn int
	b.eval("document.querySelectorAll('main tbody tr').length", &drawn)
	if drawn > 120 {
		t.Errorf("%d rows are drawn", drawn)
	}
	b.at("#/services/shop/web")
	b.is(settled)
	b.do(chromedp.SetValue(".whatif select", "zone-a"), chromedp.Evaluate("document.querySelector('.whatif select').dispatchEvent(new Event('change', {bubbles: true}))", nil))
	b.sees("if the plan stayed")
	b.sees("proxima simulate --fail-zone zone-a")
	b.at("#/history?kind=services&namespace=shop&name=web&at=1h&to=1s")
	b.sees("There is no difference.")
	b.sees("spec.ports[0].port: 80 → 8080")
}

// testPaths goes from Overview to answers, by at most three steps.
func testPaths(t *testing.T) {
	s, url := serve(t, small)
	b := openTab(t, url)
	b.enter()
	b.is(settled)
	// What would Adaptive save? What leaves its zone and costs most?
	b.sees("plans would save")
	b.do(chromedp.Click("details.numbers summary"))
	b.is("document.querySelector('details.numbers tbody tr') !== null")
	var first, most float64
	b.eval(`(c => Number.parseFloat(c.replace(/\s/g, '')))(document.querySelector('details.numbers tbody tr td:last-child').innerText)`, &first)
	for _, f := range s.World().Zones.Flows {
		most = max(most, f.Cost)
	}
	if diff := first - most; diff > 1 || diff < -1 {
		t.Errorf("the first flow costs %v, the dearest %v", first, most)
	}
	// What if a zone fails?
	b.do(chromedp.Evaluate(`(e => { e.value = 'zone-c'; e.dispatchEvent(new Event('change', {bubbles: true})); return 0; })([...document.querySelectorAll('.panel')].find(p => p.innerText.startsWith('What if')).querySelector('select'))`, nil))
	b.sees("1 Service would have no endpoint: data/alone")
	// Why has a Service no hints?
	b.do(chromedp.Click(`a[href*="HintsRefused"]`))
	b.is(settled + " && document.querySelector('main tbody th a')")
	b.do(chromedp.Click("main tbody th a"))
	b.sees("a zone would be overloaded by 45 %")
	// Why does a node go there?
	b.is("[...document.querySelectorAll('option')].some(o => o.value == 'zone-a-1')")
	b.do(chromedp.Evaluate(`(e => { e.value = 'zone-a-1'; e.dispatchEvent(new Event('change', {bubbles: true})); return 0; })([...document.querySelectorAll('label')].find(l => l.innerText.startsWith('or node')).querySelector('select'))`, nil))
	b.sees("--from-node zone-a-1")
	b.sees("its zone gets this share of the plan")
	// Which agent is behind, and who changed what?
	b.do(chromedp.Click(`nav a[href="#/nodes"]`))
	b.is("document.querySelector('main tbody tr')?.innerText.includes('refused a part of its view')")
	b.do(chromedp.Click(`nav a[href="#/history"]`))
	b.sees("alice")
}

func testWrites(t *testing.T) {
	s, url := serve(t, small)
	b := openTab(t, url)
	b.expect("409")
	b.expect("403")
	b.enter()
	const path = "/api/v1/namespaces/shop/services/web"
	mode := func(value string) {
		b.Helper()
		b.do(chromedp.WaitVisible(".write select"), chromedp.SetValue(".write select", value),
			chromedp.Evaluate("document.querySelector('.write select').dispatchEvent(new Event('change', {bubbles: true}))", nil), chromedp.Click(".write button[type=submit]"))
	}
	b.at("#/services/shop/web")
	mode("Disabled")
	b.is("[...document.querySelectorAll('.diff .new')].some(e => e.innerText.includes('Disabled'))")
	b.sees("kubectl annotate service web -n shop --overwrite service.kubernetes.io/topology-mode=Disabled")
	if len(s.Writes()) != 0 {
		t.Fatalf("a dry run wrote %q", s.Writes())
	}
	b.do(chromedp.SendKeys(".preview input", "shop/we"))
	b.is("document.querySelector('button.act').disabled")
	b.do(chromedp.SendKeys(".preview input", "b\r"))
	b.sees("Done.")
	if got := strings.Join(s.Writes(), "\n"); !strings.Contains(got, `PATCH `+path+` {"metadata":{"annotations":{"service.kubernetes.io/topology-mode":"Disabled"},"resourceVersion":"4000"}}`) {
		t.Fatalf("written: %s", got)
	}
	// Somebody else was faster.
	b.do(chromedp.Reload())
	b.do(chromedp.WaitVisible(".write select"))
	s.Put(path, map[string]any{"metadata": map[string]any{"name": "web", "namespace": "shop", "resourceVersion": "9999"}})
	mode("Auto")
	b.sees("It has been changed meanwhile")
	// And who may not.
	b.do(chromedp.Reload())
	b.do(chromedp.WaitVisible(".write select"))
	s.Put("/apis/mesh.proxima.dev/v1alpha1/zoneshifts", nil)
	b.at("#/nodes")
	b.do(chromedp.WaitVisible(".write input"), chromedp.SendKeys(".write input:not([type=number])", "cooling fails"))
	s.Fail("/apis/mesh.proxima.dev/v1alpha1/zoneshifts", 403)
	b.do(chromedp.Click(".write button[type=submit]"))
	b.is("document.querySelector('.note.error')?.innerText.includes('403')")
	s.Fail("/apis/mesh.proxima.dev/v1alpha1/zoneshifts", 0)
	b.do(chromedp.Click(".write button[type=submit]"))
	b.sees("12 endpoints of 1 Service would be taken out for 60 minutes")
	b.do(chromedp.SendKeys(".preview input", "zone-a\r"))
	b.sees("Done.")
	b.at("#/sites")
	b.do(chromedp.WaitVisible(".write button[type=submit]"), chromedp.Click(".write button[type=submit]"))
	b.sees("25 objects of ServiceExport would be deleted: shop/web, shop/cart")
	b.do(chromedp.SendKeys(".preview input", "east\r"))
	b.sees("Done.")
	all := s.Writes()
	if len(all) != 3 || !strings.HasPrefix(all[1], "POST /apis/mesh.proxima.dev/v1alpha1/zoneshifts") || !strings.HasPrefix(all[2], `POST /proxima/v1/zones/confirm {"token":"7f3a","type":"ServiceExport","zone":"east"}`) {
		t.Errorf("written: %q", all)
	}
}

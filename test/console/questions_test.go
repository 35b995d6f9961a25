package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

// walk is a way through the pages from Overview, of at most maxSteps steps.
type walk struct {
	*tab
	question string
	steps    int
}

const maxSteps = 3

func (w *walk) step(do func()) {
	w.Helper()
	if w.steps++; w.steps > maxSteps {
		w.Fatalf("%s: more than %d steps", w.question, maxSteps)
	}
	do()
	w.is(settled)
}

// click what a selector finds first and is visible.
func (w *walk) click(selector string) {
	w.Helper()
	w.step(func() { w.do(chromedp.WaitVisible(selector), chromedp.Click(selector)) })
}

// menu chooses a page by its name.
func (w *walk) menu(name string) {
	w.Helper()
	w.step(func() {
		w.is("[...document.querySelectorAll('nav a')].some(a => a.innerText == " + quote(name) + ")")
		w.eval("[...document.querySelectorAll('nav a')].find(a => a.innerText == "+quote(name)+").click(), 0", nil)
		w.is("document.querySelector('main h1')?.innerText.startsWith(" + quote(name) + ")")
	})
}

// choose an option of the first list whose label begins so.
func (w *walk) choose(label, value string) {
	w.Helper()
	list := "[...document.querySelectorAll('main label')].find(l => l.innerText.trim().startsWith(" + quote(label) + "))?.querySelector('select')"
	w.step(func() {
		w.is("[..." + "(" + list + ")?.options ?? []].some(o => o.value == " + quote(value) + ")")
		w.eval("(e => { e.value = "+quote(value)+"; e.dispatchEvent(new Event('change', {bubbles: true})); return 0; })("+list+")", nil)
	})
}

// answer is the text of an expression's element, once it has all of the words.
func (w *walk) answer(element string, words ...string) {
	w.Helper()
	text := "(" + element + ")?.innerText.replaceAll('\\u202f', ' ')"
	for _, word := range words {
		w.is(text + "?.includes(" + quote(word) + ")")
	}
}

// row of a table that has a text.
func row(text string) string {
	return "[...document.querySelectorAll('main tbody tr')].find(r => r.innerText.replaceAll('\\u202f', ' ').includes(" + quote(text) + "))"
}

// panel by its heading.
func panel(heading string) string {
	return "[...document.querySelectorAll('main .panel')].find(p => p.querySelector('h2')?.innerText.startsWith(" + quote(heading) + "))"
}

// TestTenQuestions: each question that the console is made for is answered within three steps from Overview, by what the control plane says.
func TestTenQuestions(t *testing.T) {
	s, url := serve(t, small)
	b := openTab(t, url)
	b.enter()
	world := s.World()
	var dearest, ofA string
	var most, mostOfA, saving float64
	for _, f := range world.Zones.Flows {
		if f.From != f.To && f.Cost > most {
			most, dearest = f.Cost, string(f.From)+" "+string(f.To)
		}
		if f.From == "zone-a" && f.To != "zone-a" && f.Cost > mostOfA {
			mostOfA, ofA = f.Cost, string(f.To)
		}
	}
	saving = *world.Zones.Total.Saving
	if dearest == "" || ofA == "" || saving <= 0 {
		t.Fatal("the world has nothing to ask for")
	}
	refused := map[string]bool{}
	for _, l := range world.Services {
		refused[l.Namespace+"/"+l.Name] = l.Code == "HintsRefused"
	}
	for _, q := range []struct {
		question string
		way      func(w *walk)
	}{
		{"what leaves zone a and costs most", func(w *walk) {
			w.click("details.numbers summary")
			// The dearest flow is first, and those of zone-a come by their cost.
			w.is(`(r => { const flows = r.map(x => [...x.children].map(c => c.innerText)).filter(c => c[0] == 'zone-a' && c[1] != 'zone-a'); return flows[0]?.[1] == ` + quote(ofA) + `; })([...document.querySelectorAll('details.numbers tbody tr')])`)
		}},
		{"why has this Service no hints", func(w *walk) {
			w.click(`a[href*="HintsRefused"]`)
			w.is("document.querySelector('main tbody th a')")
			if name := w.text("main tbody th a"); !refused[name] {
				w.Errorf("%q is not one that hints are refused for", name)
			}
			w.click("main tbody th a")
			w.answer("document.querySelector('main .note.partial')", "a zone would be overloaded by 45 %")
		}},
		{"why does node X go to zone b", func(w *walk) {
			w.menu("Services")
			w.is("document.querySelector('main tbody th a')")
			w.click(`main tbody th a[href="#/services/shop/web"]`)
			w.choose("or node", "zone-a-1")
			w.answer(row("10.0.1.7:8080"), "zone-b", "its zone gets this share of the plan")
			w.sees("--from-node zone-a-1")
		}},
		{"what if zone c fails", func(w *walk) {
			w.choose("zone", "zone-c")
			w.answer(panel("What if a zone is lost"), "21 planned Services of 40", "without it", "70 %", "1 Service would have no endpoint: data/alone")
		}},
		{"what changed at 03:12, and by whom", func(w *walk) {
			w.menu("History")
			w.step(func() {
				w.do(chromedp.SetValue(`input[placeholder="1h, or a time"]`, "2026-11-27T03:12:00Z"),
					chromedp.Evaluate(`document.querySelector('input[placeholder="1h, or a time"]').dispatchEvent(new Event('change', {bubbles: true}))`, nil))
			})
			w.answer(row("03:12:09"), "shop/order", "bob", "spec.selector.app: order → orders")
		}},
		{"did my change reach every node", func(w *walk) {
			w.menu("History")
			w.is("document.querySelector('main a[href=\"#/changes/4100\"]')")
			w.click(`main a[href="#/changes/4100"]`)
			w.answer("document.querySelector('main .note[role=status]')", "2 agents of", "have not confirmed it")
			w.answer(panel("Agents that have not confirmed it"), "zone-a-3", "zone-b-1")
			w.is("document.querySelector('main tbody th').innerText == 'zone-a-3'") // the slowest
		}},
		{"which agent is behind", func(w *walk) {
			w.menu("Nodes")
			w.answer("document.querySelector('main tbody tr')", "12", "refused a part of its view: services: unknown field")
		}},
		{"why did this site refuse a policy", func(w *walk) {
			w.menu("Sites")
			w.answer(panel("Last NACK of each type"), "BackendPolicy", "shop/limits", "site east", "spec.limits.connections: must be 1 or more")
		}},
		{"which clients still use Nacos", func(w *walk) {
			w.menu("Registries")
			w.answer(panel("Clients that have registered by nacos"), "shop/billing-0", "legacy-mail", "10.1.0.6:8080", "nacos-stock")
		}},
		{"what would Adaptive save", func(w *walk) {
			w.answer("[...document.querySelectorAll('.fact')].find(f => f.innerText.startsWith('plans would save'))", world.Zones.Total.Currency)
			w.is(fmt.Sprintf(`(x => Math.abs(x - %v) <= Math.max(1, %v / 100))(Number.parseFloat([...document.querySelectorAll('.fact')].find(f => f.innerText.startsWith('plans would save')).querySelector('dd').innerText.replace(/\s/g, '')))`, saving, saving))
			w.answer(panel("Ways to route all of it"), "Adaptive for all")
		}},
	} {
		b.at("#/")
		b.is(settled + " && document.querySelector('main h1').innerText == 'Overview' && document.querySelector('.facts')")
		b.T.Log(q.question)
		q.way(&walk{tab: b, question: q.question})
	}
	// At global, whose first page is Sites, a refusal of each site is there without a step.
	s.Put(admin.StatusPath, fake.Global(3, now))
	b.at("#/")
	b.do(chromedp.Reload())
	w := &walk{tab: b, question: "why did site b refuse a policy"}
	w.is(settled + " && document.querySelector('main h1').innerText == 'Sites'")
	w.answer(row("site-001"), "refused BackendPolicy shop/limits")
	w.answer(panel("Last NACK of each type"), "site site-001", "spec.limits.connections: must be 1 or more")
	if strings.Contains(b.text("main"), "undefined") {
		t.Error("something is undefined")
	}
}

package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

// hostile texts that objects of an attacker may have, each of which would be seen to run.
var hostile = []string{
	`<img src=x onerror="ran=1">`, `<script>ran=1</script>`, `</title></script><svg onload=ran=1>`, `javascript:ran=1`, `"><a href=javascript:ran=1>x</a>`,
	"\u202egnp.exe\u2066", `=HYPERLINK("http://evil.example","x")`, `{{constructor.constructor('ran=1')()}}`, "%3Cscript%3Eran=1%3C/script%3E", "`${ran=1}`",
}

// Expressions for what must not be: elements that the console has none of, as markup; whether a text ran.
const (
	strange = `[...document.querySelectorAll('script, iframe, object, embed, base, form[action], img, a[href]:not([href^="#/"])')].filter(e => !(e.matches('script[src="console.js"]') || e.matches('a.skip'))).map(e => e.outerHTML).join()`
	textRan = "typeof ran != 'undefined'"
)

// formulasIn is an expression for the number of rows of a CSV file that a spreadsheet would compute.
func formulasIn(file string) string {
	return file + `.split('\r\n').filter(l => /(^|,)"?[=+@]/.test(l)).length`
}

func TestHostileText(t *testing.T) {
	t.Parallel()
	s, url := serve(t, small)
	b := openTab(t, url)
	all := strings.Join(hostile, " ")
	long := strings.Repeat("<b>0123456789abcdef</b>", 256<<10/23)
	s.Edit(func(w *fake.World) {
		w.Zones.Zones[0].Name, w.Zones.Zones[0].Region = "", "<b>region</b>"
		for i := range w.Services {
			l := &w.Services[i]
			l.Why, l.Code = all, hostile[i%len(hostile)]
			if i > 0 && i <= len(hostile) {
				l.Name, l.Mode = hostile[i-1], hostile[i-1]
			}
		}
		w.Services[0].Flows = append(w.Services[0].Flows, topology.Flow{From: "zone-<b>", To: "zone-<i>", Planned: 3})
		w.Zones.Flows = append(w.Zones.Flows, topology.Flow{From: "zone-b", To: "<img src=x onerror=ran=1>", Planned: 900})
		w.Zones.Partial = all
	})
	problems := fake.Problems(now)
	problems = append(problems, admin.Problem{Code: hostile[0], Severity: admin.SeverityError, Kind: "Service", Namespace: hostile[1], Name: hostile[2], Problem: all, Fix: "proxima " + all, Since: now},
		admin.Problem{Code: "Long", Severity: admin.SeverityError, Problem: long})
	w := fake.New(fake.Size{Zones: 3, Regions: 1, Services: 40, Measured: true, Priced: true, Now: now})
	status := fake.Status(w, admin.Status{Agents: []admin.AgentStatus{{Node: hostile[0], Rejected: all, Version: hostile[1]}}})
	status["registries"].([]any)[0].(map[string]any)["imported"] = map[string]any{hostile[0]: 3}
	status["registryTroubles"] = []any{map[string]any{"reason": hostile[1], "protocol": "nacos", "count": 2, "examples": hostile}}
	status["zoneShifts"] = []any{map[string]any{"name": "x", "zone": hostile[0], "state": "InEffect", "until": now.Add(time.Hour), "reason": all, "undo": all}}
	federation := status["federation"].(map[string]any)
	federation["problem"] = all
	federation["link"] = map[string]any{"epoch": hostile[1], "lastRefused": []any{map[string]any{"type": hostile[0], "direction": "ToZone", "resource": hostile[2], "reason": all, "at": now}}}
	federation["failures"] = []any{map[string]any{"name": "x", "failure": hostile[3], "state": "yes", "why": all, "where": hostile, "count": 99, "works": hostile[4], "fails": hostile[5], "look": all}}
	s.Put(admin.ProxyDiffPath, map[string]any{"dataplane": "shop/x", "resources": []any{map[string]any{"type": hostile[0], "name": hostile[1], "sent": hostile[2], "state": "rejected", "reason": all}}})
	s.Put(admin.ChangesPath+"7", map[string]any{"revision": 7, "newest": 9, "agents": 3, "slowest": []any{map[string]any{"node": hostile[0], "since": now, "instance": hostile[1], "rejected": all}}, "silentInstances": hostile})
	s.Put("/apis/mesh.proxima.dev/v1alpha1/dataplaneinsights", map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": hostile[2], "namespace": hostile[1]},
		"status": map[string]any{"versions": map[string]any{"proxy": hostile[0]}, "rejected": []any{map[string]any{"type": "Cluster", "name": hostile[3], "policy": hostile[4], "error": all}}}}}})
	s.Put("/apis/mesh.proxima.dev/v1alpha1/dataplanes", map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": hostile[2], "namespace": hostile[1], "annotations": map[string]any{"registry.proxima.dev/registered-by": all}}, "spec": map[string]any{"addresses": []any{hostile[0]}}}}})
	s.Put(admin.StatusPath, status)
	policy := map[string]any{
		"metadata": map[string]any{"name": "p", "namespace": "shop"}, "spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": hostile[0]}}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Programmed", "status": "False", "message": all}}},
	}
	s.Put("/apis/mesh.proxima.dev/v1alpha1/workloadpolicies", map[string]any{"items": []any{policy}})
	s.Put("/api/v1/namespaces/shop/services/web", map[string]any{"metadata": map[string]any{"name": "web", "namespace": "shop", "labels": map[string]any{"a": hostile[0]}, "annotations": map[string]any{hostile[1]: all}}})
	s.Put(admin.FeedHistoryPath, map[string]any{"begins": now, "notes": hostile, "changes": []any{map[string]any{
		"position": 1, "time": now, "operation": "update", "kind": "Service", "namespace": "shop", "name": hostile[0], "user": all, "registry": map[string]any{"protocol": "nacos", "by": all},
		"fields": []any{map[string]any{"path": hostile[1], "from": hostile[0], "to": hostile[2]}},
	}}})
	s.Set(s.World(), problems)
	b.enter()
	for hash, wants := range map[string][]string{
		"#/":                              {"<b>region</b>", hostile[0]},
		"#/services?sort=name":            hostile,
		"#/services/shop/web":             {all, "zone-<b>"},
		"#/problems":                      {all, hostile[1] + "/" + hostile[2], long[:1000]},
		"#/nodes":                         {hostile[0], all},
		"#/sites":                         {all, strings.Join(hostile, ", "), hostile[3], hostile[4], hostile[5]},
		"#/policies":                      {all, "app=" + hostile[0], hostile[1] + "/" + hostile[2], hostile[3] + ", of " + hostile[4]},
		"#/policies/shop/x":               {all, hostile[0], hostile[1]},
		"#/changes/7":                     {all, hostile[0], strings.Join(hostile, ", ")},
		"#/registries":                    {hostile[0] + ": 3", hostile[1], all},
		"#/history?kind=services&since=1": {hostile[0], all},
		"#/services/" + escaped(hostile[0]) + "/" + escaped(hostile[1]): {hostile[0] + "/" + hostile[1]},
		"#/" + escaped(hostile[0]):                                      {"There is no such page"},
	} {
		b.expect("404")
		b.at(hash)
		b.is(settled)
		for _, want := range wants {
			b.is("document.getElementById('app').textContent.includes(" + quote(want) + ")")
		}
		var bad string
		b.eval(strange, &bad)
		if bad != "" {
			t.Errorf("%s: the page has %s", hash, bad)
		}
	}
	b.at("#/services/" + escaped(hostile[0]) + "/" + escaped(hostile[1]))
	b.is("document.title.includes(" + quote(hostile[0]+"/"+hostile[1]) + ")")
	// Files for spreadsheets have no formulas.
	b.eval(`URL.createObjectURL = b => { b.text().then(t => { window.saved = t; }); return 'blob:x'; }; HTMLAnchorElement.prototype.click = () => {}; 0`, nil)
	b.at("#/services?sort=name")
	b.is(settled)
	b.is("[...document.querySelectorAll('.under button')].length == 1")
	b.do(chromedp.Click(".under button"))
	b.is("typeof window.saved == 'string'")
	var formulas int
	b.eval(formulasIn("window.saved"), &formulas)
	if formulas > 0 {
		t.Errorf("%d rows of the CSV have formulas", formulas)
	}
	var pdf []byte
	b.do(chromedp.ActionFunc(printed(&pdf)))
	if len(pdf) == 0 {
		t.Error("nothing was printed")
	}
	var ran bool
	b.eval(textRan, &ran)
	if ran {
		t.Error("a text ran")
	}
}

func escaped(s string) string {
	var out strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&out, "%%%02x", c)
	}
	return out.String()
}

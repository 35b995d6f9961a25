package console

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/test/console/fake"
)

const (
	// What is shown is marked as old so long after the last that came, and is live again so soon after the way back.
	staleWithin, liveWithin = 15 * time.Second, 2 * time.Second
	// stages that play sequences beside each other.
	stages = 4
)

// watch notes in a page when it says that it is live or not, and when it had no time to do anything.
const watch = `
globalThis.seen = []; globalThis.late = [];
{
	let at = performance.now(), last = '';
	setInterval(() => { const now = performance.now(); if (now - at > 120) late.push([Date.now(), now - at]); at = now; }, 20);
	new MutationObserver(() => {
		const is = document.querySelector('.pulse')?.className.replace('pulse ', '') ?? '';
		if (is !== last) seen.push([Date.now(), last = is]);
	}).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ['class']});
}`

// TestStaysTrue plays random sequences of changes, cuts, slow and silent links, restarts of the control plane, changes of its leader, other
// epochs, and hidden windows: what is old is marked in time, it is live again in time and without a reload, and then the page shows
// what a fresh one does. PROXIMA_SOAK=1 plays 500; PROXIMA_SEED=N plays that one.
func TestStaysTrue(t *testing.T) {
	first, count := uint64(0), uint64(20)
	if os.Getenv("PROXIMA_SOAK") != "" {
		count = 500
	}
	if text := os.Getenv("PROXIMA_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("PROXIMA_SEED=%q: use a number", text)
		}
		first, count = n, 1
	}
	var all sync.WaitGroup
	defer all.Wait()
	var starting sync.Mutex
	start := func(t *testing.T, kind stageKind) *stage {
		starting.Lock() // as a browser and a control plane keep a machine busy
		defer starting.Unlock()
		return newStage(t, kind)
	}
	playAll := func(t *testing.T, k uint64) {
		var s *stage
		for seed := first + k; seed < first+count; seed += stages {
			if s == nil || s.kind != kindOf(seed) {
				s = start(t, kindOf(seed))
			}
			if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { s.play(t, seed) }) {
				s = nil // its state is not known
			}
		}
	}
	for k := range min(uint64(stages), count) {
		// Stages wait most of their time, so that there may be more of them than processors.
		all.Go(func() { t.Run(fmt.Sprintf("stage %d", k+1), func(t *testing.T) { playAll(t, k) }) })
	}
}

// TestTwelveWindows are visible at once on the loopback listener, which is more than a browser opens connections to a host.
func TestTwelveWindows(t *testing.T) {
	t.Parallel()
	s := newStage(t, loopback)
	s.is("document.querySelector('.pulse.live')")
	ask := func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true).WithUserGesture(true)
	}
	for i := range 11 {
		s.do(chromedp.Evaluate(fmt.Sprintf("(window.others ??= []).push(open(location.href, '', 'popup,left=%d,width=400,height=300')); 0", 20*i), nil, ask))
	}
	const all = "others.length == 11 && [window, ...others].every(w => !w.document.hidden && w.document.querySelector('.pulse.live') && w.document.querySelector('.facts')%s)"
	s.is(fmt.Sprintf(all, ""))
	shows := func(name string) {
		s.Helper()
		s.service(name)
		n := s.services()
		s.is(fmt.Sprintf(all, fmt.Sprintf("?.innerText.includes('Services\\n%d')", n)))
	}
	shows("first")
	// All of them come back, and the one that had the stream may go.
	s.link.set(linkState{cut: true})
	s.is("[window, ...others].every(w => w.document.querySelector('.pulse.stale, .pulse.live') && w.document.querySelector('.facts'))")
	s.link.set(linkState{})
	shows("second")
	s.hide(true)
	s.service("third")
	s.is(fmt.Sprintf("others.every(w => w.document.querySelector('.pulse.live') && w.document.querySelector('.facts').innerText.includes('Services\\n%d'))", s.services()))
	s.hide(false)
	shows("fourth")
}

type stageKind string

const (
	direct   stageKind = "direct"   // a browser at a control plane, over TLS
	loopback stageKind = "loopback" // at "proxima console", which is at a control plane
	faked    stageKind = "fake"     // at an API that can have another leader and another epoch
)

// kindOf stage that a seed is played on; neighbours of a stage are of one kind, as far as that goes.
func kindOf(seed uint64) stageKind {
	return []stageKind{direct, loopback, loopback, faked}[seed%stages]
}

// stage is a control plane behind a link, a page that stays, and another that is loaded anew.
type stage struct {
	*tab
	kind   stageKind
	link   *link
	plane  *plane
	fake   *fake.Server
	secret string
	fresh  context.Context
	made   int
}

// visit an address until the page's script runs. Now and then Chromium loads a document, lets go of the connection, and asks for nothing
// that the document names until it is loaded again.
func visit(address string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) (err error) {
		for range 3 {
			if err = chromedp.Run(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(address)); err != nil {
				return err
			}
			try, stop := context.WithTimeout(ctx, patience/4)
			err = chromedp.Run(try, chromedp.Poll("!document.querySelector('.boot')", nil, chromedp.WithPollingInterval(20*time.Millisecond)))
			stop()
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
		return err
	})
}

func newStage(t *testing.T, kind stageKind) *stage {
	t.Helper()
	s := &stage{kind: kind}
	origin, enter := "", fake.Token
	switch kind {
	case faked:
		w := small
		w.Now = time.Now()
		f, err := fake.Serve(fake.New(w))
		if err != nil {
			t.Fatal(err)
		}
		fill(f, w)
		l := httptest.NewServer(f)
		t.Cleanup(func() { f.Cut(); l.Close() })
		s.fake, s.link = f, newLink(t, l.Listener.Addr().String())
		origin = "http://" + s.link.address()
	default:
		s.plane = startPlane(t)
		s.link = newLink(t, s.plane.address)
		origin, enter = "https://"+s.link.address(), s.plane.token
	}
	address := origin + "/console/"
	if kind == loopback {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		data, err := os.ReadFile(filepath.Join(s.plane.dir, "kubeconfig"))
		if err == nil {
			err = os.WriteFile(file, bytes.ReplaceAll(data, []byte(s.plane.address), []byte(s.link.address())), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		address = start(t, "#code=", "--kubeconfig", file, "console", "--no-browser")
		origin, _, _ = strings.Cut(address, "/console/")
	}
	s.tab = openTab(t, origin, chromedp.Flag("ignore-certificate-errors", true))
	for _, text := range []string{"net::ERR_", "the server responded with a status of 50"} {
		s.expect(text) // of requests while there is no way
	}
	script := watch
	if kind != loopback {
		script += "; if (location.protocol.startsWith('http')) sessionStorage.setItem('proxima-console-secret', " + quote(enter) + ")"
	}
	s.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
		return err
	}), visit(address))
	s.do(chromedp.WaitVisible("nav"))
	s.eval("sessionStorage.getItem('proxima-console-secret')", &s.secret)
	// A page of another profile shares nothing with the first.
	var fresh target.ID
	s.do(chromedp.ActionFunc(func(ctx context.Context) error {
		ctx = cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		profile, err := target.CreateBrowserContext().Do(ctx)
		if err == nil {
			fresh, err = target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(ctx)
		}
		return err
	}))
	ctx, cancel := chromedp.NewContext(s.ctx, chromedp.WithTargetID(fresh))
	t.Cleanup(cancel)
	s.fresh = ctx
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(1280, 900), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument("if (location.protocol.startsWith('http')) sessionStorage.setItem('proxima-console-secret', " + quote(s.secret) + ")").Do(ctx)
		return err
	})); err != nil {
		t.Fatal(err)
	}
	return s
}

// plane is a control plane's process.
type plane struct {
	t                   *testing.T
	dir, address, token string
	cmd                 *exec.Cmd
	client              *http.Client
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	p := &plane{t: t, dir: t.TempDir(), address: "127.0.0.1:0", client: &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	t.Cleanup(func() { p.stop(syscall.SIGTERM) })
	p.start()
	out, err := exec.Command(program(t), "--data-dir", p.dir, "token", "create", "--kind", "admin", "--name", "test").Output()
	if err != nil {
		t.Fatal(err)
	}
	p.token = strings.TrimSpace(string(out))
	p.call("POST", "/api/v1/namespaces", `{"metadata": {"name": "shop"}}`)
	for _, z := range "abc" {
		p.call("POST", "/api/v1/nodes", fmt.Sprintf(`{"metadata": {"name": "node-%[1]c", "labels": {"topology.kubernetes.io/zone": "zone-%[1]c", "topology.kubernetes.io/region": "north"}}, "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}`, z))
	}
	return p
}

// start, and wait until it serves; the address stays.
func (p *plane) start() {
	p.t.Helper()
	p.cmd = exec.Command(program(p.t), "control-plane", "--data-dir", p.dir, "--api-address", p.address, "--grpc-port", "0", "--xds-port", "0")
	p.cmd.Stderr = io.Discard
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_, rest, ok := strings.Cut(line, "api=https://")
	if err != nil || !ok {
		p.t.Fatalf("the control plane says %q: %v", line, err)
	}
	p.address, _, _ = strings.Cut(rest, " ")
}

func (p *plane) stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	_ = p.cmd.Wait() // it was ended
}

// call the API, not by the link.
func (p *plane) call(method, path, body string) map[string]any {
	p.t.Helper()
	r, err := http.NewRequest(method, "https://"+p.address+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := p.client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode >= 300 {
		p.t.Fatalf("%s %s: %s %v %v", method, path, resp.Status, out, err)
	}
	return out
}

func (s *stage) services() int {
	s.Helper()
	return int(s.plane.call("GET", admin.SummaryServicesPath+"?limit=1", "")["all"].(float64))
}

const slicesPath = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"

// service with endpoints in each zone.
func (s *stage) service(name string) {
	s.Helper()
	s.plane.call("POST", "/api/v1/namespaces/shop/services", fmt.Sprintf(`{"metadata": {"name": %q, "annotations": {"service.kubernetes.io/topology-mode": "proxima.dev/Adaptive"}}, "spec": {"ports": [{"name": "http", "port": 80}]}}`, name))
	s.plane.call("POST", slicesPath, fmt.Sprintf(`{"metadata": {"name": "%[1]s-1", "labels": {"kubernetes.io/service-name": %[1]q}}, "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": %[2]s}`, name, endpoints(3, "abc")))
}

// endpoints of the zones, in turn.
func endpoints(n int, zones string) string {
	var all []string
	for i := range n {
		z := zones[i%len(zones)]
		all = append(all, fmt.Sprintf(`{"addresses": ["10.1.0.%d"], "nodeName": "node-%c", "zone": "zone-%c"}`, i+1, z, z))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// change something that pages show.
func (s *stage) change(r *rand.Rand) {
	s.Helper()
	s.made++
	if s.fake != nil {
		n := s.made
		s.fake.Edit(func(w *fake.World) {
			w.Zones.Total.Services = 1000 + n
			w.Zones.Zones[r.IntN(len(w.Zones.Zones))].Endpoints = int64(r.IntN(100))
			w.Services[r.IntN(len(w.Services))].Endpoints = r.IntN(100)
		})
		return
	}
	switch k := r.IntN(4); {
	case k == 0 || s.made == 1:
		s.service(fmt.Sprintf("web-%d", s.made))
	case k == 1:
		items := s.plane.call("GET", "/api/v1/namespaces/shop/services", "")["items"].([]any)
		if len(items) > 3 {
			name := items[r.IntN(len(items))].(map[string]any)["metadata"].(map[string]any)["name"].(string)
			s.plane.call("DELETE", "/api/v1/namespaces/shop/services/"+name, "")
		}
	default:
		items := s.plane.call("GET", slicesPath, "")["items"].([]any)
		if len(items) > 0 {
			name := items[r.IntN(len(items))].(map[string]any)["metadata"].(map[string]any)["name"].(string)
			s.plane.call("PATCH", slicesPath+"/"+name, `{"endpoints": `+endpoints(1+r.IntN(9), []string{"a", "ab", "abc", "aab", "c"}[r.IntN(5)])+`}`)
		}
	}
}

// hide the window, or show it.
func (s *stage) hide(hidden bool) {
	s.Helper()
	s.eval(fmt.Sprintf("Object.defineProperty(document, 'hidden', {value: %v, configurable: true}), document.dispatchEvent(new Event('visibilitychange')), 0", hidden), nil)
}

// seen is how long after a time the page said so, and for how much of that it had no time to do anything. It is 0 where the page has said so
// since before.
func (s *stage) seen(state string, since time.Time) (took, busy time.Duration) {
	s.Helper()
	from := since.UnixMilli()
	last := "seen.findLast(e => e[0] <= " + fmt.Sprint(from) + ")?.[1] == " + quote(state)
	next := "seen.find(e => e[0] > " + fmt.Sprint(from) + " && e[1] == " + quote(state) + ")"
	s.is("(" + last + " && seen.at(-1)[1] == " + quote(state) + ") || " + next)
	var at float64
	s.eval(last+" && seen.at(-1)[1] == "+quote(state)+" && !seen.find(e => e[0] > "+fmt.Sprint(from)+") ? "+fmt.Sprint(from)+" : "+next+"[0]", &at)
	took = time.Duration(at-float64(from)) * time.Millisecond
	var late float64
	s.eval(fmt.Sprintf("late.filter(e => e[0] > %d && e[0] - e[1] < %d).reduce((n, e) => n + e[1], 0)", from, int64(at)+200), &late)
	return took, time.Duration(late) * time.Millisecond
}

// stale within the limit of what began then.
func (s *stage) stale(what string, since time.Time) {
	s.Helper()
	if took, busy := s.seen("stale", since); took > staleWithin+busy {
		s.Errorf("%s: marked as old after %v (the page was held up for %v)", what, took, busy)
	}
	s.is("document.querySelector('main h1')") // what was shown stays
}

// live within the limit of the way back.
func (s *stage) live(what string, since time.Time) {
	s.Helper()
	took, busy := s.seen("live", since)
	s.Logf("%s: live after %v", what, took)
	if took > liveWithin+busy {
		s.Errorf("%s: live again after %v (the page was held up for %v)", what, took, busy)
	}
}

// play a sequence.
func (s *stage) play(t *testing.T, seed uint64) {
	outer := s.T
	s.T = t
	defer func() { s.T = outer }()
	if s.plane != nil {
		s.plane.t = t
		defer func() { s.plane.t = outer }()
	}
	r := rand.New(rand.NewPCG(seed, 11))
	hashes := []string{"#/", "#/", "#/services", "#/services/shop/web-1", "#/problems", "#/nodes"}
	if s.fake != nil {
		hashes = []string{"#/", "#/services"}
	}
	hash := hashes[r.IntN(len(hashes))]
	if hash == "#/services/shop/web-1" && s.made == 0 {
		s.change(r)
	}
	s.at(hash)
	s.is(settled + " && document.querySelector('.pulse.live')")
	s.eval("globalThis.mark = "+fmt.Sprint(seed)+", seen.splice(0, seen.length - 1), late.length = 0, 0", nil)
	s.change(r)
	for range 1 + r.IntN(3) {
		if s.step(r); t.Failed() {
			return
		}
	}
	s.cut(r) // the last step is a way back, after which the page is up to date at once
	s.equal(hash)
	var mark float64
	s.eval("globalThis.mark ?? -1", &mark)
	if mark != float64(seed) {
		s.Error("the page was loaded again")
	}
}

// step of a sequence.
func (s *stage) step(r *rand.Rand) {
	s.Helper()
	for range r.IntN(4) {
		s.change(r)
	}
	switch k := r.IntN(20); {
	case k < 5:
		s.cut(r)
	case k < 10:
		s.hide(true)
		s.is("document.querySelector('.pulse.hidden')")
		if k == 9 {
			s.restart(r)
		}
		s.change(r)
		back := time.Now()
		s.hide(false)
		s.live("shown", back)
	case k < 14:
		if s.fake != nil {
			s.lead(r)
			return
		}
		began := time.Now()
		back := s.restart(r)
		s.stale("restart", began)
		s.live("restart", back)
	case k < 17:
		s.link.set(linkState{slow: true})
		s.change(r)
		s.is("document.querySelector('.pulse.live')")
		s.link.set(linkState{})
	case k < 18:
		// Held up for a moment that nobody needs to notice.
		s.link.set(linkState{frozen: true})
		s.change(r)
		back := time.Now()
		s.link.set(linkState{})
		s.live("held up", back)
	default:
		began := time.Now()
		s.link.set(linkState{frozen: true})
		s.change(r)
		s.stale("silence", began)
		back := time.Now()
		if k == 18 || s.kind == direct { // there is one connection for all requests, and a page has no other
			s.link.set(linkState{})
		} else {
			s.link.lose()
		}
		s.live([]string{"silence", "connections that died in silence"}[k-18], back)
	}
}

func (s *stage) wait(done func() bool) {
	s.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience {
			s.Fatal("it does not happen")
		}
	}
}

// cut the link until the page has tried to come back some times.
func (s *stage) cut(r *rand.Rand) {
	s.Helper()
	began := time.Now()
	s.link.set(linkState{cut: true})
	s.stale("cut", began)
	s.change(r)
	tries := r.IntN(4)
	s.wait(func() bool { return s.link.tried() >= tries })
	back := time.Now()
	s.link.set(linkState{})
	s.live("cut", back)
}

// restart the control plane, and return when it was back.
func (s *stage) restart(r *rand.Rand) time.Time {
	s.Helper()
	if s.fake != nil {
		s.fake.Edit(func(w *fake.World) { w.Zones.Epoch = fmt.Sprintf("epoch-%d", s.made) })
		s.fake.Cut()
		return time.Now()
	}
	s.plane.stop([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[r.IntN(2)])
	s.plane.start()
	return time.Now()
}

// lead by another instance, whose sums are of another epoch and begin at a lower position.
func (s *stage) lead(r *rand.Rand) {
	s.Helper()
	began := time.Now()
	s.fake.Fail("/proxima/v1/", http.StatusServiceUnavailable)
	s.fake.Cut()
	s.stale("leader", began)
	s.change(r)
	s.fake.Edit(func(w *fake.World) { w.Zones.Epoch, w.Zones.Sequence = fmt.Sprintf("leader-%d", s.made), 0 })
	back := time.Now()
	s.fake.Fail("/proxima/v1/", 0)
	s.live("leader", back)
}

// passing are numbers that are of the moment.
var passing = regexp.MustCompile(`\d+\x{202f}(min|s|h|d)`)

// shown is what a page shows, without what is of the moment.
const shown = `(() => {
	const main = document.querySelector('main');
	if (!main || main.querySelector('.loading')) return '';
	const copy = main.cloneNode(true);
	for (const h of copy.querySelectorAll('h2')) if (/last six hours/.test(h.textContent)) h.closest('section').remove(); // how it was, at times
	return copy.textContent;
})()`

// equal waits until the page shows what one that is loaded now does.
func (s *stage) equal(hash string) {
	s.Helper()
	load := func() string {
		ctx, stop := context.WithTimeout(s.fresh, patience)
		defer stop()
		var text string
		if err := chromedp.Run(ctx, visit(s.origin+"/console/"+hash),
			chromedp.Poll(settled+" && document.querySelector('.pulse.live')", nil, chromedp.WithPollingInterval(20*time.Millisecond)), chromedp.Evaluate(shown, &text)); err != nil {
			_ = chromedp.Run(s.fresh, chromedp.Evaluate("location.href.split('#').at(-1) + ' ' + document.body.innerText", &text)) // for the message
			s.Fatalf("a fresh page at %s: %v\n%s", hash, err, text)
		}
		return passing.ReplaceAllString(text, "…")
	}
	var have, want string
	for began := time.Now(); time.Since(began) < patience/3; {
		want = load()
		s.eval(shown, &have)
		if have = passing.ReplaceAllString(have, "…"); have == want && want != "" {
			return
		}
	}
	s.Errorf("the page at %s shows\n%s\na fresh one\n%s", hash, have, want)
}

package delta

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

const drain = 5 * time.Second

// rules of a proxy, with short names of types: clusters, endpoints, listeners, routes.
func rules(c LayeredConfig) LayeredConfig {
	c.Order, c.Gated, c.Prompt, c.Drain = []string{"C", "E", "L", "R"}, []string{"L", "R"}, "L", drain
	return c
}

// envoy is a client that behaves as Envoy does: it asks for the endpoints of clusters that it
// did not have, waits for endpoints after each change of a cluster, and refuses a response
// with a malformed resource (a body with "!") as a whole, or that one alone ("?").
type envoy struct {
	session *Layered
	state   map[string]map[string]string
	version map[string]map[string]string
	named   map[string]map[string]bool
	warming map[string]bool
	// log of what was applied, in order.
	log []string
	now time.Time
}

func newEnvoy() *envoy {
	e := &envoy{warming: map[string]bool{}, now: time.Unix(0, 0)}
	e.state, e.version, e.named = map[string]map[string]string{}, map[string]map[string]string{}, map[string]map[string]bool{}
	for _, typ := range []string{"C", "E", "L", "R"} {
		e.state[typ], e.version[typ], e.named[typ] = map[string]string{}, map[string]string{}, map[string]bool{}
	}
	return e
}

func (e *envoy) connect(c LayeredConfig) {
	if e.session != nil {
		c.Again = e.session.Unfollowed()
		e.session.Close()
	}
	e.session = NewLayered(rules(c))
	for _, typ := range []string{"C", "L", "E", "R"} {
		r := Request{Type: typ, Versions: maps.Clone(e.version[typ])}
		if typ == "C" || typ == "L" {
			r.Subscribe = []string{"*"}
		}
		r.Subscribe = append(r.Subscribe, slices.Sorted(maps.Keys(e.named[typ]))...)
		if len(r.Subscribe) > 0 {
			must(e.session.Step(r))
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (e *envoy) ask(typ, name string) {
	e.named[typ][name] = true
	must(e.session.Step(Request{Type: typ, Subscribe: []string{name}}))
}

func (e *envoy) unask(typ, name string) {
	if !e.named[typ][name] || typ == "E" { // it asks for endpoints by itself
		return
	}
	delete(e.named[typ], name)
	e.drop(typ, name)
	must(e.session.Step(Request{Type: typ, Unsubscribe: []string{name}}))
}

func (e *envoy) drop(typ, name string) {
	delete(e.state[typ], name)
	delete(e.version[typ], name)
	if typ == "C" {
		delete(e.warming, name)
	}
}

// one takes a response, if there is one.
func (e *envoy) one() (*discovery.DeltaDiscoveryResponse, time.Time) {
	due := woken(e.session) || e.session.Pending() // as a transport decides whether to call Next
	f, wake := e.session.Next(e.now)
	if !due && (f != nil || !wake.IsZero()) {
		panic("there is more, and neither is the session woken nor says it so")
	}
	if f == nil {
		return nil, wake
	}
	r := &discovery.DeltaDiscoveryResponse{}
	must(proto.Unmarshal(f.Data, r))
	refused := ""
	for _, res := range r.Resources {
		if strings.Contains(string(res.Resource.Value), "!") {
			refused = "malformed"
		}
	}
	if refused == "" {
		for _, res := range r.Resources {
			if strings.Contains(string(res.Resource.Value), "?") {
				refused = "not possible: " + res.Name
				continue
			}
			e.apply(r.TypeUrl, res)
		}
		for _, name := range r.RemovedResources {
			e.log = append(e.log, "-"+r.TypeUrl+"/"+name)
			e.drop(r.TypeUrl, name)
		}
	}
	must(e.session.Step(Request{Type: r.TypeUrl, Nonce: r.Nonce, Rejected: refused}))
	return r, time.Time{}
}

func (e *envoy) apply(typ string, res *discovery.Resource) {
	body := string(res.Resource.Value)
	e.log = append(e.log, typ+"/"+res.Name)
	different := e.state[typ][res.Name] != body
	e.state[typ][res.Name], e.version[typ][res.Name] = body, res.Version
	switch _, of, _ := strings.Cut(body, ">"); {
	case typ == "C" && of != "" && different:
		e.warming[res.Name] = true
		if !e.named["E"][of] {
			e.ask("E", of)
		}
	case typ == "E":
		for cluster := range e.warming {
			if strings.HasSuffix(e.state["C"][cluster], ">"+res.Name) {
				delete(e.warming, cluster)
			}
		}
	}
}

// settle takes everything, and lets the time pass that the session asks for.
func (e *envoy) settle(t interface{ Fatal(...any) }) {
	for range 10_000 {
		r, wake := e.one()
		switch {
		case r != nil:
		case wake.IsZero():
			return
		default:
			e.now = wake
		}
	}
	t.Fatal("never comes to an end")
}

// woken takes the session's token, if it has one.
func woken(s *Layered) bool {
	select {
	case <-s.Wake():
		return true
	default:
		return false
	}
}

// lazy is a Source whose entries are made when they are asked for.
type lazy struct {
	world *plane
	refs  map[Ref]int
}

func (s *lazy) Want(r Ref) {
	s.refs[r]++
	s.world.put(r)
}

func (s *lazy) Release(r Ref) {
	s.refs[r]--
	if s.refs[r] < 0 {
		panic("released more often than wanted")
	}
}

func (s *lazy) Absent(r Ref) []byte {
	if strings.HasPrefix(r.Name, "v") {
		return []byte("nothing")
	}
	return nil
}

// plane is a control plane with two layers: one that all see, one of the class.
type plane struct {
	bodies     map[Ref]string
	zone, top  *Scope
	at         uint64
	selection  *Selection
	selected   map[Ref]struct{}
	quarantine *Quarantine
	source     *lazy
}

func newPlane() *plane {
	p := &plane{bodies: map[Ref]string{}, selection: NewSelection(), selected: map[Ref]struct{}{}}
	p.source = &lazy{p, map[Ref]int{}}
	p.restart()
	return p
}

func (p *plane) restart() {
	p.zone, p.top, p.quarantine = NewScope(Options{Tombstones: 2}), NewScope(Options{Tombstones: 2}), NewQuarantine()
	p.at = 1
	for _, s := range []*Scope{p.zone, p.top} {
		_, err := s.Replace(Position{1, 1}, nil)
		must(err)
	}
	for ref := range p.bodies {
		p.put(ref)
	}
}

func (p *plane) config() LayeredConfig {
	return LayeredConfig{Layers: []*Scope{p.top, p.zone}, Selection: p.selection, Source: p.source, Quarantine: p.quarantine}
}

func (p *plane) scopeOf(r Ref) *Scope {
	if r.Type == "E" {
		return p.zone
	}
	return p.top
}

// put brings an entry into its layer. Names that begin with x or v are not listed; clusters
// have their endpoints behind ">".
func (p *plane) put(r Ref) {
	body, ok := p.bodies[r]
	p.at++
	o := &ResourceOptions{Unlisted: r.Name[0] == 'x' || r.Name[0] == 'v'}
	if _, of, refers := strings.Cut(body, ">"); refers && r.Type == "C" {
		o.Follower = Ref{"E", of}
	}
	_, err := p.scopeOf(r).Apply(Position{1, p.at}, []Change{{Resource: Resource{Type: r.Type, Name: r.Name, Body: []byte(body), Options: o}, Removed: !ok}})
	must(err)
}

func (p *plane) set(r Ref, body string) {
	if body == "" {
		delete(p.bodies, r)
	} else {
		p.bodies[r] = body
	}
	p.put(r)
}

func ref(s string) Ref { typ, name, _ := strings.Cut(s, "/"); return Ref{typ, name} }

// TestLayeredConverges: whatever changes, is refused, asked for or cut, in whatever order, the
// proxy comes to what it is to have, no cluster waits for endpoints that exist, and a resource
// that it refuses costs no other.
func TestLayeredConverges(t *testing.T) {
	names := map[string][]string{"C": {"a", "b", "c", "xa", "xb", "v1", "v2"}, "E": {"e", "f"}, "L": {"a", "b", "xa"}, "R": {"r", "s"}}
	rapid.Check(t, func(t *rapid.T) {
		p := newPlane()
		e := newEnvoy()
		e.connect(p.config())
		draw := func() Ref {
			typ := rapid.SampledFrom([]string{"C", "E", "L", "R"}).Draw(t, "type")
			return Ref{typ, rapid.SampledFrom(names[typ]).Draw(t, "name")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(*rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "changes") {
					r := draw()
					body := rapid.SampledFrom([]string{"", "1", "2", "3", "4!", "5?"}).Draw(t, "body")
					if r.Type == "C" && body != "" && rapid.Bool().Draw(t, "eds") {
						body += ">" + rapid.SampledFrom(names["E"]).Draw(t, "endpoints")
					}
					p.set(r, body)
				}
			},
			"change while idle": func(*rapid.T) {
				e.settle(t)
				for woken(e.session) {
				}
				r := draw()
				p.set(r, rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "body"))
				wakes := woken(e.session)
				if wakes {
					e.session.waker.wake() // one looks for it, too
				}
				if got, _ := e.one(); got != nil && !wakes {
					t.Fatalf("%v changes what is to be sent (%v), and does not wake the session", r, got)
				}
			},
			"ask":   func(*rapid.T) { r := draw(); e.ask(r.Type, r.Name) },
			"unask": func(*rapid.T) { r := draw(); e.unask(r.Type, r.Name) },
			"select": func(*rapid.T) {
				r := draw()
				p.selected = maps.Clone(p.selected)
				if has(p.selected, r) {
					delete(p.selected, r)
				} else {
					p.selected[r] = struct{}{}
				}
				names := []*Ref{}
				for name := range p.selected {
					names = append(names, &name)
				}
				slices.SortFunc(names, CompareRefs)
				p.selection.Set(names)
			},
			"one":       func(*rapid.T) { e.one() },
			"settle":    func(*rapid.T) { e.settle(t) },
			"wait":      func(*rapid.T) { e.now = e.now.Add(drain) },
			"reconnect": func(*rapid.T) { e.connect(p.config()) },
			"restart": func(*rapid.T) {
				p.restart()
				e.session.Close()
				e.session = nil // another instance does not know what the one before did not send
				clear(e.warming)
				e.connect(p.config())
			},
		})
		e.settle(t)
		e.now = e.now.Add(2 * drain)
		e.settle(t)
		for typ, all := range names {
			for _, name := range all {
				r := Ref{typ, name}
				body := p.bodies[r]
				listed := (typ == "C" || typ == "L") && (body != "" && name[0] != 'x' && name[0] != 'v' || body != "" && has(p.selected, r))
				if body == "" && e.named[typ][name] && name[0] == 'v' {
					body = "nothing"
				}
				got, has := e.state[typ][name]
				switch wanted := body != "" && (listed || e.named[typ][name]); {
				case wanted && strings.ContainsAny(body, "!?"):
					if got == body {
						t.Fatalf("%v is what the proxy refused", r)
					}
				case wanted && got != body, !wanted && has:
					t.Fatalf("%v: the proxy has %q, and is to have %q (wanted: %v)", r, got, body, wanted)
				}
			}
		}
		for cluster := range e.warming {
			_, of, _ := strings.Cut(e.state["C"][cluster], ">")
			if body := p.bodies[Ref{"E", of}]; body != "" && !strings.ContainsAny(body, "!?") {
				t.Fatalf("cluster %s waits for endpoints %s, which exist", cluster, of)
			}
		}
		e.session.Close()
		for r, n := range p.source.refs {
			if n != 0 {
				t.Fatalf("%v is still wanted %d times", r, n)
			}
		}
	})
}

// TestOrder: what is referred to is there before, and stays until the drain time is over.
func TestOrder(t *testing.T) {
	p := newPlane()
	e := newEnvoy()
	p.set(ref("C/a"), "1>e")
	p.set(ref("E/e"), "1")
	p.set(ref("L/a"), "1")
	p.set(ref("R/r"), "1")
	e.connect(p.config())
	e.ask("R", "r")
	e.settle(t)
	e.log = nil
	p.set(ref("L/b"), "1")
	p.set(ref("C/b"), "1>f")
	p.set(ref("E/f"), "1")
	e.settle(t)
	want := []string{"C/b", "E/f", "L/b"}
	if diff := cmp.Diff(want, e.log); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	e.log = nil
	start := e.now
	for _, r := range []string{"C/b", "E/f", "L/b", "R/r"} {
		p.set(ref(r), "")
	}
	for range 20 {
		if r, _ := e.one(); r == nil {
			break
		}
	}
	if diff := cmp.Diff([]string{"-L/b"}, e.log); diff != "" {
		t.Errorf("before the drain time (-want +got):\n%s", diff)
	}
	e.settle(t)
	if diff := cmp.Diff([]string{"-L/b", "-R/r", "-E/f", "-C/b"}, e.log); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if e.now.Sub(start) != drain {
		t.Errorf("removed after %s, not %s", e.now.Sub(start), drain)
	}
}

// TestFollower: endpoints are sent after each version of their cluster, and after another
// cluster that has the same.
func TestFollower(t *testing.T) {
	p := newPlane()
	e := newEnvoy()
	p.set(ref("C/a"), "1>e")
	p.set(ref("E/e"), "1")
	e.connect(p.config())
	e.settle(t)
	for _, change := range []string{"C/a", "C/b"} {
		e.log = nil
		p.set(ref(change), "2>e")
		e.settle(t)
		if diff := cmp.Diff([]string{change, "E/e"}, e.log); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// TestFollowerOfLaterType: a client that comes back, and is sent another version of a cluster before
// it has said which endpoints it has, is sent those whatever it has.
func TestFollowerOfLaterType(t *testing.T) {
	p := newPlane()
	e := newEnvoy()
	p.set(ref("C/a"), "1>e")
	p.set(ref("E/e"), "1")
	e.connect(p.config())
	e.settle(t)
	e.session.Close()
	p.set(ref("C/a"), "2>e")
	e.log = nil
	e.session = NewLayered(rules(p.config()))
	must(e.session.Step(Request{Type: "C", Subscribe: []string{"*"}, Versions: maps.Clone(e.version["C"])}))
	if r, _ := e.one(); r == nil || r.TypeUrl != "C" {
		t.Fatalf("first comes %v", r)
	}
	must(e.session.Step(Request{Type: "E", Subscribe: []string{"e"}, Versions: maps.Clone(e.version["E"])}))
	e.settle(t)
	if diff := cmp.Diff([]string{"C/a", "E/e"}, e.log); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestIsolation: of many resources the one that is refused is found within log2 n + 1 rounds
// after the first, others have theirs, and the next proxy of the class is never sent it.
func TestIsolation(t *testing.T) {
	p := newPlane()
	for i := range 16 {
		p.set(Ref{"C", fmt.Sprintf("c%02d", i)}, "1")
	}
	p.set(Ref{"C", "c11"}, "good")
	e := newEnvoy()
	var found []Quarantined
	c := p.config()
	c.Report = &reports{refused: func(q Quarantined, alone bool) {
		if alone {
			t.Error("it concerns everybody")
		}
		found = append(found, q)
	}}
	e.connect(c)
	e.settle(t)
	for i := range 16 {
		p.set(Ref{"C", fmt.Sprintf("c%02d", i)}, "2")
	}
	p.set(Ref{"C", "c11"}, "bad!")
	rounds := 0
	for len(found) == 0 && rounds < 20 {
		e.one()
		rounds++
	}
	e.settle(t)
	if len(found) != 1 || found[0].Name != "c11" || found[0].Reason != "malformed" {
		t.Fatalf("found %+v", found)
	}
	if rounds > 10 { // 16, 8+8, 4+4, 2+2, 1
		t.Errorf("%d responses until it was found", rounds)
	}
	other := newEnvoy()
	c.Report = &reports{refused: func(q Quarantined, _ bool) { t.Errorf("the second proxy was sent %v", q) }}
	other.connect(c)
	other.settle(t)
	for name, body := range map[string]string{"c00": "2", "c11": "good"} {
		if e.state["C"][name] != body || other.state["C"][name] != body {
			t.Errorf("%s is %q and %q, want %q", name, e.state["C"][name], other.state["C"][name], body)
		}
	}
	p.set(Ref{"C", "c11"}, "3")
	e.settle(t)
	if e.state["C"]["c11"] != "3" {
		t.Errorf("its next version is not sent: %q", e.state["C"]["c11"])
	}
}

// TestFallback: what a fallback is there for is sent without what was refused; what is of one
// machine concerns one machine.
func TestFallback(t *testing.T) {
	p := newPlane()
	p.at++
	_, err := p.top.Apply(Position{1, p.at}, []Change{{Resource: Resource{
		Type: "L", Name: "l", Body: []byte("patched!"), Options: &ResourceOptions{Fallback: []byte("plain")},
	}}})
	must(err)
	e := newEnvoy()
	e.connect(p.config())
	e.settle(t)
	if e.state["L"]["l"] != "plain" {
		t.Errorf("the listener is %q", e.state["L"]["l"])
	}

	s := NewLayered(rules(p.config()))
	p.set(ref("L/m"), "1")
	must(s.Step(Request{Type: "L"}))
	f, _ := s.Next(time.Unix(0, 0))
	r := &discovery.DeltaDiscoveryResponse{}
	must(proto.Unmarshal(f.Data, r))
	must(s.Step(Request{Type: "L", Nonce: r.Nonce, Rejected: "m: cannot bind '0.0.0.0:80': Address already in use"}))
	for range 5 {
		if f, _ = s.Next(time.Unix(0, 0)); f == nil {
			break
		}
		must(proto.Unmarshal(f.Data, r))
		rejected := ""
		if r.Resources[0].Name == "m" {
			rejected = "cannot bind"
		}
		must(s.Step(Request{Type: "L", Nonce: r.Nonce, Rejected: rejected}))
	}
	for _, q := range p.quarantine.List() {
		if q.Name == "m" {
			t.Errorf("quarantine of all: %v", q)
		}
	}
}

// TestWhole: a client of state of the world gets everything that it named in each response.
func TestWhole(t *testing.T) {
	p := newPlane()
	p.set(ref("C/xa"), "1")
	p.set(ref("C/xb"), "1")
	c := rules(p.config())
	c.Whole = true
	s := NewLayered(c)
	next := func() (*discovery.DiscoveryResponse, map[string]bool) {
		f, _ := s.Next(time.Unix(0, 0))
		if f == nil {
			return nil, nil
		}
		r, bodies := &discovery.DiscoveryResponse{}, map[string]bool{}
		must(proto.Unmarshal(f.Data, r))
		for _, a := range r.Resources {
			if a.TypeUrl != "C" {
				t.Errorf("type %q", a.TypeUrl)
			}
			bodies[string(a.Value)] = true
		}
		return r, bodies
	}
	must(s.Step(Request{Type: "C", Subscribe: []string{"xa"}}))
	r, got := next()
	if diff := cmp.Diff(map[string]bool{"1": true}, got); diff != "" {
		t.Fatal(diff)
	}
	must(s.Step(Request{Type: "C", Subscribe: []string{"xa"}, Nonce: r.Nonce}))
	if r, _ := next(); r != nil {
		t.Fatalf("an answer to an acknowledgement: %v", r)
	}
	p.set(ref("C/xb"), "2")
	if r, _ := next(); r != nil {
		t.Fatalf("an answer for what was not asked for: %v", r)
	}
	must(s.Step(Request{Type: "C", Subscribe: []string{"xa", "xb"}, Nonce: r.Nonce}))
	if _, got = next(); len(got) != 2 {
		t.Fatalf("got %v", got)
	}
	p.set(ref("C/xa"), "3")
	_, got = next()
	if diff := cmp.Diff(map[string]bool{"3": true, "2": true}, got); diff != "" {
		t.Fatal(diff)
	}
	p.set(ref("C/xa"), "")
	if _, got = next(); !got["2"] || len(got) != 1 {
		t.Fatalf("after a removal: %v", got)
	}
}

// TestNamesAreBounded: too many names are told as absent, and cost nothing else.
func TestNamesAreBounded(t *testing.T) {
	p := newPlane()
	c := rules(p.config())
	c.MaxNames = 3
	s := NewLayered(c)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("v%d", i))
	}
	must(s.Step(Request{Type: "C", Subscribe: names}))
	f, _ := s.Next(time.Unix(0, 0))
	if f.Resources != 3 || f.Removed != 7 || len(p.source.refs) != 3 {
		t.Errorf("%d resources, %d removed, %d wanted", f.Resources, f.Removed, len(p.source.refs))
	}
}

// FuzzLayered: whatever a client says, its session comes to an end of what it has to tell.
func FuzzLayered(f *testing.F) {
	f.Add("C +* +v1\nE +e\nC nonce=1 reject=no", false)
	f.Add("C +a have:a=1\nC -a +xa nonce=1\nL -*\nL +*", true)
	f.Fuzz(func(t *testing.T, script string, whole bool) {
		p := newPlane()
		for _, r := range []string{"C/a", "C/xa", "C/b"} {
			p.set(ref(r), "1>e")
		}
		p.set(ref("E/e"), "1")
		c := rules(p.config())
		c.Whole, c.MaxNames = whole, 50
		s := NewLayered(c)
		now := time.Unix(0, 0)
		for line := range strings.Lines(script) {
			if fields := strings.Fields(line); len(fields) > 0 && s.Step(request(fields)) != nil {
				return
			}
			for i := 0; ; i++ {
				f, wake := s.Next(now)
				if f == nil && wake.IsZero() {
					break
				}
				if f == nil {
					now = wake
				}
				if i > 1000 {
					t.Fatal("after 1000 responses still more")
				}
			}
		}
		s.Close()
		for r, n := range p.source.refs {
			if n != 0 {
				t.Fatalf("%v is wanted %d times", r, n)
			}
		}
	})
}

// TestGate: listeners wait until clusters and endpoints are answered, and not for ever.
func TestGate(t *testing.T) {
	p := newPlane()
	p.set(ref("C/a"), "1>e")
	p.set(ref("E/e"), "1")
	p.set(ref("L/a"), "1")
	s := NewLayered(rules(p.config()))
	for _, typ := range []string{"C", "L"} {
		must(s.Step(Request{Type: typ}))
	}
	now := time.Unix(0, 0)
	next := func() string {
		f, _ := s.Next(now)
		if f == nil {
			return ""
		}
		return f.Type
	}
	if got := next(); got != "C" {
		t.Fatalf("first %q", got)
	}
	if got := next(); got != "" {
		t.Errorf("%q before the clusters are answered", got)
	}
	must(s.Step(Request{Type: "C", Nonce: "1"}))
	if got := next(); got != "" {
		t.Errorf("%q before the endpoints are asked for", got)
	}
	must(s.Step(Request{Type: "E", Subscribe: []string{"e"}}))
	if got := next() + next(); got != "E" {
		t.Errorf("%q before the endpoints are answered", got)
	}
	must(s.Step(Request{Type: "E", Nonce: "2"}))
	if got := next(); got != "L" {
		t.Errorf("%q once all is answered", got)
	}
	p.set(ref("C/b"), "1>f")
	p.set(ref("L/b"), "1")
	if got := next() + next(); got != "C" {
		t.Errorf("%q", got)
	}
	now = now.Add(maxHold)
	if got := next(); got != "L" {
		t.Errorf("%q after the longest wait", got)
	}
}

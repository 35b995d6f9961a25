package delta

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// client is a delta xDS client as simple as can be: state by name, and the last
// position by type.
type client struct {
	session  *Session
	types    []string
	state    map[string]map[string]string // type → name → body
	versions map[string]map[string]string
	position map[string]string
	bytes    int
	// digests: its cursors have a digest.
	digests bool
}

func newClient(types ...string) *client {
	c := &client{types: types, state: map[string]map[string]string{}, versions: map[string]map[string]string{}, position: map[string]string{}}
	for _, typ := range types {
		c.state[typ], c.versions[typ] = map[string]string{}, map[string]string{}
	}
	return c
}

// connect starts a session with what the client has.
func (c *client) connect(s *Scope, cursor bool) {
	c.session = NewSession(s)
	for _, typ := range c.types {
		r := Request{Type: typ, Versions: maps.Clone(c.versions[typ])}
		if cursor && c.position[typ] != "" {
			r.Versions = map[string]string{"": c.position[typ]}
			if c.digests {
				r.Versions[""] = Cursor(c.position[typ], c.versions[typ])
			}
		} else {
			c.position[typ] = ""
		}
		if err := c.session.Step(r); err != nil {
			panic(err)
		}
	}
}

// step takes one response, if there is one, and acknowledges it.
func (c *client) step() (*Frame, error) {
	f, err := c.session.Next()
	if err != nil || f == nil {
		return nil, err
	}
	var r discovery.DeltaDiscoveryResponse
	if err := proto.Unmarshal(f.Data, &r); err != nil {
		return nil, err
	}
	if r.TypeUrl != f.Type || len(r.Resources) != f.Resources || len(r.RemovedResources) != f.Removed {
		return nil, fmt.Errorf("frame %+v does not describe %v", f, &r)
	}
	for _, res := range r.Resources {
		if res.Resource.TypeUrl != f.Type || res.Version != VersionOf(res.Resource.Value) {
			return nil, fmt.Errorf("wrong type or version: %v", res)
		}
		c.state[f.Type][res.Name] = string(res.Resource.Value)
		c.versions[f.Type][res.Name] = res.Version
	}
	for _, name := range r.RemovedResources {
		delete(c.state[f.Type], name)
		delete(c.versions[f.Type], name)
	}
	if f.Complete {
		c.position[f.Type] = r.SystemVersionInfo
	}
	c.bytes += len(f.Data)
	return f, c.session.Step(Request{Type: f.Type, Nonce: r.Nonce})
}

// drain takes all there is, starting again where the server says so.
func (c *client) drain(t *rapid.T, s *Scope) {
	for range 10_000 {
		f, err := c.step()
		switch {
		case errors.Is(err, ErrPosition):
			c.connect(s, false)
		case err != nil:
			t.Fatalf("drain: %v", err)
		case f == nil:
			return
		}
	}
	t.Fatal("never comes to an end")
}

// world is the truth that clients must come to.
type world struct {
	scope   *Scope
	options Options
	at      Position
	state   map[string]map[string]string
	clients []*client
}

var types = []string{"t/a", "t/b"}

func newWorld(o Options, clients int) *world {
	w := &world{options: o, state: map[string]map[string]string{}, at: Position{Epoch: 1, Sequence: 10}}
	for _, typ := range types {
		w.state[typ] = map[string]string{}
	}
	w.scope = NewScope(o)
	for i := range clients {
		c := newClient(types...)
		c.digests = i > 0
		c.connect(w.scope, true)
		w.clients = append(w.clients, c)
	}
	return w
}

func (w *world) all() []Resource {
	var out []Resource
	for typ, names := range w.state {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			out = append(out, Resource{Type: typ, Name: name, Body: []byte(names[name])})
		}
	}
	return out
}

func (w *world) replace(t *rapid.T) {
	if _, err := w.scope.Replace(w.at, w.all()); err != nil {
		t.Fatal(err)
	}
}

func genChange(t *rapid.T) Change {
	return Change{
		Resource: Resource{
			Type: rapid.SampledFrom(types).Draw(t, "type"),
			Name: rapid.StringMatching(`[a-f]`).Draw(t, "name"),
			Body: []byte(rapid.StringMatching(`[xy]{0,6}`).Draw(t, "body")),
		},
		Removed: rapid.IntRange(0, 2).Draw(t, "kind") == 0,
	}
}

func (w *world) record(c Change) {
	if c.Removed {
		delete(w.state[c.Type], c.Name)
	} else {
		w.state[c.Type][c.Name] = string(c.Body)
	}
}

// TestConverge: whatever happens, in whatever order, each client comes to the
// server's state.
func TestConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Options{
			Tombstones: rapid.SampledFrom([]int{1, 3, math.MaxInt}).Draw(t, "tombstones"),
			FrameSize:  rapid.SampledFrom([]int{1, 90, 1 << 20}).Draw(t, "frame size"),
		}, 3)
		any := func(t *rapid.T) *client { return rapid.SampledFrom(w.clients).Draw(t, "client") }
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				changes := rapid.SliceOfN(rapid.Custom(genChange), 0, 4).Draw(t, "changes")
				if _, ok := w.scope.Position(); !ok {
					w.replace(t)
				}
				w.at.Sequence += rapid.Uint64Range(1, 3).Draw(t, "step")
				for _, c := range changes {
					w.record(c)
				}
				if _, err := w.scope.Apply(w.at, changes); err != nil {
					t.Fatal(err)
				}
			},
			"replace": func(t *rapid.T) {
				for _, c := range rapid.SliceOfN(rapid.Custom(genChange), 0, 4).Draw(t, "changes") {
					w.record(c)
				}
				w.at.Sequence++
				if rapid.Bool().Draw(t, "new epoch") {
					w.at = Position{Epoch: w.at.Epoch + 1, Sequence: rapid.Uint64Range(0, 20).Draw(t, "sequence")}
				}
				w.replace(t)
			},
			"restart the server": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "new epoch") {
					w.at = Position{Epoch: w.at.Epoch + 1, Sequence: rapid.Uint64Range(0, 20).Draw(t, "sequence")}
				}
				w.scope = NewScope(w.options)
				w.replace(t)
				for _, c := range w.clients {
					c.connect(w.scope, rapid.Bool().Draw(t, "cursor"))
				}
			},
			"one response": func(t *rapid.T) {
				c := any(t)
				if _, err := c.step(); errors.Is(err, ErrPosition) {
					c.connect(w.scope, false)
				} else if err != nil {
					t.Fatal(err)
				}
			},
			"drain":   func(t *rapid.T) { any(t).drain(t, w.scope) },
			"connect": func(t *rapid.T) { any(t).connect(w.scope, rapid.Bool().Draw(t, "cursor")) },
			"lose everything": func(t *rapid.T) {
				i := rapid.IntRange(0, len(w.clients)-1).Draw(t, "client")
				w.clients[i] = newClient(types...)
				w.clients[i].digests = i > 0
				w.clients[i].connect(w.scope, true)
			},
		})
		if _, ok := w.scope.Position(); !ok {
			w.replace(t)
		}
		for i, c := range w.clients {
			c.drain(t, w.scope)
			if diff := cmp.Diff(w.state, c.state); diff != "" {
				t.Fatalf("client %d differs from the server (-server +client):\n%s", i, diff)
			}
		}
	})
}

// TestBytes: a client that comes back with its position is sent each changed
// name once, and nothing else.
func TestBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Options{}, 1)
		for i := range 200 {
			w.record(Change{Resource: Resource{Type: types[0], Name: fmt.Sprintf("n%03d", i), Body: make([]byte, 100)}})
		}
		w.replace(t)
		c := w.clients[0]
		c.drain(t, w.scope)

		touched := map[string]bool{}
		for _, change := range rapid.SliceOfN(rapid.Custom(genChange), 0, 30).Draw(t, "changes") {
			w.at.Sequence++
			n, err := w.scope.Apply(w.at, []Change{change})
			if err != nil {
				t.Fatal(err)
			}
			w.record(change)
			if n > 0 {
				touched[change.Type+" "+change.Name] = true
			}
		}
		c.connect(w.scope, true)
		c.bytes = 0
		sent := map[string]bool{}
		for {
			f, err := c.session.Next()
			if err != nil {
				t.Fatal(err)
			}
			if f == nil {
				break
			}
			c.bytes += len(f.Data)
			var r discovery.DeltaDiscoveryResponse
			if err := proto.Unmarshal(f.Data, &r); err != nil {
				t.Fatal(err)
			}
			names := slices.Clone(r.RemovedResources)
			for _, res := range r.Resources {
				names = append(names, res.Name)
			}
			for _, name := range names {
				key := f.Type + " " + name
				if sent[key] {
					t.Fatalf("%s was sent twice", key)
				}
				sent[key] = true
			}
		}
		if diff := cmp.Diff(touched, sent); diff != "" {
			t.Fatalf("sent is not what changed (-changed +sent):\n%s", diff)
		}
		// A response without content takes about 40 bytes, a resource of genChange
		// less than 60 (type twice, version, name, body).
		if limit := 2*40 + 60*len(touched); c.bytes > limit {
			t.Fatalf("%d bytes for %d changes, expected at most %d", c.bytes, len(touched), limit)
		}
	})
}

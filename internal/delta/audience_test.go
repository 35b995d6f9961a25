package delta

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// TestWakesHoldersAlone: a change wakes the sessions that hold the entry, however many others there
// are, and leaves nothing behind when sessions end.
func TestWakesHoldersAlone(t *testing.T) {
	for _, n := range []int{100, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { wakesHolders(t, n) })
	}
}

func wakesHolders(t *testing.T, n int) {
	zone, class := NewScope(Options{Types: []string{"E"}}), NewScope(Options{})
	at := uint64(1)
	for _, s := range []*Scope{zone, class} {
		_, err := s.Replace(Position{1, 1}, nil)
		must(err)
	}
	put := func(s *Scope, typ, name, body string, listed bool) {
		at++
		_, err := s.Apply(Position{1, at}, []Change{{Removed: body == "", Resource: Resource{
			Type: typ, Name: name, Body: []byte(body), Options: &ResourceOptions{Unlisted: !listed},
		}}})
		must(err)
	}
	own := make([]*Scope, n)
	selections := make([]*Selection, n)
	sessions := make([]*Layered, n)
	for i := range sessions {
		own[i], selections[i] = NewScope(Options{Few: true}), NewSelection()
		_, err := own[i].Replace(Position{1, 1}, nil)
		must(err)
		selections[i].Set([]*Ref{{"C", fmt.Sprint("c", i)}})
		sessions[i] = NewLayered(rules(LayeredConfig{Layers: []*Scope{own[i], class, zone}, Selection: selections[i]}))
		must(sessions[i].Step(Request{Type: "C", Subscribe: []string{"*"}}))
		must(sessions[i].Step(Request{Type: "E", Subscribe: []string{fmt.Sprint("e", i)}}))
	}
	woken := func(what string, want ...int) {
		t.Helper()
		var got []int
		for i, s := range sessions {
			select {
			case <-s.Wake():
				got = append(got, i)
			default:
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s wakes %d sessions %.100v, want %.100v", what, len(got), got, want)
		}
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	put(zone, "E", "e7", "1", false)
	woken("endpoints that one session asked for", 7)
	put(zone, "E", "e7", "1", false)
	woken("what does not differ")
	put(zone, "E", "nobody", "1", false)
	woken("endpoints of nobody")
	put(class, "C", "c8", "1", false)
	woken("a cluster of one selection", 8)
	put(class, "C", "nobody", "1", false)
	woken("a cluster of no selection")
	put(class, "C", "shared", "1", true)
	woken("a cluster of all", all...)
	put(class, "C", "shared", "", true)
	woken("its end", all...)
	put(own[9], "L", "l", "1", true)
	woken("what is one session's own", 9)
	must(sessions[7].Step(Request{Type: "E", Unsubscribe: []string{"e7"}}))
	put(zone, "E", "e7", "2", false)
	woken("endpoints that nobody asks for any more")
	selections[8].Set(nil)
	woken("another selection", 8)
	sessions[8].Next(time.Unix(0, 0))
	put(class, "C", "c8", "2", false)
	woken("a cluster that was selected")
	for _, s := range sessions {
		s.Close()
	}
	for _, s := range []*Scope{zone, class, own[0]} {
		for typ, a := range s.audience.types {
			if len(a.listed)+len(a.named) > 0 {
				t.Errorf("type %s: %d and %d sessions are left", typ, len(a.listed), len(a.named))
			}
		}
		if a := &s.audience; len(a.free) != len(a.sessions) {
			t.Errorf("%d of %d sessions have left", len(a.free), len(a.sessions))
		}
	}
}

// TestTypes: a scope has resources of its types alone.
func TestTypes(t *testing.T) {
	s := NewScope(Options{Types: []string{"E"}})
	other := Resource{Type: "C", Name: "a", Body: []byte("1")}
	if _, err := s.Replace(Position{1, 1}, []Resource{other}); err == nil {
		t.Error("it takes another type as its content")
	}
	_, err := s.Replace(Position{1, 1}, []Resource{{Type: "E", Name: "a", Body: []byte("1")}})
	must(err)
	if _, err := s.Apply(Position{1, 2}, []Change{{Resource: other}}); err == nil {
		t.Error("it takes a change of another type")
	}
}

// TestFirstContentWakes: sessions that wait for a scope's first content are told of it.
func TestFirstContentWakes(t *testing.T) {
	s := NewScope(Options{})
	session := NewLayered(rules(LayeredConfig{Layers: []*Scope{s}}))
	defer session.Close()
	must(session.Step(Request{Type: "C", Subscribe: []string{"*"}}))
	if f, _ := session.Next(time.Unix(0, 0)); f != nil {
		t.Fatal("it is sent something before the scope has content")
	}
	_, err := s.Replace(Position{1, 1}, nil)
	must(err)
	select {
	case <-session.Wake():
	default:
		t.Error("it is not woken")
	}
}

// TestEncoding: a resource with an encoding is sent as one without, and scopes share its bytes.
func TestEncoding(t *testing.T) {
	body := []byte("1")
	shared := Encode("C", "a", body)
	if !shared.Is("C", "a", body) || shared.Is("C", "a", []byte("2")) || shared.Is("C", "b", body) || shared.Is("E", "a", body) {
		t.Error("an encoding does not know what it is of")
	}
	scopes := []*Scope{NewScope(Options{}), NewScope(Options{}), NewScope(Options{})}
	for i, s := range scopes {
		r := Resource{Type: "C", Name: "a", Body: body}
		if i > 0 {
			r.Encoding = shared
		}
		_, err := s.Replace(Position{1, 1}, []Resource{r})
		must(err)
	}
	entry := func(i int) *entry { return scopes[i].tables["C"].byName["a"] }
	if !bytes.Equal(entry(0).field, entry(1).field) || entry(0).version != entry(1).version {
		t.Errorf("%q is sent, want %q", entry(1).field, entry(0).field)
	}
	if &entry(1).field[0] != &entry(2).field[0] {
		t.Error("two scopes have copies")
	}
}

package delta

import (
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// TestTracesOfChanges: streams get the traces of the changes since their position, of removals and of what was
// overtaken, too; those that begin get none, and a change that is none has none.
func TestTracesOfChanges(t *testing.T) {
	s := NewScope(Options{})
	if _, err := s.Replace(Position{1, 1}, []Resource{{Type: "t", Name: "a", Body: []byte("1")}, {Type: "t", Name: "b", Body: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	session := func() *Session {
		out := NewSession(s)
		if err := out.Step(Request{Type: "t"}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	next := func(of *Session) []Traced {
		t.Helper()
		f, err := of.Next()
		if err != nil || f == nil {
			t.Fatalf("%v, %v", f, err)
		}
		var r discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(f.Data, &r); err != nil {
			t.Fatal(err)
		}
		return TracedOf(r.ProtoReflect().GetUnknown())
	}
	keeps, lags := session(), session()
	next(keeps)
	next(lags)
	sequence := uint64(1)
	apply := func(c Change) bool {
		t.Helper()
		sequence++
		if _, err := s.Apply(Position{1, sequence}, []Change{c}); err != nil {
			t.Fatal(err)
		}
		return c.Trace != nil && c.Trace.Made
	}
	set := func(name, body, context string) Change {
		c := Change{Resource: Resource{Type: "t", Name: name, Body: []byte(body)}}
		if context != "" {
			c.Trace = &Trace{Context: context}
		}
		return c
	}
	if !apply(set("a", "2", "first")) || apply(set("a", "2", "nothing")) {
		t.Error("Made is not whether there was a difference")
	}
	if got, want := next(keeps), []Traced{{"a", "first"}}; !cmp.Equal(got, want) {
		t.Errorf("a stream that keeps up has %v, want %v", got, want)
	}
	apply(set("a", "3", "second"))
	apply(set("a", "4", ""))
	apply(Change{Resource: Resource{Type: "t", Name: "b"}, Removed: true, Trace: &Trace{Context: "gone"}})
	if got, want := next(keeps), []Traced{{"a", "second"}, {"b", "gone"}}; !cmp.Equal(got, want) {
		t.Errorf("a stream that keeps up has %v, want %v", got, want)
	}
	if got, want := next(lags), []Traced{{"a", "first"}, {"a", "second"}, {"b", "gone"}}; !cmp.Equal(got, want) {
		t.Errorf("a stream that lags has %v, want %v", got, want)
	}
	if got := next(session()); got != nil {
		t.Errorf("a stream that begins has %v", got)
	}
}

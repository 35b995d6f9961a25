package delta

import (
	"fmt"
	"testing"
)

// TestConfirmed: a status has the newest position of which the client has answered all, also when it answers late, and when more is
// outstanding than is remembered.
func TestConfirmed(t *testing.T) {
	scope := NewScope(Options{})
	at := func(n uint64) Position { return Position{Epoch: 1, Sequence: n} }
	resources := func(n uint64) []Resource {
		return []Resource{{Type: "svc", Name: "x", Body: fmt.Appendf(nil, "%d", n)}}
	}
	if _, err := scope.Replace(at(1), resources(1)); err != nil {
		t.Fatal(err)
	}
	s := NewSession(scope)
	if err := s.Step(Request{Type: "svc"}); err != nil {
		t.Fatal(err)
	}
	var nonces []string
	next := func() {
		t.Helper()
		f, err := s.Next()
		if err != nil || f == nil {
			t.Fatalf("%v, %v", f, err)
		}
		nonces = append(nonces, fmt.Sprint(f.to))
	}
	next()
	const changes = maxAwaited + 20
	for n := uint64(2); n <= changes; n++ {
		if _, err := scope.Apply(at(n), []Change{{Resource: resources(n)[0]}}); err != nil {
			t.Fatal(err)
		}
		next()
	}
	confirmed := func() uint64 { return s.Status()[0].Confirmed.Sequence }
	answer := func(i int) {
		if err := s.Step(Request{Type: "svc", Nonce: nonces[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if got := confirmed(); got != 0 {
		t.Errorf("confirmed %d before any answer", got)
	}
	answer(0)
	if got := confirmed(); got != 1 {
		t.Errorf("confirmed %d, want 1", got)
	}
	answer(4)
	if got := confirmed(); got != 5 {
		t.Errorf("confirmed %d, want 5", got)
	}
	answer(changes - 2) // its position is not remembered any more: what is before it holds
	if got := confirmed(); got > changes-1 || got < 5 {
		t.Errorf("confirmed %d of %d", got, changes-1)
	}
	answer(changes - 1)
	if got := confirmed(); got != changes {
		t.Errorf("confirmed %d, want %d", got, changes)
	}
}

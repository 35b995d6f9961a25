package delta

import (
	"errors"
	"fmt"
	"testing"
)

// TestNamesOfAStream: what a stream names is bounded, in one request and in many.
func TestNamesOfAStream(t *testing.T) {
	names := make([]string, maxNames+1)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	open := func() *Session { return NewSession(NewScope(Options{})) }
	if err := open().Step(Request{Type: "t", Subscribe: names}); !errors.Is(err, ErrRequest) {
		t.Errorf("%d names at once: %v", len(names), err)
	}
	s := open()
	if err := s.Step(Request{Type: "t", Subscribe: names[:maxNames]}); err != nil {
		t.Fatal(err)
	}
	if err := s.Step(Request{Type: "t", Subscribe: names[maxNames:]}); !errors.Is(err, ErrRequest) {
		t.Errorf("one more name: %v", err)
	}
	s = open()
	if err := s.Step(Request{Type: "t"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Step(Request{Type: "t", Unsubscribe: names}); !errors.Is(err, ErrRequest) {
		t.Errorf("%d names to forget: %v", len(names), err)
	}
}

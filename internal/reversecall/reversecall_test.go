package reversecall

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
)

func part(id uint64, text string, last bool) *sidecarv1.Answer {
	return &sidecarv1.Answer{Id: id, Part: []byte(text), Last: last}
}

// TestParts: parts of two calls come interleaved, and each caller gets its own.
func TestParts(t *testing.T) {
	var p Pending
	got := func(inside func(id uint64)) string {
		t.Helper()
		body, err := p.Do(t.Context(), "it", func(id uint64) error { inside(id); return nil }, nil)
		if err != nil {
			t.Error(err)
		}
		return string(body)
	}
	var inner string
	outer := got(func(first uint64) {
		p.Take(part(first, "a", false))
		inner = got(func(second uint64) {
			p.Take(part(second, "x", false))
			p.Take(part(first, "b", true))
			p.Take(part(second, "y", true))
			p.Take(part(second, "z", true)) // nobody waits for it
		})
	})
	if outer != "ab" || inner != "xy" {
		t.Errorf("%q, %q", outer, inner)
	}
}

// TestOutcomes: each way in which a call fails.
func TestOutcomes(t *testing.T) {
	gone, broken := errors.New("gone"), errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := uint64(0)
	for name, c := range map[string]struct {
		inside func(p *Pending, id uint64) error
		want   error
		code   codes.Code
	}{
		"the client's status": {func(p *Pending, id uint64) error {
			p.Take(&sidecarv1.Answer{Id: id, Code: uint32(codes.NotFound), Message: "none"})
			return nil
		}, nil, codes.NotFound},
		"too large": {func(p *Pending, id uint64) error {
			half := bytes.Repeat([]byte("x"), MaxAnswer/2+1)
			p.Take(&sidecarv1.Answer{Id: id, Part: half})
			p.Take(&sidecarv1.Answer{Id: id, Part: half})
			return nil
		}, nil, codes.ResourceExhausted},
		"not sent":     {func(*Pending, uint64) error { return broken }, broken, codes.Unknown},
		"stream ended": {func(p *Pending, _ uint64) error { p.End(gone); return nil }, gone, codes.Unknown},
		"nobody waits": {func(*Pending, uint64) error { cancel(); return nil }, nil, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			var p Pending
			with := t.Context()
			if name == "nobody waits" {
				with = ctx
			}
			_, err := p.Do(with, "zone east", func(id uint64) error { return c.inside(&p, id) }, func(id uint64) { cancelled = id })
			if c.want != nil && !errors.Is(err, c.want) || status.Code(err) != c.code {
				t.Errorf("%v", err)
			}
			if len(p.waiting) > 0 {
				t.Errorf("%d calls wait", len(p.waiting))
			}
			if name == "stream ended" {
				if _, err := p.Do(t.Context(), "", nil, nil); !errors.Is(err, gone) {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
	if cancelled != 1 {
		t.Errorf("call %d was cancelled", cancelled)
	}
}

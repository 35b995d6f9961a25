package rotation

import (
	"fmt"
	"slices"
	"time"
)

// Peer is a node, gateway or zone that trusts and holds certificates of the mesh.
type Peer struct {
	Name string
	// Acked is the newest generation that it acknowledged. For a zone: that all its
	// peers did.
	Acked uint64
	// Connected: it has a stream to the control plane now.
	Connected bool
	// HoldsUntil is the end of the newest certificate that it has, as far as it was
	// issued. For a zone that signs by itself: the end of its intermediate.
	HoldsUntil time.Time
	// Problem that it has reported, for people; empty: none.
	Problem string
}

// live reports whether a peer may carry traffic.
func (p Peer) live(now time.Time) bool { return p.Connected || now.Before(p.HoldsUntil) }

// Progress is what Step found.
type Progress struct {
	// Waiting for these peers, sorted by name.
	Waiting []string
	// Blocked is why the next authority does not begin to issue; nil: it is not.
	Blocked error
	// Behind is why the step waits for the control plane that leads; nil: it does not.
	Behind error
	// Settled: all live peers have acknowledged the state, and no step follows now.
	Settled bool
}

// Step moves a rotation on by one phase if every live peer has acknowledged the current
// one, else it returns s as it is. Before the next authority issues, canSign has to be
// nil. Calling it again, after a crash too, is harmless.
func Step(s State, peers []Peer, canSign error, now time.Time) (State, Progress) {
	if s.Phase == Stable {
		return s, Progress{}
	}
	var waiting []string
	for _, p := range peers {
		if p.live(now) && p.Acked < s.Generation {
			waiting = append(waiting, p.Name)
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		return s, Progress{Waiting: waiting}
	}
	if next, ok := s.Next(); ok && s.Phase == Trusting && next.ID != None && canSign != nil {
		return s, Progress{Blocked: fmt.Errorf("authority %s cannot sign: %w", next.ID, canSign)}
	}
	return s.next(now), Progress{}
}

// Force is Step without waiting for acknowledgements, for an authority whose key was
// stolen. Peers that lag behind lose connections. Error: ErrIdle.
func Force(s State, now time.Time) (State, error) {
	if s.Phase == Stable {
		return s, fmt.Errorf("force the change of authority of mesh %s: %w", s.Mesh, ErrIdle)
	}
	return s.next(now), nil
}

func (s State) next(now time.Time) State {
	switch s.Phase {
	case Trusting:
		out := s.advance(Issuing, now)
		out.Issuer = s.Trusted[1].ID
		return out
	case Issuing:
		out := s.advance(Distrusting, now)
		out.Trusted = slices.Clone(s.Trusted[1:])
		return out
	case Distrusting:
		// Peers have nothing to do, so the generation stays.
		s.Phase = Stable
		s.Since = now.UTC()
	}
	return s
}

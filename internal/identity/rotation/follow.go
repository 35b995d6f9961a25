package rotation

import (
	"errors"
	"slices"
	"time"
)

// Rotation of several sites: the control plane that has the roots leads, those of zones
// follow it. A zone is a peer of the leading State, and has a State of its own for the
// peers of the zone. It goes through the same phases, each step after the leading one:
//
//	leading:  Trusting ──────────────► Issuing ──────────────► Distrusting ──► Stable
//	zone:       └► Trusting ── acks ──┘  └► Issuing ── acks ──┘  └► Distrusting ─┘
//
// So nobody in any zone issues by an authority before all zones trust it, and nobody
// distrusts one before no zone has a certificate of it.

// Target is the authority that a mesh has, or changes to.
func (s State) Target() Authority { return s.Trusted[len(s.Trusted)-1] }

// ErrBehind: the leading state has not taken this step yet.
var ErrBehind = errors.New("not all other zones have taken the step before")

// Gate returns ErrBehind if the step that follows s has to wait for the leading state of
// the same mesh.
func Gate(leading, s State) error {
	switch s.Phase {
	case Trusting:
		// If the old authority is distrusted everywhere else there is nothing to wait for.
		if leading.Issuer != s.Trusted[1].ID && leading.Trusts(s.Trusted[0].ID) {
			return ErrBehind
		}
	case Issuing:
		if leading.Trusts(s.Trusted[0].ID) {
			return ErrBehind
		}
	}
	return nil
}

// Follows reports whether a zone in state s, all of whose peers have acknowledged it, has
// done what the leading state asks of peers.
func Follows(leading, s State) bool {
	trustsAll := !slices.ContainsFunc(leading.Trusted, func(a Authority) bool { return !s.Trusts(a.ID) })
	switch leading.Phase {
	case Trusting:
		return trustsAll
	case Issuing:
		return trustsAll && s.Issuer == leading.Issuer
	}
	return trustsAll && len(s.Trusted) == len(leading.Trusted)
}

// Move is what a state needs beside steps to get to where it should be.
type Move int

// The moves.
const (
	// Stay: nothing, or steps alone.
	Stay Move = iota
	// Begin the change to an authority: Start.
	Begin
	// Return to the old authority: Abort.
	Return
	// TakeOver the leading state as it is: Adopt.
	TakeOver
)

// Next is the move of s towards an authority, where s follows nobody.
func Next(s State, want string) Move {
	next, under := s.Next()
	switch {
	case s.Phase == Stable && want != s.Issuer:
		return Begin
	case under && next.ID != want && s.Trusted[0].ID == want:
		return Return
	}
	return Stay
}

// NextFollowing is the move of s towards the leading state, and the authority to begin the
// change to. canSign: the issuer of s signs in this zone.
func NextFollowing(leading, s State, canSign bool) (Move, Authority) {
	missing := slices.IndexFunc(leading.Trusted, func(a Authority) bool { return !s.Trusts(a.ID) })
	// Nobody can get the certificates that the next step waits for.
	if !canSign && !leading.Trusts(s.Issuer) {
		return TakeOver, Authority{}
	}
	// Others may have certificates of both already. Global did not wait for this zone, so all
	// certificates of the zone have run out.
	if leading.Phase == Issuing && missing >= 0 {
		return TakeOver, Authority{}
	}
	switch s.Phase {
	case Stable:
		if missing >= 0 {
			return Begin, leading.Trusted[missing]
		}
	case Trusting:
		if !leading.Trusts(s.Trusted[1].ID) {
			return Return, Authority{} // it was given up, and will never issue
		}
	case Issuing:
		if s.Trusted[0].ID == leading.Target().ID {
			return Return, Authority{}
		}
	case Distrusting:
	}
	return Stay, Authority{}
}

// Adopt makes a state that follows the leading one trust and issue as that does.
func Adopt(leading, s State, now time.Time) State {
	s = s.advance(leading.Phase, now)
	s.Issuer, s.Trusted = leading.Issuer, slices.Clone(leading.Trusted)
	return s
}

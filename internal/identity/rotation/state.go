package rotation

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase of a State.
type Phase string

// The phases, in order.
const (
	// Stable: one authority is trusted and issues.
	Stable Phase = "Stable"
	// Trusting: peers are given the next authority to trust; the old one issues.
	Trusting Phase = "Trusting"
	// Issuing: the next authority issues; peers replace certificates of the old one.
	Issuing Phase = "Issuing"
	// Distrusting: the old authority is no longer trusted; peers are being updated.
	Distrusting Phase = "Distrusting"
)

// None is the ID of the absent authority of a mesh without mTLS.
const None = ""

// Authority as peers see it.
type Authority struct {
	// ID is stable over restarts and different for every authority of a mesh. None:
	// plain text.
	ID string `json:"id"`
	// Backend is the entry of the Mesh that it belongs to, and Type that entry's type.
	Backend string `json:"backend,omitempty"`
	Type    string `json:"type,omitempty"`
	// Roots to trust for it, as PEM; empty for None.
	Roots []byte `json:"roots,omitempty"`
}

// State of a mesh's authorities. It is a value: functions return a changed copy. Its
// JSON form is what a store keeps; it has no keys in it.
type State struct {
	Version int    `json:"version"`
	Mesh    string `json:"mesh"`
	// Generation rises with everything that peers have to act on. They acknowledge it.
	Generation uint64 `json:"generation"`
	Phase      Phase  `json:"phase"`
	// Issuer is the ID of the authority that signs.
	Issuer string `json:"issuer"`
	// Trusted authorities, the oldest first.
	Trusted []Authority `json:"trusted"`
	// Since is when the phase began.
	Since time.Time `json:"since"`
}

const version = 1

// Errors of Start, Abort and Force.
var (
	// ErrRunning: a rotation is under way.
	ErrRunning = errors.New("a rotation is under way: wait for its end, or abort it")
	// ErrSame: the authority is the current one.
	ErrSame = errors.New("it is the current authority")
	// ErrIdle: no rotation is under way.
	ErrIdle = errors.New("no rotation is under way")
	// ErrTooLate: the old authority is distrusted already.
	ErrTooLate = errors.New("the old authority is no longer trusted: rotate back instead")
)

// New is the state of a mesh with its first authority, which may be None.
func New(mesh string, first Authority, now time.Time) State {
	return State{
		Version: version, Mesh: mesh, Generation: 1, Phase: Stable,
		Issuer: first.ID, Trusted: []Authority{first}, Since: now.UTC(),
	}
}

// Check refuses a state that no function of this package returns.
func (s State) Check() error {
	ids := map[string]bool{}
	for _, a := range s.Trusted {
		if ids[a.ID] {
			return fmt.Errorf("rotation of mesh %q: authority %q twice", s.Mesh, a.ID)
		}
		if (a.ID == None) != (len(a.Roots) == 0) {
			return fmt.Errorf("rotation of mesh %q: authority %q and its roots do not fit", s.Mesh, a.ID)
		}
		ids[a.ID] = true
	}
	want := 1
	if s.Phase == Trusting || s.Phase == Issuing {
		want = 2
	}
	switch {
	case s.Version != version:
		return fmt.Errorf("rotation of mesh %q: version %d of the state: use a newer version of proxima", s.Mesh, s.Version)
	case s.Mesh == "" || s.Generation == 0:
		return errors.New("rotation: mesh or generation is missing")
	case !slices.Contains([]Phase{Stable, Trusting, Issuing, Distrusting}, s.Phase):
		return fmt.Errorf("rotation of mesh %q: phase %q", s.Mesh, s.Phase)
	case len(s.Trusted) != want:
		return fmt.Errorf("rotation of mesh %q: %d trusted authorities in phase %s", s.Mesh, len(s.Trusted), s.Phase)
	case !ids[s.Issuer]:
		return fmt.Errorf("rotation of mesh %q: the issuer %q is not trusted", s.Mesh, s.Issuer)
	}
	switch last := s.Trusted[len(s.Trusted)-1].ID; {
	case s.Phase == Trusting && s.Issuer == last:
		return fmt.Errorf("rotation of mesh %q: the next authority issues already", s.Mesh)
	case s.Phase == Issuing && s.Issuer != last:
		return fmt.Errorf("rotation of mesh %q: the old authority still issues", s.Mesh)
	}
	return nil
}

// Trusts reports whether certificates of an authority are valid.
func (s State) Trusts(id string) bool {
	return slices.ContainsFunc(s.Trusted, func(a Authority) bool { return a.ID == id })
}

// Roots to trust, of all authorities, as PEM.
func (s State) Roots() []byte {
	var out []byte
	for _, a := range s.Trusted {
		out = append(out, a.Roots...)
	}
	return out
}

// AcceptsPlain reports whether servers accept plain text.
func (s State) AcceptsPlain() bool { return s.Trusts(None) }

// Next is the authority that is being introduced; ok is false if there is none.
func (s State) Next() (a Authority, ok bool) {
	if s.Phase != Trusting && s.Phase != Issuing {
		return Authority{}, false
	}
	return s.Trusted[1], true
}

// Start begins the change to another authority. canSign is the result of a check that
// it can sign now; a change to one that cannot is refused. Errors: ErrRunning, ErrSame.
func Start(s State, next Authority, canSign error, now time.Time) (State, error) {
	fail := func(err error) (State, error) {
		return s, fmt.Errorf("change the authority of mesh %s to %s: %w", s.Mesh, name(next.ID), err)
	}
	switch {
	case s.Phase != Stable:
		return fail(ErrRunning)
	case next.ID == s.Issuer:
		return fail(ErrSame)
	case next.ID != None && canSign != nil:
		return fail(fmt.Errorf("it cannot sign: %w", canSign))
	}
	out := s.advance(Trusting, now)
	out.Trusted = append(slices.Clone(s.Trusted), next)
	if err := out.Check(); err != nil {
		return fail(err)
	}
	return out, nil
}

// Abort ends a change while the old authority is trusted: nothing more is issued by the
// next one. Where it has issued already the change runs the other way, with the same
// overlap. Errors: ErrIdle, ErrTooLate.
func Abort(s State, now time.Time) (State, error) {
	switch s.Phase {
	case Trusting:
		// No peer has a certificate of the next authority.
		out := s.advance(Distrusting, now)
		out.Trusted = slices.Clone(s.Trusted[:1])
		return out, nil
	case Issuing:
		out := s.advance(Issuing, now)
		out.Trusted = []Authority{s.Trusted[1], s.Trusted[0]}
		out.Issuer = s.Trusted[0].ID
		return out, nil
	case Distrusting:
		return s, fmt.Errorf("abort the change of authority of mesh %s: %w", s.Mesh, ErrTooLate)
	}
	return s, fmt.Errorf("abort the change of authority of mesh %s: %w", s.Mesh, ErrIdle)
}

func (s State) advance(p Phase, now time.Time) State {
	s.Generation++
	s.Phase = p
	s.Since = now.UTC()
	return s
}

func name(id string) string {
	if id == None {
		return "none (plain text)"
	}
	return id
}

package delta

import "slices"

// waker is how a layered session learns that what it has may have changed: by a function, or by a
// token in a channel.
type waker struct {
	f func()
	c chan struct{}
}

func newWaker(f func()) *waker {
	if f != nil {
		return &waker{f: f}
	}
	return &waker{c: make(chan struct{}, 1)}
}

// wake never blocks: one token stands for any number of changes.
func (w *waker) wake() {
	if w.f != nil {
		w.f()
		return
	}
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// seat is the number of a session in one scope: those of a name take four bytes each.
type seat uint32

// seats are in order.
type seats []seat

func (s *seats) add(one seat) {
	if i, found := slices.BinarySearch(*s, one); !found {
		*s = slices.Insert(*s, i, one)
	}
}

func (s *seats) remove(one seat) {
	if i, found := slices.BinarySearch(*s, one); found {
		*s = slices.Delete(*s, i, i+1)
	}
}

// audience is which layered sessions a scope wakes for which of its entries: a change costs those
// that hold the entry, and the others nothing. It belongs to the scope, and is guarded by its lock.
type audience struct {
	// sessions that read the scope, by seat; nil: the seat is free, and in free.
	sessions []*waker
	free     []seat
	types    map[string]*typeAudience
}

// typeAudience is by type: sessions with the wildcard, which have what is listed, and those
// that follow a name.
type typeAudience struct {
	listed seats
	named  map[string]seats
}

func (a *audience) of(typ string) *typeAudience {
	t := a.types[typ]
	if t == nil {
		t = &typeAudience{named: map[string]seats{}}
		if a.types == nil {
			a.types = map[string]*typeAudience{}
		}
		a.types[typ] = t
	}
	return t
}

// wake all sessions.
func (a *audience) wake() {
	for _, w := range a.sessions {
		if w != nil {
			w.wake()
		}
	}
}

// tell those who hold an entry that it has changed. listed: wildcards have it, or had it.
func (a *audience) tell(typ, name string, listed bool) {
	t := a.types[typ]
	if t == nil {
		return
	}
	a.wakeAll(t.named[name])
	if listed {
		a.wakeAll(t.listed)
	}
}

func (a *audience) wakeAll(all seats) {
	for _, at := range all {
		if w := a.sessions[at]; w != nil {
			w.wake()
		}
	}
}

// attach a session; it ends with detach.
func (s *Scope) attach(w *waker) seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.audience
	if n := len(a.free); n > 0 {
		at := a.free[n-1]
		a.free = a.free[:n-1]
		a.sessions[at] = w
		return at
	}
	a.sessions = append(a.sessions, w)
	return seat(len(a.sessions) - 1)
}

// detach a session that follows nothing any more.
func (s *Scope) detach(at seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audience.sessions[at] = nil
	s.audience.free = append(s.audience.free, at)
}

// follow wakes a session for a name, or for what is listed (wildcard), until unfollow.
func (s *Scope) follow(at seat, typ, name string) {
	if s.options.Few || !s.options.may(typ) {
		return // it is woken anyway, or never
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.audience.of(typ)
	if name == wildcard {
		t.listed.add(at)
		return
	}
	named := t.named[name]
	named.add(at)
	t.named[name] = named
}

func (s *Scope) unfollow(at seat, typ, name string) {
	if s.options.Few || !s.options.may(typ) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.audience.types[typ]
	switch {
	case t == nil:
	case name == wildcard:
		t.listed.remove(at)
	default:
		named := t.named[name]
		if named.remove(at); len(named) == 0 {
			delete(t.named, name)
		} else {
			t.named[name] = named
		}
	}
}

// set an entry, and tell its audience if that is news.
func (s *Scope) set(r Resource, sequence uint64) bool {
	t := s.table(r.Type)
	was := t.listed(r.Name)
	if !t.set(&r, sequence) {
		return false
	}
	s.tell(r.Type, r.Name, was || t.listed(r.Name))
	return true
}

// remove an entry, and tell its audience if it was there.
func (s *Scope) remove(t *table, name string, sequence uint64) bool {
	was := t.listed(name)
	if !t.remove(name, sequence) {
		return false
	}
	s.tell(t.typ, name, was)
	return true
}

func (s *Scope) tell(typ, name string, listed bool) {
	if s.options.Few {
		s.audience.wake()
		return
	}
	s.audience.tell(typ, name, listed)
}

// listed reports whether wildcards have a name.
func (t *table) listed(name string) bool {
	e := t.byName[name]
	return e != nil && e.live() && (e.options == nil || !e.options.unlisted)
}

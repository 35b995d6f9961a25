package delta

// waker is how a layered session learns that what it has may have changed.
type waker struct{ c chan struct{} }

func newWaker() *waker { return &waker{make(chan struct{}, 1)} }

// wake never blocks: one token stands for any number of changes.
func (w *waker) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

type wakers map[*waker]struct{}

// audience is which layered sessions a scope wakes for which of its entries: a change costs those
// that hold the entry, and the others nothing. It belongs to the scope, and is guarded by its lock.
type audience struct {
	// all sessions that read the scope.
	all   wakers
	types map[string]*typeAudience
}

// typeAudience is by type: sessions with the wildcard, which have what is listed, and those
// that follow a name.
type typeAudience struct {
	listed wakers
	named  map[string]wakers
}

func (a *audience) of(typ string) *typeAudience {
	t := a.types[typ]
	if t == nil {
		t = &typeAudience{listed: wakers{}, named: map[string]wakers{}}
		if a.types == nil {
			a.types = map[string]*typeAudience{}
		}
		a.types[typ] = t
	}
	return t
}

// wake all sessions.
func (a *audience) wake() {
	for w := range a.all {
		w.wake()
	}
}

// tell those who hold an entry that it has changed. listed: wildcards have it, or had it.
func (a *audience) tell(typ, name string, listed bool) {
	t := a.types[typ]
	if t == nil {
		return
	}
	for w := range t.named[name] {
		w.wake()
	}
	if listed {
		for w := range t.listed {
			w.wake()
		}
	}
}

// attach a session; it ends with detach.
func (s *Scope) attach(w *waker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.audience.all == nil {
		s.audience.all = wakers{}
	}
	s.audience.all[w] = struct{}{}
}

func (s *Scope) detach(w *waker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.audience.all, w)
}

// follow wakes a session for a name, or for what is listed (wildcard), until unfollow.
func (s *Scope) follow(w *waker, typ, name string) {
	if s.options.Few || !s.options.may(typ) {
		return // it is woken anyway, or never
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.audience.of(typ)
	if name == wildcard {
		t.listed[w] = struct{}{}
		return
	}
	if t.named[name] == nil {
		t.named[name] = wakers{}
	}
	t.named[name][w] = struct{}{}
}

func (s *Scope) unfollow(w *waker, typ, name string) {
	if s.options.Few || !s.options.may(typ) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.audience.types[typ]
	switch {
	case t == nil:
	case name == wildcard:
		delete(t.listed, w)
	default:
		if delete(t.named[name], w); len(t.named[name]) == 0 {
			delete(t.named, name)
		}
	}
}

// set an entry, and tell its audience if that is news.
func (s *Scope) set(r Resource, sequence uint64) bool {
	t := s.table(r.Type)
	was := t.listed(r.Name)
	if !t.set(r.Name, r.Body, r.Options, sequence) {
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

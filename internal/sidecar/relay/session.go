package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Open begins a session, the stream of an Envoy, and returns its number.
func (c *Core) Open() int { return c.open(false) }

// OpenOwn begins a session of the supervisor itself, for resources that are for it alone.
func (c *Core) OpenOwn() int { return c.open(true) }

func (c *Core) open(own bool) int {
	c.last++
	c.sessions[c.last] = &session{id: c.last, own: own, types: map[string]*subscription{}}
	return c.last
}

// Envoys are the sessions that are not the supervisor's own.
func (c *Core) Envoys() int {
	n := 0
	for _, s := range c.sessions {
		if !s.own {
			n++
		}
	}
	return n
}

// Forget a type: nothing of it is held, and it is not subscribed any more. No session may follow it.
func (c *Core) Forget(typeURL string) {
	if c.types[typeURL] != nil {
		delete(c.types, typeURL)
		c.Dirty = true
	}
}

// Close ends a session. Names that no other session asks for stay subscribed until Expire: an
// Envoy that starts again asks for them only as it needs them.
func (c *Core) Close(id int, now time.Time) {
	s := c.sessions[id]
	if s == nil {
		return
	}
	delete(c.sessions, id)
	for url, sub := range s.types {
		t := c.of(url)
		for name := range sub.names {
			if _, ok := t.names[name]; ok && !c.asked(url, name) {
				t.names[name] = now
			}
		}
		for _, w := range slices.Clone(t.waiting) {
			if w.decider == id {
				w.decider = 0
				c.offer(t, w)
			}
		}
	}
}

// asked reports whether a session asks for a name.
func (c *Core) asked(typeURL, name string) bool {
	for _, s := range c.sessions {
		if sub := s.types[typeURL]; sub != nil && sub.names[name] {
			return true
		}
	}
	return false
}

// Expire ends the subscriptions to names that no session has asked for since before, and forgets
// their resources.
func (c *Core) Expire(before time.Time) {
	if c.Envoys() == 0 {
		return
	}
	for url, t := range c.types {
		var gone []string
		for name, since := range t.names {
			if !since.IsZero() && since.Before(before) {
				gone = append(gone, name)
			}
		}
		c.release(url, t, gone)
	}
}

// release names upstream, and forgets what was held for them alone.
func (c *Core) release(typeURL string, t *resources, names []string) {
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	for _, name := range names {
		delete(t.names, name)
		if e := t.accepted[name]; e != nil && (e.onDemand || !t.wildcard) && !t.isOwn(name) {
			delete(t.accepted, name)
			c.Dirty = true
		}
	}
	if names = t.withoutOwn(names); c.connected && len(names) > 0 {
		c.up = append(c.up, wire.Request{TypeURL: typeURL, Unsubscribe: names})
	}
}

// Request of a session.
func (c *Core) Request(id int, r wire.Request) {
	s := c.sessions[id]
	if s == nil {
		return
	}
	t := c.of(r.TypeURL)
	sub, first := s.types[r.TypeURL], false
	if sub == nil {
		first = true
		sub = &subscription{names: map[string]bool{}, known: map[string]string{}, sent: map[string]sent{}}
		maps.Copy(sub.known, r.Versions)
		// A first request without names is for all, for the types that Envoy wants so.
		sub.wildcard = len(r.Subscribe) == 0 && (r.TypeURL == wire.Cluster || r.TypeURL == wire.Listener)
		s.types[r.TypeURL] = sub
	}
	c.answer(s, sub, t, r)
	wanted := sub.subscribe(r)
	c.unsubscribe(sub, t, r)
	var missing []string
	if first {
		missing = c.begin(s, sub, t, wanted)
	} else {
		missing = c.serve(s, sub, t, wanted)
	}
	c.ask(t, sub, missing)
}

// subscribe notes new names, and returns them.
func (s *subscription) subscribe(r wire.Request) []string {
	var wanted []string
	for _, name := range r.Subscribe {
		if name == wire.Wildcard {
			s.wildcard = true
			continue
		}
		s.names[name] = true
		wanted = append(wanted, name)
	}
	return wanted
}

func (c *Core) unsubscribe(sub *subscription, t *resources, r wire.Request) {
	var gone []string
	for _, name := range r.Unsubscribe {
		if name == wire.Wildcard {
			sub.wildcard = false
			continue
		}
		delete(sub.names, name)
		if e := t.latest(name); e == nil || e.onDemand || !sub.wildcard {
			delete(sub.known, name)
		}
		if _, ok := t.names[name]; ok && !c.asked(t.typeURL, name) {
			gone = append(gone, name)
		}
	}
	c.release(t.typeURL, t, gone)
}

// begin answers the first request of a type from what is held, and returns the names that are
// not there.
func (c *Core) begin(s *session, sub *subscription, t *resources, wanted []string) (missing []string) {
	out := wire.Response{TypeURL: t.typeURL}
	for _, name := range slices.Sorted(maps.Keys(t.accepted)) {
		e := t.accepted[name]
		if known, ok := sub.known[name]; sub.wants(name, e) && (!ok || known != e.Version) {
			out.Resources = append(out.Resources, e.Resource)
		}
	}
	if t.answered && sub.wildcard {
		for _, name := range slices.Sorted(maps.Keys(sub.known)) {
			if t.latest(name) == nil && !sub.names[name] {
				out.Removed = append(out.Removed, name)
			}
		}
	}
	if t.answered && sub.wildcard || len(out.Resources) > 0 {
		c.Counters.Served++
		c.send(s, sub, out, nil)
	}
	for _, w := range slices.Clone(t.waiting) {
		if w.decider == 0 {
			c.offer(t, w)
			continue
		}
		c.pass(s, sub, t, w, nil)
	}
	for _, name := range wanted {
		if t.latest(name) == nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// serve names that a session asks for later, and returns those that are not there. A name that
// is asked for again is sent again (xDS protocol, "subscribing to resources").
func (c *Core) serve(s *session, sub *subscription, t *resources, wanted []string) (missing []string) {
	out := wire.Response{TypeURL: t.typeURL}
	for _, name := range wanted {
		if e := t.latest(name); e != nil {
			out.Resources = append(out.Resources, e.Resource)
		} else {
			missing = append(missing, name)
		}
	}
	if len(out.Resources) > 0 {
		c.Counters.Served++
		c.send(s, sub, out, nil)
	}
	return missing
}

// ask the control plane for what a session wants and nothing is held of; note what is wanted.
func (c *Core) ask(t *resources, sub *subscription, missing []string) {
	for name := range sub.names {
		since, ok := t.names[name]
		if !ok || !since.IsZero() {
			t.names[name] = time.Time{}
			c.Dirty = c.Dirty || !ok && !t.isOwn(name)
		}
		if !ok && !slices.Contains(missing, name) {
			missing = append(missing, name) // held, but not subscribed: as after a damaged file
		}
	}
	slices.Sort(missing)
	missing = t.withoutOwn(missing)
	if sub.wildcard && !t.wildcard {
		t.wildcard, c.Dirty = true, true
		missing = append([]string{wire.Wildcard}, missing...)
	}
	if len(missing) > 0 && c.connected {
		c.up = append(c.up, wire.Request{TypeURL: t.typeURL, Subscribe: missing})
	}
}

// answer is what a request says of a response, if it does.
func (c *Core) answer(s *session, sub *subscription, t *resources, r wire.Request) {
	record, ok := sub.sent[r.Nonce]
	if r.Nonce == "" || !ok {
		return
	}
	delete(sub.sent, r.Nonce)
	if r.Error != nil {
		// Some of it may be in use, so that nothing is known of any of it.
		for _, resource := range record.resources {
			delete(sub.known, resource.Name)
		}
	}
	switch {
	case record.from != nil:
		if record.from.decider == s.id {
			c.decide(t, record.from, r.Error)
		}
	case r.Error != nil && s.id == c.newest(t.typeURL):
		c.isolate(s, sub, t, record.resources, r.Error.Message)
	}
}

// isolate finds the resource that Envoy refuses among those that were held: they are sent again
// in halves, down to one, which is forgotten. The control plane believes that it is here, so it
// has to be asked again by a new stream. What has another version by now is no part of it.
func (c *Core) isolate(s *session, sub *subscription, t *resources, refused []wire.Resource, message string) {
	refused = slices.DeleteFunc(slices.Clone(refused), func(r wire.Resource) bool {
		e := t.accepted[r.Name]
		return e == nil || e.Version != r.Version || !sub.wants(r.Name, e)
	})
	switch n := len(refused); {
	case n == 1:
		c.forget(sub, t, refused[0].Name, message)
	case n > 1:
		c.send(s, sub, wire.Response{TypeURL: t.typeURL, Resources: refused[:n/2]}, nil)
		c.send(s, sub, wire.Response{TypeURL: t.typeURL, Resources: refused[n/2:]}, nil)
	}
}

func (c *Core) forget(sub *subscription, t *resources, name, message string) {
	e := t.accepted[name]
	c.Counters.Forgotten++
	if c.Refused != nil {
		c.Refused(t.typeURL, name, e.Version, message)
	}
	if t.isOwn(name) {
		return
	}
	delete(t.accepted, name)
	delete(sub.known, name)
	c.Dirty, c.Resync = true, true
}

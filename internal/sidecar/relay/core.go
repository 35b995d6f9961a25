package relay

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// order of types in requests that open a stream: clusters before their endpoints, listeners
// before their routes. Others follow.
var order = []string{wire.Cluster, wire.Endpoint, wire.Listener, wire.Route}

// entry is a resource that is held.
type entry struct {
	wire.Resource
	// onDemand: it is not one of those that the wildcard stands for.
	onDemand bool
	// service is the EDS service name of a cluster; "": it has none.
	service string
}

// response of a control plane (or of the supervisor itself) that no Envoy has answered yet.
type response struct {
	typeURL string
	nonce   string
	// generation of the upstream stream; an answer goes to no other one.
	generation int
	entries    map[string]*entry
	removed    []string
	// decider is the session whose answer counts; 0: none has got it yet.
	decider int
}

// resources is what is held of a type.
type resources struct {
	typeURL string
	// accepted by an Envoy, by name. On disk.
	accepted map[string]*entry
	// waiting responses, oldest first.
	waiting []*response
	// answered: a control plane has sent all there is, which may be nothing. On disk.
	answered bool
	// wildcard and names are what is subscribed upstream. The time is when the last session
	// that asked for the name went away; zero: there is one. On disk, without the time.
	wildcard bool
	names    map[string]time.Time
	// own names are of resources that the supervisor has, and no control plane; nil: there are none.
	own func(name string) bool
}

// isOwn reports whether a name is of a resource of the supervisor.
func (t *resources) isOwn(name string) bool { return t.own != nil && t.own(name) }

// withoutOwn are the names that a control plane is asked for. The argument is not to be used afterwards.
func (t *resources) withoutOwn(names []string) []string { return slices.DeleteFunc(names, t.isOwn) }

// latest version of a resource, accepted or not; nil: there is none.
func (t *resources) latest(name string) *entry {
	for _, w := range slices.Backward(t.waiting) {
		if e, ok := w.entries[name]; ok {
			return e
		}
		if slices.Contains(w.removed, name) {
			return nil
		}
	}
	return t.accepted[name]
}

// session is a stream of an Envoy (during a hot restart there are two), or what the supervisor itself
// follows.
type session struct {
	id    int
	own   bool // the supervisor's
	types map[string]*subscription
	out   []wire.Response
}

// subscription of a session to a type.
type subscription struct {
	wildcard bool
	names    map[string]bool
	// known versions: those that were sent or that Envoy said it has.
	known map[string]string
	// answered: there was a response.
	answered bool
	sent     map[string]sent // by nonce
}

// sent is a response that Envoy has not answered yet.
type sent struct {
	// from is the response of a control plane; nil: it was of what is held.
	from      *response
	resources []wire.Resource
}

// Core is the protocol of a relay. Not safe for concurrent use; no method blocks.
type Core struct {
	types    map[string]*resources
	sessions map[int]*session
	last     int // session
	nonce    int

	// up is what is to be sent to the control plane; connected: there is a stream.
	up         []wire.Request
	connected  bool
	generation int

	// Dirty: what is on disk is out of date. Resync: the stream to the control plane has to be
	// opened again, as a resource that it believes to be here is not. The owner resets both.
	Dirty, Resync bool
	// Refused is called for each resource of what is held that Envoy refuses; nil: nobody is told.
	Refused func(typeURL, name, version, message string)
	Counters
}

// Counters of what has happened.
type Counters struct {
	// Received responses of control planes; those that Envoy has accepted and refused.
	Received     int `json:"received"`
	Acknowledged int `json:"acknowledged"`
	Rejected     int `json:"rejected"`
	// Served responses from what is held.
	Served int `json:"served"`
	// Forgotten resources that were held and refused.
	Forgotten int `json:"forgotten"`
}

// NewCore makes a Core that holds nothing.
func NewCore() *Core {
	return &Core{types: map[string]*resources{}, sessions: map[int]*session{}}
}

func (c *Core) of(typeURL string) *resources {
	t := c.types[typeURL]
	if t == nil {
		t = &resources{typeURL: typeURL, accepted: map[string]*entry{}, names: map[string]time.Time{}}
		c.types[typeURL] = t
	}
	return t
}

// typeURLs in the order in which they are to be sent.
func (c *Core) typeURLs() []string {
	out := slices.DeleteFunc(slices.Clone(order), func(u string) bool { return c.types[u] == nil })
	for _, u := range slices.Sorted(maps.Keys(c.types)) {
		if !slices.Contains(order, u) {
			out = append(out, u)
		}
	}
	return out
}

// Upstream takes what is to be sent to the control plane.
func (c *Core) Upstream() []wire.Request {
	out := c.up
	c.up = nil
	return out
}

// Downstream takes what is to be sent to a session.
func (c *Core) Downstream(id int) []wire.Response {
	s := c.sessions[id]
	if s == nil {
		return nil
	}
	out := s.out
	s.out = nil
	return out
}

// UpstreamOpened: there is a stream to a control plane. What is subscribed is asked for, with the
// versions that are here.
func (c *Core) UpstreamOpened() {
	c.connected, c.up, c.Resync = true, nil, false
	c.generation++
	for _, url := range c.typeURLs() {
		t := c.types[url]
		names := t.withoutOwn(slices.Sorted(maps.Keys(t.names)))
		if !t.wildcard && len(names) == 0 {
			continue
		}
		r := wire.Request{TypeURL: url, Subscribe: names, Versions: map[string]string{}}
		if t.wildcard {
			r.Subscribe = append([]string{wire.Wildcard}, r.Subscribe...)
		}
		for name, e := range t.accepted {
			if !t.isOwn(name) {
				r.Versions[name] = e.Version
			}
		}
		c.up = append(c.up, r)
	}
}

// UpstreamClosed: the stream to the control plane is gone. Responses that no session has got are
// forgotten: they come again.
func (c *Core) UpstreamClosed() {
	c.connected, c.up = false, nil
	for _, t := range c.types {
		t.waiting = slices.DeleteFunc(t.waiting, func(w *response) bool { return w.decider == 0 })
	}
}

// Received is a response of the control plane.
func (c *Core) Received(r wire.Response) error {
	c.Counters.Received++
	t := c.of(r.TypeURL)
	w := &response{typeURL: r.TypeURL, nonce: r.Nonce, generation: c.generation, entries: map[string]*entry{}, removed: t.withoutOwn(r.Removed)}
	for _, resource := range r.Resources {
		if t.isOwn(resource.Name) { // no control plane has it
			continue
		}
		e := &entry{Resource: resource, onDemand: t.isOnDemand(resource.Name)}
		if r.TypeURL == wire.Cluster {
			service, ok, err := wire.ServiceOf(resource)
			if err != nil {
				return err
			}
			if ok {
				e.service = service
			}
		}
		w.entries[resource.Name] = e
	}
	t.waiting = append(t.waiting, w)
	c.offer(t, w)
	return nil
}

// isOnDemand tells a resource that was asked for by name from those that the wildcard stands for.
func (t *resources) isOnDemand(name string) bool {
	if held := t.latest(name); held != nil && !held.onDemand {
		return false
	}
	_, byName := t.names[name]
	return byName
}

// offer a response to the sessions: the newest that follows the type decides.
func (c *Core) offer(t *resources, w *response) {
	ids := slices.Sorted(maps.Keys(c.sessions))
	for _, id := range slices.Backward(ids) {
		s := c.sessions[id]
		sub := s.types[t.typeURL]
		if sub == nil {
			continue
		}
		from := w
		if w.decider != 0 {
			from = nil
		}
		if c.pass(s, sub, t, w, from) && from != nil {
			w.decider = id
		}
	}
	// Nothing in it is for an Envoy: it is taken as it is. Before any session follows the type
	// it waits for one.
	if w.decider == 0 && c.newest(t.typeURL) != 0 {
		c.decide(t, w, nil)
	}
}

// newest session that follows a type; 0: none does.
func (c *Core) newest(typeURL string) int {
	newest := 0
	for id, s := range c.sessions {
		if s.types[typeURL] != nil {
			newest = max(newest, id)
		}
	}
	return newest
}

// pass what a session has subscribed to of a response. It returns false if that is nothing.
func (c *Core) pass(s *session, sub *subscription, t *resources, w, from *response) bool {
	out := wire.Response{TypeURL: t.typeURL}
	for _, name := range slices.Sorted(maps.Keys(w.entries)) {
		if e := w.entries[name]; sub.wants(name, e) {
			out.Resources = append(out.Resources, e.Resource)
		}
	}
	for _, name := range w.removed {
		if _, known := sub.known[name]; known || sub.names[name] {
			out.Removed = append(out.Removed, name)
		}
	}
	// An empty answer is an answer too: Envoy waits for the first.
	if len(out.Resources)+len(out.Removed) == 0 && (sub.answered || !sub.wildcard) {
		return false
	}
	c.send(s, sub, out, from)
	return true
}

// wants reports whether a resource is part of a subscription.
func (s *subscription) wants(name string, e *entry) bool {
	return s.names[name] || s.wildcard && !e.onDemand
}

// send a response to a session, and the endpoints that have to follow its clusters: Envoy waits
// for those of every cluster that is new or changed, but asks only for names that it does not
// know yet.
func (c *Core) send(s *session, sub *subscription, r wire.Response, from *response) {
	c.nonce++
	r.Nonce = strconv.Itoa(c.nonce)
	for _, resource := range r.Resources {
		sub.known[resource.Name] = resource.Version
	}
	for _, name := range r.Removed {
		delete(sub.known, name)
	}
	sub.answered = true
	sub.sent[r.Nonce] = sent{from: from, resources: r.Resources}
	s.out = append(s.out, r)
	if r.TypeURL == wire.Cluster {
		c.sendEndpoints(s, r.Resources)
	}
}

// sendEndpoints sends those of clusters that the session has asked for before.
func (c *Core) sendEndpoints(s *session, clusters []wire.Resource) {
	sub, t := s.types[wire.Endpoint], c.types[wire.Endpoint]
	if sub == nil || t == nil {
		return
	}
	out := wire.Response{TypeURL: wire.Endpoint}
	var done []string
	for _, cluster := range clusters {
		held := c.of(wire.Cluster).latest(cluster.Name)
		if held == nil || held.service == "" || !sub.names[held.service] || slices.Contains(done, held.service) {
			continue
		}
		done = append(done, held.service)
		if e := t.latest(held.service); e != nil {
			out.Resources = append(out.Resources, e.Resource)
		}
	}
	if len(out.Resources) > 0 {
		c.send(s, sub, out, nil)
	}
}

// decide ends the wait of a response: it is accepted, or refused with an error.
func (c *Core) decide(t *resources, w *response, refused *wire.Status) {
	at := slices.Index(t.waiting, w)
	if at < 0 {
		return
	}
	t.waiting = slices.Delete(t.waiting, at, at+1)
	if refused == nil {
		for name, e := range w.entries {
			t.accepted[name] = e
		}
		for _, name := range w.removed {
			delete(t.accepted, name)
		}
		t.answered = true
		c.Dirty = true
		c.Counters.Acknowledged++
	} else {
		c.Counters.Rejected++
	}
	if c.connected && w.generation == c.generation {
		c.up = append(c.up, wire.Request{TypeURL: t.typeURL, Nonce: w.nonce, Error: refused})
	}
}

// SetOwn replaces the resources of a type that the supervisor itself has. own reports whether a name is of one: no control
// plane is asked for it, and it is not on disk.
func (c *Core) SetOwn(typeURL string, own func(name string) bool, all []wire.Resource) {
	t := c.of(typeURL)
	t.own = own
	w := &response{typeURL: typeURL, entries: map[string]*entry{}}
	names := map[string]bool{}
	for _, r := range all {
		names[r.Name] = true
		if held := t.accepted[r.Name]; held == nil || held.Version != r.Version {
			w.entries[r.Name] = &entry{Resource: r}
		}
	}
	for name := range t.accepted {
		if own(name) && !names[name] {
			w.removed = append(w.removed, name)
		}
	}
	maps.Copy(t.accepted, w.entries)
	for _, name := range w.removed {
		delete(t.accepted, name)
	}
	for _, s := range c.sessions {
		if sub := s.types[typeURL]; sub != nil && len(w.entries)+len(w.removed) > 0 {
			c.pass(s, sub, t, w, nil)
		}
	}
}

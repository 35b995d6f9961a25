package insight

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Connection is a stream of a proxy. Its ID is unique among all instances.
type Connection struct {
	ID       string
	Versions meshv1alpha1.ProxyVersions
}

// Certificate of a workload, or of a gateway in one mesh.
type Certificate struct {
	Mesh, Identity, Backend string
	Issued, Expiry          time.Time
}

// Rejection is why a proxy does not accept a resource. Policy names the one that the resource is
// made from, KIND NAMESPACE/NAME; empty: none, or not known.
type Rejection struct{ Policy, Error string }

// Limits of what is kept of one proxy.
const (
	maxSubscriptions = 2
	// maxGatewaySubscriptions, of gateways.
	maxGatewaySubscriptions = 10
	// maxCertificates of a gateway, which has one in each mesh.
	maxCertificates = 64
	maxRejected     = 16
	maxReleased     = 256
	maxTypes        = 16
	maxLearned      = 256
	// maxText of errors and names.
	maxText = 1024
)

// learnedAgain is how old the last use of a service port may be before it is written anew.
const learnedAgain = time.Hour

// learnedFor is how long after its last use a service port is remembered.
const learnedFor = 24 * time.Hour

// proxy is what is known of one proxy here. It is guarded by the lock of the Recorder.
type proxy struct {
	// connection that is open, or was last; nil: none to this instance.
	connection *connection
	// certificates by mesh: the newest, and how many are not counted yet.
	certificates map[string]*issued
	// learned ports and their last use.
	learned map[string]time.Time
}

// issued are certificates of one mesh.
type issued struct {
	Certificate
	uncounted int64
}

// unwritten is the number of certificates that are not counted in the insight yet.
func (p *proxy) unwritten() (n int64) {
	for _, c := range p.certificates {
		n += c.uncounted
	}
	return n
}

// wrote: these are counted.
func (p *proxy) wrote(counted []issued) {
	for _, c := range counted {
		p.certificates[c.Mesh].uncounted -= c.uncounted
	}
}

// connection of a proxy. It is one stream, or all that a gRPC program has at a time: its library opens
// one for each target that it calls, and one for its servers.
type connection struct {
	// id is that of the stream that was first.
	id string
	// streams that are open.
	streams   []opened
	versions  meshv1alpha1.ProxyVersions
	began     time.Time
	ended     time.Time // zero: it is open
	resources map[string]*meshv1alpha1.ResourceSync
	rejected  map[rejectedKey]rejection
	// released are resources that were rejected on this connection, and are no more.
	released map[rejectedKey]struct{}
	// ready: it has accepted what it needs.
	ready bool
	// waits is when the first response that is unanswered was sent, or one was answered last.
	waits time.Time
	// behind: as it was written, it does not answer.
	behind bool
}

type rejectedKey struct{ typ, name string }

// rejection on a stream, the last one that had it.
type rejection struct {
	Rejection
	stream string
}

// opened is a stream, and how many responses it has not answered.
type opened struct {
	id         string
	unanswered int64
}

// wholeResponse stands for the resources of a response that names none, as one of removals alone.
const wholeResponse = "*"

// Connected: a proxy has opened a stream. One that it had before counts as ended, but for gRPC programs.
func (r *Recorder) Connected(key Subject, c Connection) {
	r.observe(key, settle, func(p *proxy) bool {
		if was := p.connection; was != nil && was.ended.IsZero() && isProgram(was.versions.Proxy) && isProgram(c.Versions.Proxy) {
			was.streams = append(was.streams, opened{id: c.ID})
			return false
		}
		c.Versions.Proxy, c.Versions.Version = limited(c.Versions.Proxy), limited(c.Versions.Version)
		c.Versions.Supervisor = limited(c.Versions.Supervisor)
		p.connection = &connection{
			id: c.ID, streams: []opened{{id: c.ID}}, versions: c.Versions, began: r.clock.Now(),
			resources: map[string]*meshv1alpha1.ResourceSync{}, rejected: map[rejectedKey]rejection{},
			released: map[rejectedKey]struct{}{},
		}
		return true
	})
}

// isProgram reports whether a client is a gRPC program, as user agents of gRPC's clients begin.
func isProgram(name string) bool { return strings.HasPrefix(name, "gRPC") }

// Disconnected: the stream has ended. What it rejected of a program that has others counts no more.
func (r *Recorder) Disconnected(key Subject, id string) {
	r.on(key, id, settle, func(c *connection) (write bool) {
		if len(c.streams) == 1 {
			c.ended = r.clock.Now()
			return true
		}
		c.streams = slices.DeleteFunc(c.streams, func(o opened) bool { return o.id == id })
		for at, was := range c.rejected {
			if was.stream == id {
				c.drop(at)
				write = true
			}
		}
		return write
	})
}

// stream of an ID; nil: the connection has none.
func (c *connection) stream(id string) *opened {
	for i := range c.streams {
		if c.streams[i].id == id {
			return &c.streams[i]
		}
	}
	return nil
}

// unanswered responses of all streams.
func (c *connection) unanswered() (n int64) {
	for _, o := range c.streams {
		n += o.unanswered
	}
	return n
}

// Sent a response with resources of a type, the last part of whose type URL is typ.
func (r *Recorder) Sent(key Subject, id, typ string) {
	r.on(key, id, settle, func(c *connection) bool {
		if s := c.sync(typ); s != nil {
			s.Sent++
		}
		if c.unanswered() == 0 {
			c.waits = r.clock.Now()
		}
		c.stream(id).unanswered++
		return false
	})
}

// Acked: the proxy has accepted these resources, or that they are removed.
func (r *Recorder) Acked(key Subject, id, typ string, names []string) {
	r.on(key, id, settle, func(c *connection) (write bool) {
		if s := c.sync(typ); s != nil {
			s.Acknowledged++
		}
		c.answered(id, r.clock.Now())
		write = c.release(id, typ, names)
		write = c.release(id, typ, []string{wholeResponse}) || write
		if !c.ready && !slices.ContainsFunc(needed(c.versions.Proxy).types, func(typ string) bool { return !c.accepted(typ) }) {
			c.ready, write = true, true
		}
		return write
	})
}

// Nacked: the proxy has rejected a response. One of which the culprit is not known yet names all
// that it contained; those that are accepted then are acknowledged.
func (r *Recorder) Nacked(key Subject, id, typ string, names []string, why Rejection) {
	r.on(key, id, settle, func(c *connection) bool {
		if s := c.sync(typ); s != nil {
			s.Rejected++
		}
		c.answered(id, r.clock.Now())
		if len(names) == 0 {
			names = []string{wholeResponse}
		}
		return c.reject(id, typ, names, why)
	})
}

// Withheld: the server does not send a resource to the proxy, as others have rejected the same.
func (r *Recorder) Withheld(key Subject, id, typ, name string, why Rejection) {
	r.on(key, id, settle, func(c *connection) bool { return c.reject(id, typ, []string{name}, why) })
}

// Released: a resource that was rejected or withheld is so no more, without an acknowledgement.
func (r *Recorder) Released(key Subject, id, typ, name string) {
	r.on(key, id, settle, func(c *connection) bool { return c.release(id, typ, []string{name}) })
}

// answered: one response less of a stream is unanswered.
func (c *connection) answered(id string, now time.Time) {
	if o := c.stream(id); o.unanswered > 0 {
		o.unanswered--
	}
	c.waits = now
}

// stalls: it has not answered for a window.
func (c *connection) stalls(now time.Time) bool {
	return c.ended.IsZero() && c.unanswered() > 0 && now.Sub(c.waits) >= window
}

// reject notes resources of a stream. It reports whether that is news.
func (c *connection) reject(id, typ string, names []string, why Rejection) (news bool) {
	why.Policy, why.Error = limited(why.Policy), limited(why.Error)
	for _, name := range names {
		at := rejectedKey{typeName(typ), limited(name)}
		was, known := c.rejected[at]
		if !known && len(c.rejected) >= maxRejected {
			continue
		}
		news = news || was.Rejection != why
		c.rejected[at] = rejection{why, id}
		delete(c.released, at)
	}
	return news
}

// release resources that a stream rejected. It reports whether it had.
func (c *connection) release(id, typ string, names []string) (news bool) {
	if len(c.rejected) == 0 {
		return false
	}
	for _, name := range names {
		at := rejectedKey{typeName(typ), limited(name)}
		if was, known := c.rejected[at]; known && was.stream == id {
			c.drop(at)
			news = true
		}
	}
	return news
}

// drop a resource that was rejected.
func (c *connection) drop(at rejectedKey) {
	delete(c.rejected, at)
	if len(c.released) < maxReleased {
		c.released[at] = struct{}{}
	}
}

// Certified: the workload of the proxy, or the gateway, has got a certificate. One of a further mesh
// than there are at most is not noted.
func (r *Recorder) Certified(key Subject, c Certificate) {
	r.observe(key, settle, func(p *proxy) bool {
		if p.certificates == nil {
			p.certificates = map[string]*issued{}
		}
		if key.Role == OfWorkload {
			c.Mesh = "" // it is in one
		}
		was := p.certificates[c.Mesh]
		switch {
		case was == nil && len(p.certificates) >= maxCertificates:
			return false
		case was == nil:
			was = &issued{}
			p.certificates[c.Mesh] = was
		}
		was.Certificate = c
		was.uncounted++
		return true
	})
}

// Learned: the proxy uses these service ports, NAMESPACE/SERVICE:PORT.
func (r *Recorder) Learned(key Subject, ports []string) {
	r.observe(key, settle, func(p *proxy) (write bool) {
		now := r.clock.Now()
		for _, port := range ports {
			last, known := p.learned[port]
			switch {
			case port == "" || len(port) > maxText || !known && len(p.learned) >= maxLearned:
				continue
			case p.learned == nil:
				p.learned = map[string]time.Time{}
			}
			p.learned[port] = now
			write = write || now.Sub(last) >= learnedAgain
		}
		return write
	})
}

// sync counts responses of a type; nil: of more types than there are.
func (c *connection) sync(typ string) *meshv1alpha1.ResourceSync {
	typ = typeName(typ)
	s := c.resources[typ]
	if s == nil && len(c.resources) < maxTypes {
		s = &meshv1alpha1.ResourceSync{Type: typ}
		c.resources[typ] = s
	}
	return s
}

func (c *connection) accepted(typ string) bool {
	s := c.resources[typ]
	return s != nil && s.Acknowledged > 0
}

// typeName is the last part of a type URL, or of what is none.
func typeName(typ string) string {
	return limited(typ[strings.LastIndexAny(typ, "./")+1:])
}

func limited(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

// settled is a connection as it is written: what it has still time to answer was not sent yet.
func (c *connection) settled(instance string, now time.Time) meshv1alpha1.Subscription {
	s := c.subscription(instance)
	if c.stalls(now) {
		return s
	}
	for i := range s.Resources {
		r := &s.Resources[i]
		r.Sent = r.Acknowledged + r.Rejected
	}
	return s
}

// subscription is a connection with its counts as they are.
func (c *connection) subscription(instance string) meshv1alpha1.Subscription {
	s := meshv1alpha1.Subscription{ID: c.id, Instance: instance, ConnectTime: metav1.NewMicroTime(c.began)}
	if !c.ended.IsZero() {
		at := metav1.NewMicroTime(c.ended)
		s.DisconnectTime = &at
	}
	for _, of := range c.resources {
		s.Resources = append(s.Resources, *of)
	}
	slices.SortFunc(s.Resources, func(a, b meshv1alpha1.ResourceSync) int { return strings.Compare(a.Type, b.Type) })
	return s
}

// rejections as they are written, in order.
func (c *connection) rejections() []meshv1alpha1.RejectedResource {
	var out []meshv1alpha1.RejectedResource
	for at, why := range c.rejected {
		out = append(out, meshv1alpha1.RejectedResource{Type: at.typ, Name: at.name, Policy: why.Policy, Error: why.Error})
	}
	slices.SortFunc(out, compareRejected)
	return out
}

func compareRejected(a, b meshv1alpha1.RejectedResource) int {
	if c := strings.Compare(a.Type, b.Type); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

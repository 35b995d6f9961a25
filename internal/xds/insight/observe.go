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

// connection is one stream.
type connection struct {
	id        string
	versions  meshv1alpha1.ProxyVersions
	began     time.Time
	ended     time.Time // zero: it is open
	resources map[string]*meshv1alpha1.ResourceSync
	rejected  map[rejectedKey]Rejection
	// released are resources that were rejected on this connection, and are no more.
	released map[rejectedKey]struct{}
	// ready: it has accepted what it needs.
	ready bool
	// unanswered responses, and when the first of them was sent, or one was answered last.
	unanswered int64
	waits      time.Time
	// behind: as it was written, it does not answer.
	behind bool
}

type rejectedKey struct{ typ, name string }

// Connected: a proxy has opened a stream. One that it had before counts as ended.
func (r *Recorder) Connected(key Subject, c Connection) {
	r.observe(key, settle, func(p *proxy) bool {
		c.Versions.Proxy, c.Versions.Version = limited(c.Versions.Proxy), limited(c.Versions.Version)
		c.Versions.Supervisor = limited(c.Versions.Supervisor)
		p.connection = &connection{
			id: c.ID, versions: c.Versions, began: r.clock.Now(),
			resources: map[string]*meshv1alpha1.ResourceSync{}, rejected: map[rejectedKey]Rejection{},
			released: map[rejectedKey]struct{}{},
		}
		return true
	})
}

// Disconnected: the stream has ended.
func (r *Recorder) Disconnected(key Subject, id string) {
	r.on(key, id, settle, func(c *connection) bool {
		c.ended = r.clock.Now()
		return true
	})
}

// Sent a response with resources of a type, the last part of whose type URL is typ.
func (r *Recorder) Sent(key Subject, id, typ string) {
	r.on(key, id, settle, func(c *connection) bool {
		if s := c.sync(typ); s != nil {
			s.Sent++
		}
		if c.unanswered++; c.unanswered == 1 {
			c.waits = r.clock.Now()
		}
		return false
	})
}

// Acked: the proxy has accepted these resources, or that they are removed.
func (r *Recorder) Acked(key Subject, id, typ string, names []string) {
	r.on(key, id, settle, func(c *connection) (write bool) {
		if s := c.sync(typ); s != nil {
			s.Acknowledged++
		}
		c.answered(r.clock.Now())
		write = c.release(typ, names)
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
		c.answered(r.clock.Now())
		return c.reject(typ, names, why)
	})
}

// Withheld: the server does not send a resource to the proxy, as others have rejected the same.
func (r *Recorder) Withheld(key Subject, id, typ, name string, why Rejection) {
	r.on(key, id, settle, func(c *connection) bool { return c.reject(typ, []string{name}, why) })
}

// Released: a resource that was rejected or withheld is so no more, without an acknowledgement.
func (r *Recorder) Released(key Subject, id, typ, name string) {
	r.on(key, id, settle, func(c *connection) bool { return c.release(typ, []string{name}) })
}

// answered: one response less is unanswered.
func (c *connection) answered(now time.Time) {
	if c.unanswered > 0 {
		c.unanswered--
	}
	c.waits = now
}

// stalls: it has not answered for a window.
func (c *connection) stalls(now time.Time) bool {
	return c.ended.IsZero() && c.unanswered > 0 && now.Sub(c.waits) >= window
}

// reject notes resources. It reports whether that is news.
func (c *connection) reject(typ string, names []string, why Rejection) (news bool) {
	why.Policy, why.Error = limited(why.Policy), limited(why.Error)
	for _, name := range names {
		at := rejectedKey{typeName(typ), limited(name)}
		if was, known := c.rejected[at]; known && was == why || !known && len(c.rejected) >= maxRejected {
			continue
		}
		c.rejected[at], news = why, true
		delete(c.released, at)
	}
	return news
}

// release resources that were rejected. It reports whether any was.
func (c *connection) release(typ string, names []string) (news bool) {
	for _, name := range names {
		at := rejectedKey{typeName(typ), limited(name)}
		if _, was := c.rejected[at]; was {
			delete(c.rejected, at)
			news = true
			if len(c.released) < maxReleased {
				c.released[at] = struct{}{}
			}
		}
	}
	return news
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

package nacos

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// reconnectGrace is how long the instances of a connection stay that was cut: clients come back
	// after 1 to 3 s.
	reconnectGrace = 6 * time.Second
	// settle is how long the first change after a subscription is held back. The SDK of Go subscribes
	// to read a list, and adds its callback later: the callback never learns of what was pushed
	// between the two. Nacos delays every push by as much (nacos.naming.push.pushTaskDelay).
	settle = 500 * time.Millisecond
	// repeatAfter is when a client is told again of a changed entry, if it has not said since that it
	// has what there is; twice as long each time, repeats times. The SDK of Go loses the note of a
	// change that comes while it handles the one before, and would look again after 5 minutes.
	repeatAfter = time.Second
	repeats     = 3
	// maxSubscriptions and maxListened bound what one connection follows.
	maxSubscriptions = 10_000
	maxListened      = 20_000
	// userFor is how long the user of a token is not looked up again.
	userFor = 30 * time.Second
)

// conn is a connection of gRPC: a client.
type conn struct {
	server *Server
	id     string
	from   netip.Addr
	zone   locality.Zone

	mu     sync.Mutex
	setUp  bool // it has a stream
	golang bool // it is the SDK of Go
	began  time.Time
	// leaves is what it is told to move to another instance of the control plane; nil: it is to stay.
	leaves  *connectReset
	closed  bool
	user    registry.User
	token   string
	checked time.Time
	session *registry.Session
	// published are the instances of the client, by service. The lists are not changed.
	published map[registry.Service][]resource.Key
	subs      map[subKey]*subscription
	listened  map[registry.ConfigKey]*listened
	// waiting has what the client is to be told; wake has a value then.
	waitingSubs    map[*subscription]struct{}
	waitingConfigs map[*listened]struct{}
	wake           chan struct{}
}

type subKey struct {
	service  registry.Service
	clusters string
}

// subscription of a client to a service.
type subscription struct {
	key       subKey
	namespace string // as the client calls it
	follower  *registry.Follower
	position  registry.Position // that the client has
	sum       uint64            // of the list that it has
	made      time.Time
	held      bool // until it has settled
}

// listened is an entry of the configuration that a client follows.
type listened struct {
	key      registry.ConfigKey
	named    configNamed
	md5      string // of what the client said last that it has
	follower *registry.ConfigFollower
	told     int         // how often, since the last change
	again    *time.Timer // when it is told again; nil: it was not told yet
}

type connKey struct{}

// connOf a request.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// TagRPC implements stats.Handler.
func (s *Server) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (s *Server) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler. Requests name no connection, so the TCP connection is it.
func (s *Server) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	c := &conn{
		server: s, id: s.connectionID(info.RemoteAddr), began: time.Now(), published: map[registry.Service][]resource.Key{},
		subs: map[subKey]*subscription{}, listened: map[registry.ConfigKey]*listened{},
		waitingSubs: map[*subscription]struct{}{}, waitingConfigs: map[*listened]struct{}{}, wake: make(chan struct{}, 1),
	}
	if at, ok := info.RemoteAddr.(*net.TCPAddr); ok {
		c.from = at.AddrPort().Addr().Unmap()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// HandleConn implements stats.Handler.
func (s *Server) HandleConn(ctx context.Context, event stats.ConnStats) {
	c := connOf(ctx)
	switch event.(type) {
	case *stats.ConnBegin:
		s.core.Meters.Client(registry.Nacos, 1)
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.came(c.from)
		s.mu.Unlock()
	case *stats.ConnEnd:
		s.core.Meters.Client(registry.Nacos, -1)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.close()
	}
}

// connectionID as Nacos makes it: time, address and port.
func (s *Server) connectionID(from net.Addr) string {
	host, port, _ := net.SplitHostPort(from.String())
	return fmt.Sprintf("%d_%s_%s", time.Now().UnixMilli(), host, port)
}

func (c *conn) close() {
	c.mu.Lock()
	c.closed = true
	session := c.session
	var followers []interface{ Close() }
	for _, s := range c.subs {
		if s.follower != nil { // else it is closed by who makes it
			followers = append(followers, s.follower)
		}
	}
	for _, l := range c.listened {
		if l.follower != nil {
			followers = append(followers, l.follower)
		}
	}
	clear(c.subs)
	clear(c.listened)
	c.mu.Unlock()
	for _, f := range followers {
		f.Close()
	}
	if session != nil {
		session.Close(c.server.grace)
	}
}

// admit the user of a request.
func (c *conn) admit(ctx context.Context, token string) (registry.User, error) {
	c.mu.Lock()
	user, known := c.user, token == c.token && time.Since(c.checked) < userFor
	c.mu.Unlock()
	if known {
		return user, nil
	}
	user, err := c.server.core.Gate.Admit(ctx, c.from, token)
	if err != nil {
		return user, &problem{codeForbidden, err.Error()}
	}
	_, zone := c.server.core.Locate(c.from)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user, c.token, c.checked, c.zone = user, token, time.Now(), zone
	return user, nil
}

// sessionOf the connection.
func (c *conn) sessionOf() (*registry.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, registry.ErrEnded
	}
	if c.session == nil {
		c.session = c.server.core.Registrar.Open(registry.Nacos, 0)
	}
	return c.session, nil
}

// signal the stream that there is something to send.
func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) queueSub(s *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := settle - time.Since(s.made)
	switch {
	case c.closed:
	case left <= 0:
		c.waitingSubs[s] = struct{}{}
		c.signal()
	case !s.held:
		s.held = true
		time.AfterFunc(left, func() { c.queueSub(s) })
	}
}

// queueConfig after a change of the entry.
func (c *conn) queueConfig(l *listened) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.told = 0
	c.queueConfigLocked(l)
}

func (c *conn) queueConfigLocked(l *listened) {
	if !c.closed {
		c.waitingConfigs[l] = struct{}{}
		c.signal()
	}
}

// told notes that the client was told of a changed entry, and sees to it that it is told again if it
// does not take the change up.
func (c *conn) told(l *listened) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.again != nil {
		l.again.Stop()
	}
	if c.closed || l.told == repeats {
		return
	}
	l.again = time.AfterFunc(repeatAfter<<l.told, func() { c.repeat(l) })
	l.told++
}

// repeat the note of a change, if the client has something else than there is.
func (c *conn) repeat(l *listened) {
	now := c.server.core.Configs.MD5(l.key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listened[l.key] == l && l.md5 != now {
		c.queueConfigLocked(l)
	}
}

// take what the client is to be told.
func (c *conn) take() (subs []*subscription, configs []*listened, move *connectReset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaves != nil && !c.leaves.told {
		c.leaves.told, move = true, c.leaves
	}
	for s := range c.waitingSubs {
		if c.subs[s.key] == s {
			subs = append(subs, s)
		}
	}
	for l := range c.waitingConfigs {
		if c.listened[l.key] == l {
			configs = append(configs, l)
		}
	}
	clear(c.waitingSubs)
	clear(c.waitingConfigs)
	return subs, configs, move
}

// subscribe to a service, and return what there is.
func (c *conn) subscribe(key subKey, namespace string) (*registry.Listing, error) {
	c.mu.Lock()
	s := c.subs[key]
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, registry.ErrEnded
	case s == nil && len(c.subs) >= maxSubscriptions:
		c.mu.Unlock()
		return nil, invalid("a connection may subscribe to %d services at most", maxSubscriptions)
	case s == nil:
		s = &subscription{key: key, namespace: namespace, made: time.Now()}
		c.subs[key] = s
		zone := c.zone
		c.mu.Unlock()
		f := c.server.core.Index.Follow(key.service, zone, func() { c.queueSub(s) })
		c.mu.Lock()
		if c.closed || c.subs[key] != s {
			c.mu.Unlock()
			f.Close()
			return nil, registry.ErrEnded
		}
		s.follower = f
	}
	zone := c.zone
	c.mu.Unlock()
	l := c.server.core.Index.Listing(key.service, zone)
	_, sum, err := c.server.info(l, key.clusters, false)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Position >= s.position {
		s.position, s.sum = l.Position, sum
	}
	return l, nil
}

func (c *conn) unsubscribe(key subKey) {
	c.mu.Lock()
	s := c.subs[key]
	delete(c.subs, key)
	c.mu.Unlock()
	if s != nil && s.follower != nil {
		s.follower.Close()
	}
}

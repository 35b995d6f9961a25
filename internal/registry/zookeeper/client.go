package zookeeper

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
)

// ClientConfig configures a Client. Servers and Namespace are required.
type ClientConfig struct {
	// Servers as HOST:PORT, of which one is used at a time.
	Servers []string
	// TLS to them; nil: none.
	TLS *tls.Config
	// Username and Password of scheme digest; none without a password.
	Username, Password string
	// Root of all paths, as /shop; empty: none.
	Root string
	// Namespace of Kubernetes that the services are of.
	Namespace string
	// Proxima: the server is a control plane, which keeps copies and instances apart by itself, and whose copies stay
	// for the timeout of the session after the end.
	Proxima bool
	// Timeout of the session that is asked for; 0: 15 s.
	Timeout time.Duration
	Logger  *slog.Logger // nil: discard
}

// Client of a ZooKeeper: it follows instances below /services and providers below /dubbo, and publishes instances. It is
// a mirror.Client; make it with NewClient.
type Client struct {
	config ClientConfig
	log    *slog.Logger

	connection *mirror.Connection[link]

	mu      sync.Mutex
	session clientSession
	// published nodes, by service and path.
	published map[registry.Service]map[string]*published
	refused   map[string]struct{} // paths that were logged
}

var _ mirror.Client = (*Client)(nil)

// published is a node of this client.
type published struct {
	data []byte
	// version that it has; -1: it is not this client's, as the instance itself is there.
	version int32
}

// NewClient makes a client; Run connects it.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Root, c.Timeout = strings.TrimSuffix(c.Root, "/"), cmp.Or(c.Timeout, sessionTimeout)
	log := c.Logger.With("protocol", string(registry.ZooKeeper))
	return &Client{
		config: c, log: log, connection: mirror.NewConnection[link](c.Servers, log), published: map[registry.Service]map[string]*published{},
		refused: map[string]struct{}{},
	}
}

// Run implements mirror.Reader.
func (c *Client) Run(ctx context.Context, to mirror.Sink) error {
	c.connection.Run(ctx, func(ctx context.Context) error {
		err := c.attempt(ctx, to)
		if errors.Is(err, errExpired) {
			c.mu.Lock()
			c.session = clientSession{}
			c.mu.Unlock()
		}
		return err
	})
	return nil
}

// attempt to be connected, until the connection ends.
func (c *Client) attempt(ctx context.Context, to mirror.Sink) error {
	server := c.connection.Server()
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	fresh := session.id == 0
	session.timeout = c.config.Timeout
	r := &reader{client: c, to: to, wake: make(chan struct{}, 1), dirty: map[string]struct{}{}, nodes: map[string]map[string][]byte{}, ofInterface: map[string][]registry.Service{}}
	l, err := dialServer(ctx, server, c.config.TLS, &session, r.changed)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	r.link = l
	c.mu.Lock()
	session.zxid = c.session.zxid
	c.session = session
	c.mu.Unlock()
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var parts sync.WaitGroup
	parts.Go(func() {
		defer cancel()
		ended <- l.run(running, func(zxid int64) {
			c.mu.Lock()
			c.session.zxid = max(c.session.zxid, zxid)
			c.mu.Unlock()
		})
	})
	defer parts.Wait()
	defer cancel()
	if err := c.begin(running, l, fresh); err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	if to != nil {
		to.Disturbed()
		parts.Go(func() { r.run(running) })
	}
	c.connection.Set(l)
	c.log.Info("connected to the registry", "server", server)
	<-running.Done()
	c.connection.Set(nil)
	return <-ended // the session is not closed: it runs out, so that a client that is started again takes over
}

// showCredentials of the client, where it has some.
func (c *Client) showCredentials(ctx context.Context, l *link) error {
	if c.config.Password == "" {
		return nil
	}
	_, err := l.ask(ctx, opAuth, func(e *encoder) {
		e.int(0)
		e.string("digest")
		e.buffer([]byte(cmp.Or(c.config.Username, "proxima") + ":" + c.config.Password))
	})
	return err
}

// begin shows who the client is, and publishes again what an earlier session did.
func (c *Client) begin(ctx context.Context, l *link, fresh bool) error {
	if err := c.showCredentials(ctx, l); err != nil {
		return err
	}
	if !fresh {
		return nil
	}
	c.mu.Lock()
	all := maps.Clone(c.published) // nothing changes it while there is no link
	c.mu.Unlock()
	for s, nodes := range all {
		for path, p := range nodes {
			version, err := c.ensure(ctx, l, path, p.data, nil)
			if err != nil {
				return fmt.Errorf("publish %s again: %w", s, err)
			}
			p.version = version
		}
	}
	return nil
}

// Publish implements mirror.Client.
func (c *Client) Publish(ctx context.Context, s registry.Service, copies []*registry.Instance) error {
	l, err := c.connection.Link()
	if err != nil {
		return err
	}
	c.mu.Lock()
	have := c.published[s]
	c.mu.Unlock()
	next := map[string]*published{}
	defer func() { // what was done so far is known, also if all was not
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(next) == 0 {
			delete(c.published, s)
		} else {
			c.published[s] = next
		}
	}()
	maps.Copy(next, have)
	wanted := map[string]struct{}{}
	for _, in := range copies {
		path, data, ok := copyNode(in)
		if !ok {
			c.log.Debug("an instance has no name of a node", "service", s, "id", in.ID)
			continue
		}
		path = c.config.Root + path
		wanted[path] = struct{}{}
		version, err := c.ensure(ctx, l, path, data, have[path])
		if err != nil {
			return fmt.Errorf("publish %s: %w", path, err)
		}
		next[path] = &published{data: data, version: version}
	}
	for path, p := range have {
		if _, stays := wanted[path]; stays {
			continue
		}
		if err := c.remove(ctx, l, path, p); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		delete(next, path)
	}
	return nil
}

// Withdraw implements mirror.Client.
func (c *Client) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	list := slices.Collect(maps.Keys(c.published))
	c.mu.Unlock()
	return mirror.Withdraw(ctx, c, list)
}

// foreign is the version of a node that is not this client's.
const foreign = -1

// ensure that there is a node, with data, which has is this client's as far as it knows. A node of somebody else
// stays, unless it is a copy that an earlier run has left.
func (c *Client) ensure(ctx context.Context, l *link, path string, data []byte, has *published) (version int32, err error) {
	c.mu.Lock()
	session := c.session.id
	c.mu.Unlock()
	for range 5 { // others change it meanwhile
		if has != nil && has.version != foreign {
			switch err := c.refresh(ctx, l, path, data, has, session); {
			case err == nil:
				return has.version, nil
			case !refused(err, codeNoNode) && !refused(err, codeBadVersion):
				return foreign, err
			}
			has = nil
		}
		if version, err = c.create(ctx, l, path, data); err == nil {
			return version, nil
		}
		switch {
		case refused(err, codeNoNode):
			if err := l.parents(ctx, path); err != nil {
				return foreign, err
			}
			continue
		case !refused(err, codeNodeExists):
			return foreign, err
		case c.config.Proxima: // the instance itself is there, and this copy takes its place when it goes
			return foreign, nil
		}
		version, err = c.takeOver(ctx, l, path, data, session)
		if !refused(err, codeNoNode) && !refused(err, codeBadVersion) {
			return version, err
		}
	}
	return foreign, err
}

// refresh a node of this client. What is not there, or somebody else's, is codeNoNode.
func (c *Client) refresh(ctx context.Context, l *link, path string, data []byte, has *published, session int64) error {
	_, s, err := l.data(ctx, path, false)
	switch {
	case err != nil:
		return err
	case s.owner != session || s.version != has.version && !c.config.Proxima:
		return &codeError{opGetData, codeNoNode}
	case bytes.Equal(data, has.data):
		return nil
	}
	if err := l.do(ctx, clientOp{op: opSetData, path: path, data: data, version: s.version}); err != nil {
		return err
	}
	has.version = s.version + 1
	return nil
}

// create a node. It is written twice, so that its version is not that of a node that an application creates in its
// place, and a removal of the one cannot hit the other.
func (c *Client) create(ctx context.Context, l *link, path string, data []byte) (version int32, err error) {
	one := clientOp{op: opCreate, path: path, data: data, mode: modeEphemeral}
	if c.config.Proxima {
		return 0, l.do(ctx, one)
	}
	return 1, l.multi(ctx, one, clientOp{op: opSetData, path: path, data: data, version: 0})
}

// takeOver a node that exists, if it is a copy: an earlier run has left it, and it would go with that one's session.
func (c *Client) takeOver(ctx context.Context, l *link, path string, data []byte, session int64) (version int32, err error) {
	have, s, err := l.data(ctx, path, false)
	if err != nil {
		return foreign, err
	}
	in, err := c.parse(path, have)
	switch {
	case err != nil, in.MirroredFrom() == "":
		return foreign, nil //nolint:nilerr // it is no copy, whatever else it is
	case s.owner == session:
		return s.version, nil
	}
	return 1, l.multi(ctx, clientOp{op: opDelete, path: path, version: s.version}, clientOp{op: opCreate, path: path, data: data, mode: modeEphemeral},
		clientOp{op: opSetData, path: path, data: data, version: 0})
}

// parents of a node are created where there are none.
func (l *link) parents(ctx context.Context, path string) error {
	for at := 1; ; {
		n := strings.IndexByte(path[at:], '/')
		if n < 0 {
			return nil
		}
		at += n
		if err := l.do(ctx, clientOp{op: opCreate, path: path[:at], mode: modePersistent}); err != nil && !refused(err, codeNodeExists) {
			return fmt.Errorf("create %s: %w", path[:at], err)
		}
		at++
	}
}

// remove a node of this client.
func (c *Client) remove(ctx context.Context, l *link, path string, p *published) error {
	version := p.version
	switch {
	case c.config.Proxima:
		version = anyVersion // it tells copies from instances by itself
	case version == foreign:
		return nil
	}
	err := l.do(ctx, clientOp{op: opDelete, path: path, version: version})
	if refused(err, codeNoNode) || refused(err, codeBadVersion) { // it is gone, or somebody else's
		return nil
	}
	return err
}

// parse the instance that a node is, by its path.
func (c *Client) parse(path string, data []byte) (*registry.Instance, error) {
	names := strings.Split(strings.TrimPrefix(path, c.config.Root+"/"), "/")
	in := &registry.Instance{Weight: defaultWeight, Enabled: true, Healthy: true, Ephemeral: true, Protocol: registry.ZooKeeper}
	var err error
	switch {
	case len(names) == 3 && names[0] == rootServices:
		in.Service, in.ID = registry.ParseGrouped(c.config.Namespace, names[1]), names[2]
		err = fromCurator(in, in.ID, data, netip.Addr{})
	case len(names) == 4 && names[0] == rootDubbo:
		t := target{namespace: c.config.Namespace}
		t.ofInterface(names[1:])
		if t.place != ofInstance {
			return nil, fmt.Errorf("%s is no instance", path)
		}
		in.Service, in.ID = t.service, t.id
		err = fromURL(in, in.ID, netip.Addr{})
	default:
		return nil, fmt.Errorf("%s is no instance", path)
	}
	if err != nil {
		return nil, err
	}
	if !in.Address.IsValid() {
		return nil, errors.New("its address is no IP address")
	}
	in.Detail, err = json.Marshal(detail{Data: orEmpty(data)})
	return in, err
}

// unreadable is logged once for a path.
func (c *Client) unreadable(path string, err error) {
	c.mu.Lock()
	_, known := c.refused[path]
	if len(c.refused) < maxList {
		c.refused[path] = struct{}{}
	}
	c.mu.Unlock()
	if !known {
		c.log.Warn("a node is not mirrored", "path", path, "error", err)
	}
}

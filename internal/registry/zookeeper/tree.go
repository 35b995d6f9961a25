package zookeeper

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// tree of nodes, as clients of a zone see it. What is read and what is told are in the order of its lock.
type tree struct {
	server *Server
	zone   locality.Zone
	ready  chan struct{} // closed when it is filled

	mu    sync.Mutex
	zxid  int64
	nodes map[string]*node
	// services and entries have the paths that were made of each.
	services map[registry.Service]map[string]struct{}
	entries  map[registry.ConfigKey][]string
	sessions map[int64]map[string]*node // ephemeral nodes, by session
	watches  map[string]map[*conn]watch
	// recursive is how many watches are recursive.
	recursive int
	changed   chan struct{} // closed when something has changed
	// syncs are closed when the tree has what the core had when they came.
	syncs chan chan struct{}
	// extraAt is the revision up to which nodes that are not mapped are shown.
	extraAt store.Revision
	cause   time.Time // of what is being applied
}

// node of the tree. One without a source is a parent.
type node struct {
	path     string
	children map[string]struct{}
	stat     stat
	data     []byte
	acl      []znode.ACL
	source   any // registry.Service, registry.ConfigKey or extra; nil: a parent
	// own nodes are written by clients of ZooKeeper; others only read.
	own   bool
	key   resource.Key // of an instance
	proof string       // of its session
	// generation of an entry.
	generation int64
}

// content that a node is to have.
type content struct {
	data                []byte
	acl                 []znode.ACL
	aversion            int32
	own                 bool
	key                 resource.Key
	proof               string
	owner               int64
	version             int32
	generation          int64
	czxid, mzxid, ctime int64 // 0: that of the change
	mtime               int64
}

// watch is a set of kinds.
type watch uint8

const (
	watchData watch = 1 << iota
	watchChildren
	watchPersistent
	watchRecursive
)

func newTree(s *Server, zone locality.Zone) *tree {
	return &tree{
		server: s, zone: zone, ready: make(chan struct{}), nodes: map[string]*node{}, services: map[registry.Service]map[string]struct{}{},
		entries: map[registry.ConfigKey][]string{}, sessions: map[int64]map[string]*node{}, watches: map[string]map[*conn]watch{},
		changed: make(chan struct{}), syncs: make(chan chan struct{}),
	}
}

// run follows the core until ctx ends.
func (t *tree) run(ctx context.Context) {
	core := t.server.core
	for _, ready := range []<-chan struct{}{core.Index.Ready(), core.Configs.Ready()} {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
	services, entries := core.Index.FollowAll(), core.Configs.FollowAll()
	defer services.Close()
	defer entries.Close()
	t.zxid = int64(core.Index.Position())
	var nodes *znode.Follower
	var nodesReady <-chan struct{} // nil: never
	if t.server.extra != nil {
		select {
		case <-t.server.extra.Ready():
		case <-ctx.Done():
			return
		}
		nodes = t.server.extra.Follow()
		defer nodes.Close()
		nodesReady = nodes.Ready()
		// In the middle, as Index.Position is: behind what an earlier run can have said at this revision.
		t.zxid = max(t.zxid, int64(t.server.extra.Revision())<<positionBits|1<<(positionBits-1))
	}
	for _, path := range fixed {
		t.parents(path+"/.", t.zxid)
	}
	t.applyServices(services.Take())
	t.applyEntries(entries.Take())
	if nodes != nil {
		t.applyExtra(nodes.Take())
	}
	close(t.ready)
	for {
		select {
		case <-ctx.Done():
			return
		case <-services.Ready():
			t.applyServices(services.Take())
		case <-entries.Ready():
			t.applyEntries(entries.Take())
		case <-nodesReady:
			t.applyExtra(nodes.Take())
		case done := <-t.syncs:
			t.applyServices(services.Take())
			t.applyEntries(entries.Take())
			if nodes != nil {
				t.applyExtra(nodes.Take())
			}
			close(done)
		}
	}
}

// sync blocks until the tree has what the core has.
func (t *tree) sync(ctx context.Context) error {
	if t.server.extra != nil {
		if err := t.server.extra.Sync(ctx); err != nil {
			return err
		}
	}
	done := make(chan struct{})
	select {
	case t.syncs <- done: // whoever takes it closes it
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin a change: all of it has one transaction. It returns with the lock.
func (t *tree) begin(at registry.Position, cause time.Time) int64 {
	t.mu.Lock()
	t.zxid = max(t.zxid+1, int64(at))
	t.cause = cause
	return t.zxid
}

func (t *tree) end() {
	close(t.changed)
	t.changed = make(chan struct{})
	t.mu.Unlock()
}

func (t *tree) applyServices(list []registry.Service, at registry.Position) {
	if len(list) == 0 {
		return
	}
	// The listings are read before the lock is taken, so that they are no older than the position.
	listings := make([]*registry.Listing, len(list))
	cause := time.Now()
	for i, service := range list {
		listings[i] = t.server.core.Index.Listing(service, t.zone)
		if c := listings[i].Changed; !c.IsZero() && c.Before(cause) {
			cause = c
		}
	}
	z := t.begin(at, cause)
	defer t.end()
	for _, l := range listings {
		t.applyService(l, z)
	}
}

func (t *tree) applyService(l *registry.Listing, z int64) {
	want := map[string]content{}
	at := map[string]struct{}{} // addresses of instances that came by ZooKeeper
	spring := false             // one of them is of Spring Cloud
	for _, in := range l.Instances {
		if d, ok := detailOf(in); ok {
			at[addressOf(in)] = struct{}{}
			spring = spring || bytes.Contains(d.Data, []byte(classSpring))
			if path := t.server.pathOf(in); path != "" {
				want[path] = ownContent(in, d)
			}
		}
	}
	for _, in := range l.Instances {
		if _, twice := at[addressOf(in)]; in.Protocol == registry.ZooKeeper || twice || !in.Healthy || !in.Enabled || in.Port == 0 {
			continue
		}
		path := t.server.pathOf(in)
		if path == "" {
			continue
		}
		c := content{
			data: dataOf(in, strings.Contains(path, "/"+providers+"/"), spring), mzxid: int64(in.Revision << positionBits), ctime: in.Created.UnixMilli(),
		}
		if in.Ephemeral {
			c.owner = foreignOwner
		}
		want[path] = c
	}
	for path := range t.services[l.Service] {
		if _, stays := want[path]; !stays {
			t.unset(path, l.Service, z)
		}
	}
	if len(want) == 0 {
		delete(t.services, l.Service)
		return
	}
	have := make(map[string]struct{}, len(want))
	for _, path := range slices.Sorted(maps.Keys(want)) {
		t.set(path, l.Service, want[path], z)
		have[path] = struct{}{}
	}
	t.services[l.Service] = have
}

// positionBits are below the revision in a position (registry.Position).
const positionBits = 10

// revisionOf an entry; 0 where versions are no numbers.
func revisionOf(o *meshv1alpha1.RegistryConfig) int64 {
	n, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
	return n
}

func ownContent(in *registry.Instance, d detail) content {
	c := content{
		data: d.Data, own: true, key: in.Key(), proof: d.Proof, owner: d.Session, version: d.Version, czxid: d.Created,
		mzxid: int64(in.Revision << positionBits), ctime: in.Created.UnixMilli(),
	}
	if c.czxid == 0 {
		c.czxid = c.mzxid
	}
	return c
}

func (t *tree) applyEntries(list []registry.ConfigKey) {
	if len(list) == 0 {
		return
	}
	z := t.begin(t.server.core.Index.Position(), time.Now())
	defer t.end()
	for _, key := range list {
		o := t.server.core.Configs.Get(key)
		var paths []string
		if o != nil {
			paths = t.server.pathsOf(key, o)
		}
		for _, path := range t.entries[key] {
			if !slices.Contains(paths, path) {
				t.unset(path, key, z)
			}
		}
		if len(paths) == 0 {
			delete(t.entries, key)
			continue
		}
		t.entries[key] = paths
		c := content{
			data: []byte(o.Spec.Content), own: true, version: int32(o.Generation - 1), generation: o.Generation,
			mzxid: revisionOf(o) << positionBits, ctime: o.CreationTimestamp.UnixMilli(),
		}
		for _, path := range paths {
			t.set(path, key, c, z)
		}
	}
}

// parents makes those of a path, and returns the nearest one.
func (t *tree) parents(path string, z int64) *node {
	up := parentOf(path)
	if n := t.nodes[up]; n != nil || path == "/" {
		return n
	}
	n := &node{path: up, stat: stat{czxid: z, mzxid: z, pzxid: z}}
	t.nodes[up] = n
	if up != "/" {
		t.attach(n, z)
	}
	return n
}

// attach a new node to its parent, and call the watches.
func (t *tree) attach(n *node, z int64) {
	p := t.parents(n.path, z)
	if p.children == nil {
		p.children = map[string]struct{}{}
	}
	p.children[nameOf(n.path)] = struct{}{}
	p.stat.pzxid = z
	p.stat.cversion++
	t.fire(n, created)
	t.fire(p, childrenChanged)
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

func nameOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// set what a node has, and make it if there is none. A path that another source has stays its.
func (t *tree) set(path string, source any, c content, z int64) {
	n := t.nodes[path]
	if n != nil && n.source == source && n.own == c.own && (n.stat.owner != c.owner || c.own && c.generation == 0 && n.stat.czxid != c.czxid) {
		t.unset(path, source, z) // it was deleted and created meanwhile
		n = t.nodes[path]
	}
	if n != nil && n.source != nil && n.source != source {
		return
	}
	fresh := n == nil
	if fresh {
		n = &node{path: path}
		t.nodes[path] = n
	}
	if c.mzxid == 0 {
		c.mzxid = z
	}
	if c.mtime == 0 {
		c.mtime = c.ctime
	}
	if n.source == nil {
		n.stat.czxid, n.stat.ctime, n.stat.mtime, n.stat.mzxid = c.mzxid, c.ctime, c.mtime, c.mzxid
		if c.czxid != 0 {
			n.stat.czxid = c.czxid
		}
		n.stat.pzxid = max(n.stat.pzxid, n.stat.czxid)
	}
	differs := n.source != nil && (!bytes.Equal(n.data, c.data) || n.stat.version != c.version)
	n.source, n.own, n.key, n.proof, n.generation, n.data = source, c.own, c.key, c.proof, c.generation, c.data
	n.acl, n.stat.aversion = c.acl, c.aversion
	n.stat.owner, n.stat.version, n.stat.length = c.owner, c.version, int32(len(c.data))
	if c.own && c.owner != 0 {
		if t.sessions[c.owner] == nil {
			t.sessions[c.owner] = map[string]*node{}
		}
		t.sessions[c.owner][path] = n
	}
	switch {
	case fresh:
		t.attach(n, z)
	case differs:
		n.stat.mzxid, n.stat.mtime = c.mzxid, time.Now().UnixMilli()
		t.fire(n, dataChanged)
	}
}

// unset removes what a source made of a path.
func (t *tree) unset(path string, source any, z int64) {
	n := t.nodes[path]
	if n == nil || n.source != source {
		return
	}
	if owned := t.sessions[n.stat.owner]; owned != nil {
		if delete(owned, path); len(owned) == 0 {
			delete(t.sessions, n.stat.owner)
		}
	}
	if len(n.children) > 0 {
		n.source, n.own, n.data, n.acl, n.stat.owner, n.stat.length = nil, false, nil, nil, 0, 0
		return
	}
	t.detach(n, z)
}

// detach a node from its parent, which goes, too, if it is there for its children alone.
func (t *tree) detach(n *node, z int64) {
	delete(t.nodes, n.path)
	up := t.nodes[parentOf(n.path)]
	delete(up.children, nameOf(n.path))
	up.stat.pzxid = z
	up.stat.cversion++
	if n.source == nil && t.server.target(n.path).place == standing {
		t.fireRecursive(n.path, n, deleted, nil) // to others it is there still
	} else {
		t.fire(n, deleted)
	}
	t.fire(up, childrenChanged)
	if len(up.children) == 0 && up.source == nil && up.path != "/" && !slices.Contains(fixed, up.path) {
		t.detach(up, z)
	}
}

// fixed parents are there without children.
var fixed = []string{
	"", "/" + rootServices, "/" + rootDubbo, "/" + rootSystem, "/" + rootDubbo + "/" + mapping, "/" + rootDubbo + "/" + config, "/" + rootDubbo + "/" + metadata,
}

// fire the watches of a node.
func (t *tree) fire(n *node, e event) {
	var told map[*conn]struct{}
	for c, w := range t.watches[n.path] {
		var uses watch
		switch e {
		case created, dataChanged:
			uses = watchData | watchPersistent | watchRecursive
		case deleted:
			uses = watchData | watchChildren | watchPersistent | watchRecursive
		case childrenChanged:
			uses = watchChildren | watchPersistent
		}
		if w&uses == 0 {
			continue
		}
		if told == nil {
			told = map[*conn]struct{}{}
		}
		told[c] = struct{}{}
		t.send(c, n, e)
		t.setWatch(n.path, c, w&^(uses&(watchData|watchChildren)))
	}
	if e != childrenChanged {
		t.fireRecursive(parentOf(n.path), n, e, told)
	}
}

// fireRecursive tells those of a node who watch one of its parents, or itself where it is from, and all
// that is below. told are those who know already.
func (t *tree) fireRecursive(from string, n *node, e event, told map[*conn]struct{}) {
	if t.recursive == 0 {
		return
	}
	if told == nil {
		told = map[*conn]struct{}{}
	}
	for up := from; ; up = parentOf(up) {
		for c, w := range t.watches[up] {
			if _, twice := told[c]; !twice && w&watchRecursive != 0 {
				told[c] = struct{}{}
				t.send(c, n, e)
			}
		}
		if up == "/" {
			return
		}
	}
}

// send an event of a node to a client that may read it, as ZooKeeper does since 3.8.4 (NIOServerCnxn.process).
func (t *tree) send(c *conn, n *node, e event) {
	if c.allows(n, znode.PermRead) != nil {
		return
	}
	t.server.core.Meters.Push(registry.ZooKeeper, time.Since(t.cause))
	c.sendEvent(n.path, e)
}

// setWatch replaces the watches of a connection on a path.
func (t *tree) setWatch(path string, c *conn, w watch) {
	before := t.watches[path][c]
	switch had, has := before&watchRecursive != 0, w&watchRecursive != 0; {
	case has && !had:
		t.recursive++
	case had && !has:
		t.recursive--
	}
	if w == 0 {
		delete(c.watched, path)
		if delete(t.watches[path], c); len(t.watches[path]) == 0 {
			delete(t.watches, path)
		}
		return
	}
	if t.watches[path] == nil {
		t.watches[path] = map[*conn]watch{}
	}
	t.watches[path][c] = w
	c.watched[path] = struct{}{}
}

// forget the watches of a connection that has ended.
func (t *tree) forget(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path := range c.watched {
		t.setWatch(path, c, 0)
	}
}

// find a node under the lock; parents that are always there are found without being in the tree.
func (t *tree) find(path string) *node {
	if n := t.nodes[path]; n != nil {
		return n
	}
	if t.server.target(path).place == standing {
		return &node{path: path, stat: stat{pzxid: t.zxid}}
	}
	return nil
}

// statOf a node, with what depends on its children.
func (n *node) statOf() *stat {
	s := n.stat
	s.children = int32(len(n.children))
	return &s
}

// await blocks until a condition holds, which is called under the lock.
func (t *tree) await(ctx context.Context, done func() bool) error {
	for {
		t.mu.Lock()
		ok, changed := done(), t.changed
		t.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

package zookeeper

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Entries reads and writes what Dubbo stores in a ZooKeeper beside instances: mappings, metadata, configuration and rules.
// It is a mirror.EntryClient; make it with NewEntries.
type Entries struct{ client *Client }

var _ mirror.EntryClient = (*Entries)(nil)

// NewEntries makes it; Run connects it.
func NewEntries(c ClientConfig) *Entries { return &Entries{client: NewClient(c)} }

// RunEntries implements mirror.EntryClient.
func (e *Entries) RunEntries(ctx context.Context, to mirror.EntrySink) error {
	e.client.connection.Run(ctx, func(ctx context.Context) error { return e.attempt(ctx, to) })
	return nil
}

// attempt to be connected, until the connection ends. Each has a session of its own, which keeps nothing alive.
func (e *Entries) attempt(ctx context.Context, to mirror.EntrySink) error {
	c := e.client
	server := c.connection.Server()
	r := &entryReader{client: c, to: to, wake: make(chan struct{}, 1), dirty: map[string]struct{}{}, known: map[string]*mirror.Entry{}, children: map[string]map[string]struct{}{}}
	l, err := dialServer(ctx, server, c.config.TLS, &clientSession{timeout: c.config.Timeout}, r.changed)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	r.link = l
	running, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	ended := make(chan error, 1)
	parts.Go(func() {
		defer cancel()
		ended <- l.run(running, func(int64) {})
	})
	if err := c.showCredentials(running, l); err != nil {
		return fmt.Errorf("connect to %s: %w", server, err)
	}
	c.connection.Set(l)
	defer c.connection.Set(nil)
	r.run(running)
	return <-ended
}

// below /dubbo is what a path is: an inner node, whose children are followed, or one whose data may be an entry,
// or both.
func below(names []string) (inner, leaf bool) {
	n := len(names)
	if n < 2 {
		return true, false
	}
	switch names[0] {
	case mapping:
		return false, n == 2
	case config:
		return n == 2, n == 3
	case metadata:
		t := target{}
		t.dubbo(names)
		return n < 6, t.place == ofEntry
	}
	category := names[1]
	switch {
	case category == configurators || category == routers:
		return n == 2, n == 3
	case slices.Contains(categories, category):
		return false, false
	}
	return false, n == 2
}

// entryOf a path without the root, which is one below /dubbo, and its data; nil: they are none.
func (c *Client) entryOf(path string, data []byte) *mirror.Entry {
	names := strings.Split(path, "/")[2:]
	t := target{}
	t.dubbo(names)
	if t.place != ofEntry || t.parentOnly(path, data) || names[0] == mapping && len(data) == 0 {
		return nil
	}
	last := len(names) - 1
	return &mirror.Entry{
		Key:     registry.ConfigKey{Namespace: c.config.Namespace, Group: strings.Join(names[:last], "/"), DataID: names[last]},
		Content: string(data),
	}
}

// entryPath is the path of an entry, with the root.
func (c *Client) entryPath(key registry.ConfigKey) string {
	return c.config.Root + "/" + rootDubbo + "/" + key.Group + "/" + key.DataID
}

// entryReader follows nodes below /dubbo over one connection, by watches.
type entryReader struct {
	client *Client
	link   *link
	to     mirror.EntrySink
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]struct{} // paths, without the root of the client
	// known are the paths that are followed, with the entry of each that is one.
	known map[string]*mirror.Entry
	// children that a node had when it was read last.
	children map[string]map[string]struct{}
	listed   bool
}

// changed is called with a path whose watch was called.
func (r *entryReader) changed(path string) {
	path, ok := strings.CutPrefix(path, r.client.config.Root)
	if !ok {
		return
	}
	r.mu.Lock()
	r.dirty[path] = struct{}{}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run until ctx ends.
func (r *entryReader) run(ctx context.Context) {
	r.mark("/" + rootDubbo)
	for {
		r.mu.Lock()
		paths := slices.Sorted(maps.Keys(r.dirty))
		clear(r.dirty)
		r.mu.Unlock()
		if len(paths) > 0 {
			if failed := r.readAll(ctx, paths); failed && !backoff.Sleep(ctx, rereadAfter) {
				return
			}
			continue
		}
		r.list()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (r *entryReader) mark(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty[path] = struct{}{}
}

// list all entries, once.
func (r *entryReader) list() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listed {
		return
	}
	r.listed = true
	var all []*mirror.Entry
	for _, entry := range r.known {
		if entry != nil {
			all = append(all, entry)
		}
	}
	r.to.Listed(all)
}

// readAll reads paths. What fails is read again later.
func (r *entryReader) readAll(ctx context.Context, paths []string) (failed bool) {
	var running sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, readers)
	for _, path := range paths {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := r.read(ctx, path); err != nil && ctx.Err() == nil {
				r.client.log.Debug("a part of the tree cannot be read; it is tried again", "path", path, "error", err)
				r.mark(path)
				mu.Lock()
				failed = true
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return failed
}

// read a node.
func (r *entryReader) read(ctx context.Context, path string) error {
	inner, leaf := below(strings.Split(path, "/")[2:])
	full := r.client.config.Root + path
	if inner {
		children, err := r.link.children(ctx, full)
		if refused(err, codeNoNode) && path == "/"+rootDubbo { // others are told of by their parents
			there, err := r.link.exists(ctx, full)
			if err == nil && there {
				return r.read(ctx, path)
			}
			if err != nil {
				return err
			}
		} else if err != nil && !refused(err, codeNoNode) {
			return err
		}
		r.parent(path, children)
	}
	if !leaf {
		return nil
	}
	data, s, err := r.link.data(ctx, full, true)
	switch {
	case refused(err, codeNoNode):
		r.set(path, nil)
		return nil
	case err != nil:
		return err
	}
	var entry *mirror.Entry
	if s.owner == 0 { // others go with their session
		entry = r.client.entryOf(path, data)
	}
	r.set(path, entry)
	return nil
}

// parent notes the children of a node: new ones are read, and what has gone is forgotten.
func (r *entryReader) parent(path string, children []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := map[string]struct{}{}
	for _, name := range children {
		have[name] = struct{}{}
		child := path + "/" + name
		if inner, leaf := below(strings.Split(child, "/")[2:]); !inner && !leaf {
			continue
		}
		if _, known := r.known[child]; !known {
			r.known[child] = nil
			r.dirty[child] = struct{}{}
		}
	}
	before := r.children[path]
	r.children[path] = have
	for name := range before {
		if _, there := have[name]; !there {
			r.forget(path + "/" + name)
		}
	}
}

// forget a path, and all below it. It is called with the lock.
func (r *entryReader) forget(path string) {
	for name := range r.children[path] {
		r.forget(path + "/" + name)
	}
	delete(r.children, path)
	if _, known := r.known[path]; known {
		r.put(path, nil)
		delete(r.known, path)
	}
}

// set the entry of a path that is followed; nil: it is none.
func (r *entryReader) set(path string, entry *mirror.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.known[path]; known {
		r.put(path, entry)
	}
}

// put is set with the lock.
func (r *entryReader) put(path string, entry *mirror.Entry) {
	before := r.known[path]
	r.known[path] = entry
	switch {
	case !r.listed:
	case entry != nil:
		r.to.Set(entry)
	case before != nil:
		r.to.Removed(before.Key)
	}
}

// PutEntry implements mirror.EntryClient.
func (e *Entries) PutEntry(ctx context.Context, entry, before *mirror.Entry) error {
	l, err := e.client.connection.Link()
	if err != nil {
		return err
	}
	path := e.client.entryPath(entry.Key)
	err = e.put(ctx, l, path, []byte(entry.Content), before)
	switch {
	case refused(err, codeBadVersion), refused(err, codeNoNode), refused(err, codeNodeExists):
		return mirror.ErrChanged
	case refused(err, codeNoAuth), refused(err, codeBadArguments):
		return &mirror.RefusedError{Reason: err.Error()}
	case err != nil:
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (e *Entries) put(ctx context.Context, l *link, path string, data []byte, before *mirror.Entry) error {
	if before == nil {
		create := clientOp{op: opCreate, path: path, data: data, mode: modePersistent}
		err := l.do(ctx, create)
		if refused(err, codeNoNode) {
			if err := l.parents(ctx, path); err != nil {
				return err
			}
			err = l.do(ctx, create)
		}
		if !refused(err, codeNodeExists) {
			return err
		}
	}
	have, s, err := l.data(ctx, path, false)
	switch {
	case err != nil:
		return err
	case before == nil && e.client.entryOf(strings.TrimPrefix(path, e.client.config.Root), have) != nil, before != nil && !bytes.Equal(have, []byte(before.Content)):
		return mirror.ErrChanged
	}
	return l.do(ctx, clientOp{op: opSetData, path: path, data: data, version: s.version})
}

// RemoveEntry implements mirror.EntryClient.
func (e *Entries) RemoveEntry(ctx context.Context, before *mirror.Entry) error {
	l, err := e.client.connection.Link()
	if err != nil {
		return err
	}
	path := e.client.entryPath(before.Key)
	have, s, err := l.data(ctx, path, false)
	if err == nil {
		if !bytes.Equal(have, []byte(before.Content)) {
			return mirror.ErrChanged
		}
		err = l.do(ctx, clientOp{op: opDelete, path: path, version: s.version})
	}
	switch {
	case refused(err, codeNoNode):
		return nil
	case refused(err, codeBadVersion):
		return mirror.ErrChanged
	case err != nil:
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// maxNode is what a server takes by default (jute.maxbuffer), less the rest of a request, in bytes.
const maxNode = 1<<20 - maxPath - 1<<10

// Unfit implements mirror.EntryClient.
func (e *Entries) Unfit(entry *mirror.Entry) string {
	switch {
	case strings.HasPrefix(entry.Key.DataID, kind.SecretDataID), entry.DataKey != "":
		return "it is encrypted for clients of Nacos"
	case len(entry.Content) > maxNode:
		return fmt.Sprintf("it has %d bytes; a node of ZooKeeper has at most %d", len(entry.Content), maxNode)
	}
	return ""
}

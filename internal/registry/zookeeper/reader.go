package zookeeper

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
)

const (
	// readers read at the same time.
	readers = 8
	// rereadAfter is when what could not be read is read again.
	rereadAfter = time.Second
)

// reader follows the tree over one connection, by watches. A watch that is called names a parent, which is read again.
type reader struct {
	client *Client
	link   *link
	to     mirror.Sink
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]struct{} // parents, without the root of the client
	// nodes are the data of children, by parent. A watch is on each.
	nodes map[string]map[string][]byte
	// ofInterface are the services that the providers of an interface are of, by parent.
	ofInterface map[string][]registry.Service
}

// changed is called with a path whose watch was called.
func (r *reader) changed(path string) {
	path, ok := strings.CutPrefix(path, r.client.config.Root)
	if !ok {
		return
	}
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	r.mu.Lock()
	switch {
	case len(names) == 3 && names[0] == rootServices:
		path = "/" + names[0] + "/" + names[1]
		delete(r.nodes[path], names[2])
	case len(names) == 4:
		path = path[:strings.LastIndexByte(path, '/')]
	}
	r.dirty[path] = struct{}{}
	r.mu.Unlock()
	r.signal()
}

func (r *reader) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reader) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Sorted(maps.Keys(r.dirty))
	clear(r.dirty)
	return out
}

// run until ctx ends.
func (r *reader) run(ctx context.Context) {
	r.dirty["/"+rootServices], r.dirty["/"+rootDubbo] = struct{}{}, struct{}{}
	synced := false
	for {
		paths := r.take()
		if len(paths) == 0 {
			if !synced {
				synced = true
				r.to.Synced()
			}
			select {
			case <-r.wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		if failed := r.readAll(ctx, paths); failed && !backoff.Sleep(ctx, rereadAfter) {
			return
		}
	}
}

// readAll reads parents again. What fails is read again later.
func (r *reader) readAll(ctx context.Context, paths []string) (failed bool) {
	var running sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, readers)
	for _, path := range paths {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := r.read(ctx, path); err != nil && ctx.Err() == nil {
				r.client.log.Debug("a part of the tree cannot be read; it is tried again", "path", path, "error", err)
				r.mu.Lock()
				r.dirty[path] = struct{}{}
				r.mu.Unlock()
				mu.Lock()
				failed = true
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return failed
}

// read a parent again.
func (r *reader) read(ctx context.Context, path string) error {
	names := strings.Split(path[1:], "/")
	full := r.client.config.Root + path
	children, err := r.link.children(ctx, full)
	if refused(err, codeNoNode) {
		children, err = nil, nil
		if len(names) == 1 || names[0] == rootDubbo && len(names) == 3 { // others are told of by their parents
			there, err := r.link.exists(ctx, full)
			if err != nil {
				return err
			}
			if there {
				return r.read(ctx, path)
			}
		}
	}
	if err != nil {
		return err
	}
	switch {
	case len(names) == 1:
		r.add(path, children)
	case names[0] == rootServices && len(names) == 2:
		return r.application(ctx, path, names[1], children)
	case names[0] == rootDubbo && len(names) == 3:
		r.interfaces(path, children)
	}
	return nil
}

// add the children of a root, which are followed once.
func (r *reader) add(root string, children []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range children {
		path := root + "/" + name
		if root == "/"+rootDubbo {
			if slices.Contains([]string{mapping, metadata, config}, name) {
				continue
			}
			path += "/" + providers
		}
		if r.nodes[path] == nil {
			r.nodes[path] = map[string][]byte{}
			r.dirty[path] = struct{}{}
		}
	}
}

// application reads the instances of one.
func (r *reader) application(ctx context.Context, path, app string, children []string) error {
	s := registry.ParseGrouped(r.client.config.Namespace, app)
	var list []*registry.Instance
	have := map[string]struct{}{}
	for _, name := range children {
		full := r.client.config.Root + path + "/" + name
		have[name] = struct{}{}
		r.mu.Lock()
		data, known := r.nodes[path][name]
		r.mu.Unlock()
		if !known {
			// It is known before it is read, so that a watch that is called meanwhile has it read again.
			r.mu.Lock()
			r.nodes[path][name] = nil
			r.mu.Unlock()
			read, _, err := r.link.data(ctx, full, true)
			if refused(err, codeNoNode) {
				r.mu.Lock()
				delete(r.nodes[path], name)
				r.mu.Unlock()
				continue
			}
			if err != nil {
				r.mu.Lock()
				delete(r.nodes[path], name)
				r.mu.Unlock()
				return err
			}
			data = orEmpty(read)
			r.mu.Lock()
			if _, still := r.nodes[path][name]; still {
				r.nodes[path][name] = data
			}
			r.mu.Unlock()
		}
		in, err := r.client.parse(full, data)
		if err != nil {
			r.client.unreadable(full, err)
			continue
		}
		list = append(list, in)
	}
	r.mu.Lock()
	for name := range r.nodes[path] {
		if _, ok := have[name]; !ok {
			delete(r.nodes[path], name)
		}
	}
	r.mu.Unlock()
	r.to.Set(s, list)
	return nil
}

// interfaces reads the providers of an interface: the names of nodes have it all.
func (r *reader) interfaces(path string, children []string) {
	lists := map[registry.Service][]*registry.Instance{}
	for _, name := range children {
		full := r.client.config.Root + path + "/" + name
		in, err := r.client.parse(full, nil)
		if err != nil {
			r.client.unreadable(full, err)
			continue
		}
		lists[in.Service] = append(lists[in.Service], in)
	}
	r.mu.Lock()
	before := r.ofInterface[path]
	r.ofInterface[path] = slices.Collect(maps.Keys(lists))
	r.mu.Unlock()
	for _, s := range before {
		if lists[s] == nil {
			lists[s] = nil // what has gone
			r.to.Set(s, nil)
		}
	}
	for s, list := range lists {
		if len(list) > 0 {
			r.to.Set(s, list)
		}
	}
}

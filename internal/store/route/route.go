// Package route keeps kinds in different stores: each prefix of keys in one.
//
// It owns the table of prefixes. Enter at New. It never moves what is stored: a
// kind whose route changes starts empty in its new store.
//
// # What it can't promise
//
// Several stores have no common history, so a Router is not a store.Store.
// There is no revision, epoch or watch over all of it; what it hands out are its
// stores, each guarded against keys that belong to another. Within one of them
// the whole contract of store.Store holds. Therefore:
//
//   - A transaction over keys of two stores is refused with *SpanError, and so is a
//     read or watch of a prefix that lies in two. Kinds that are written together
//     (a Service and its IPAddresses, an object and its companions) must share
//     a store.
//   - Resource versions of kinds in different stores must not be compared. Clients
//     of the Kubernetes API may not do that anyway; our catalog's position (epoch,
//     sequence) and a backup are of one store.
//   - It can stand under one resource of the API server's storage adapter, by giving
//     that resource the store of its prefix, and not under all at once.
//
// The control plane therefore uses one store. Routing is for state that
// stands alone and need not survive, such as events kept in memory.
package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Route sends the keys with a prefix to a store.
type Route struct {
	Prefix string
	Store  store.Store
}

// Router knows which key is where. It is immutable and safe for concurrent use.
type Router struct {
	routes   []Route
	fallback store.Store
}

// New makes a router. Keys that no route is for are in fallback. Prefixes must
// not be empty and none may be the beginning of another.
func New(fallback store.Store, routes ...Route) (*Router, error) {
	if fallback == nil {
		return nil, errors.New("route: a store for all other keys is needed")
	}
	for i, r := range routes {
		if r.Prefix == "" || r.Store == nil {
			return nil, fmt.Errorf("route %q: prefix and store are needed", r.Prefix)
		}
		for _, other := range routes[:i] {
			if strings.HasPrefix(r.Prefix, other.Prefix) || strings.HasPrefix(other.Prefix, r.Prefix) {
				return nil, fmt.Errorf("routes %q and %q overlap", other.Prefix, r.Prefix)
			}
		}
	}
	return &Router{routes: slices.Clone(routes), fallback: fallback}, nil
}

// SpanError reports keys that one operation wants and that are in different
// stores. Nothing was done.
type SpanError struct {
	Op string
	// Keys, or prefixes, two of those that are apart.
	Keys [2]string
}

func (e *SpanError) Error() string {
	return fmt.Sprintf("%s: %q and %q are in different stores: kinds that are used together must be routed together", e.Op, e.Keys[0], e.Keys[1])
}

// home is the store of a key; the route's prefix, empty for the fallback.
func (r *Router) home(key string) Route {
	for _, route := range r.routes {
		if strings.HasPrefix(key, route.Prefix) {
			return route
		}
	}
	return Route{Store: r.fallback}
}

// covering is the one store of all keys with a prefix.
func (r *Router) covering(op, prefix string) (Route, error) {
	for _, route := range r.routes {
		if len(route.Prefix) > len(prefix) && strings.HasPrefix(route.Prefix, prefix) {
			return Route{}, &SpanError{Op: op, Keys: [2]string{prefix, route.Prefix}}
		}
	}
	return r.home(prefix), nil
}

// Store returns the store of all keys with a prefix. It refuses keys of other
// stores, of the same underlying store too if they are routed apart. Closing it
// closes what is underneath. Errors: *SpanError.
func (r *Router) Store(prefix string) (store.Store, error) {
	route, err := r.covering("route", prefix)
	if err != nil {
		return nil, err
	}
	return &guarded{Store: route.Store, router: r, home: route.Prefix}, nil
}

// Commit applies a transaction in the one store that all of its keys are in. The
// revision is that store's. Errors: *SpanError, and those of store.Store.
func (r *Router) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	home := Route{Store: r.fallback}
	if keys := keysOf(txn); len(keys) > 0 {
		home = r.home(keys[0])
		if err := r.check("commit", home.Prefix, keys); err != nil {
			return 0, err
		}
	}
	return home.Store.Commit(ctx, txn)
}

// check that keys are at home.
func (r *Router) check(op, home string, keys []string) error {
	for _, key := range keys {
		if r.home(key).Prefix != home {
			return &SpanError{Op: op, Keys: [2]string{keys[0], key}}
		}
	}
	return nil
}

func keysOf(txn store.Txn) []string {
	keys := make([]string, 0, len(txn.Conditions)+len(txn.Ops))
	for _, c := range txn.Conditions {
		keys = append(keys, c.Key)
	}
	for _, op := range txn.Ops {
		keys = append(keys, op.Key)
	}
	return keys
}

// Close closes every store once.
func (r *Router) Close() error {
	closed := map[store.Store]bool{r.fallback: true}
	errs := []error{r.fallback.Close()}
	for _, route := range r.routes {
		if !closed[route.Store] {
			closed[route.Store] = true
			errs = append(errs, route.Store.Close())
		}
	}
	return errors.Join(errs...)
}

// guarded is a store with the keys of one route.
type guarded struct {
	store.Store
	router *Router
	home   string
}

// key refuses a key of another store.
func (g *guarded) key(op, key string) error {
	if g.router.home(key).Prefix != g.home {
		return &SpanError{Op: op, Keys: [2]string{g.home, key}}
	}
	return nil
}

// prefix refuses a prefix that has keys of another store.
func (g *guarded) prefix(op, prefix string) error {
	route, err := g.router.covering(op, prefix)
	if err == nil && route.Prefix != g.home {
		err = &SpanError{Op: op, Keys: [2]string{g.home, prefix}}
	}
	return err
}

// Get implements store.Store.
func (g *guarded) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if err := g.key("get", key); err != nil {
		return store.Record{}, false, 0, err
	}
	return g.Store.Get(ctx, key, at)
}

// List implements store.Store.
func (g *guarded) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	if err := g.prefix("list", opts.Prefix); err != nil {
		return store.Page{}, err
	}
	return g.Store.List(ctx, opts)
}

// Count implements store.Store.
func (g *guarded) Count(ctx context.Context, prefix string) (int64, error) {
	if err := g.prefix("count", prefix); err != nil {
		return 0, err
	}
	return g.Store.Count(ctx, prefix)
}

// Commit implements store.Store.
func (g *guarded) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	for _, key := range keysOf(txn) {
		if err := g.key("commit", key); err != nil {
			return 0, err
		}
	}
	return g.Store.Commit(ctx, txn)
}

// Watch implements store.Store.
func (g *guarded) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := g.prefix("watch", prefix); err != nil {
		return nil, err
	}
	return g.Store.Watch(ctx, prefix, after)
}

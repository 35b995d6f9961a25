package translate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
)

// Resources of a proxy that patches can change.
type Resources struct {
	Clusters  []*clusterv3.Cluster
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
}

// Refused is a change that was left out.
type Refused struct {
	Source policy.Source
	Index  int
	// Resource that would have been changed; empty: none matches, or the value itself is wrong.
	Resource string
	Err      error
}

func (r Refused) Error() string {
	at := ""
	if r.Resource != "" {
		at = r.Resource + ": "
	}
	return fmt.Sprintf("%s: spec.patches[%d]: %s%v", r.Source, r.Index, at, r.Err)
}

// Patched has which policies changed a resource, by the resource's type and name as in "Cluster a".
type Patched map[string][]policy.Source

// ApplyPatches changes resources in the order of the patches. The resources that are given are not
// changed; those that no patch is for are shared with the result. A change whose result is no valid
// resource is left out and returned; the others are applied.
func ApplyPatches(in Resources, patches []policy.Patch) (Resources, Patched, []Refused) {
	e := &editor{
		out:     Resources{slices.Clone(in.Clusters), slices.Clone(in.Listeners), slices.Clone(in.Routes)},
		patched: Patched{},
	}
	for i := range patches {
		e.patch = &patches[i]
		e.apply()
	}
	return e.out, e.patched, e.refused
}

// Check what can be known of a change without the resources that it is for.
func Check(p *mesh.ProxyPatchItem) error {
	of := map[string]proto.Message{
		mesh.PatchCluster: &clusterv3.Cluster{}, mesh.PatchListener: &listenerv3.Listener{}, mesh.PatchVirtualHost: &routev3.VirtualHost{},
		mesh.PatchRoute: &routev3.Route{}, mesh.PatchNetworkFilter: &listenerv3.Filter{}, mesh.PatchHTTPFilter: &hcmv3.HttpFilter{},
	}[p.Type]
	switch {
	case of == nil:
		return fmt.Errorf("type %q is not known", p.Type)
	case p.Op == mesh.PatchRemove, p.Op == mesh.PatchJSON:
		return nil
	}
	_, err := parse(of, p.Value)
	if err != nil && p.Op == mesh.PatchMerge && !errors.As(err, new(malformed)) {
		return nil // a part of a message need not be a valid one
	}
	return err
}

// editor applies one patch after the other.
type editor struct {
	out     Resources
	patched Patched
	refused []Refused
	patch   *policy.Patch
}

func (e *editor) refuse(resource string, err error) {
	e.refused = append(e.refused, Refused{e.patch.Source, e.patch.Index, resource, err})
}

func (e *editor) done(kind, name string) {
	key := kind + " " + name
	if !slices.Contains(e.patched[key], e.patch.Source) {
		e.patched[key] = append(e.patched[key], e.patch.Source)
	}
}

func (e *editor) apply() {
	switch e.patch.Type {
	case mesh.PatchCluster:
		e.out.Clusters = resources(e, "Cluster", e.out.Clusters, (*clusterv3.Cluster).GetName)
	case mesh.PatchListener:
		e.out.Listeners = resources(e, "Listener", e.out.Listeners, (*listenerv3.Listener).GetName)
	case mesh.PatchVirtualHost, mesh.PatchRoute:
		for i, r := range e.out.Routes {
			if where := placeOf(r.Name); e.within(r.Name, where) {
				e.out.Routes[i] = inside(e, "RouteConfiguration", r.Name, r, e.routes)
			}
		}
	case mesh.PatchNetworkFilter, mesh.PatchHTTPFilter:
		for i, l := range e.out.Listeners {
			if where := placeOf(l.Name); e.within(l.Name, where) {
				e.out.Listeners[i] = inside(e, "Listener", l.Name, l, e.filters)
			}
		}
	}
}

// place says what a resource is for, by its name.
type place struct {
	origin, direction string
	port              int32
}

// placeOf a name, as internal/xds gives them.
func placeOf(name string) place {
	p := place{origin: mesh.OriginProxy}
	switch {
	case name == "passthrough" || name == "blackhole":
		return place{mesh.OriginPassthrough, mesh.OriginOutbound, 0}
	case name == "in-passthrough":
		return place{mesh.OriginPassthrough, mesh.OriginInbound, 0}
	case strings.HasPrefix(name, "local|"), strings.HasPrefix(name, "in|"), name == "in-virtual":
		p.origin, p.direction = mesh.OriginInbound, mesh.OriginInbound
	case strings.HasPrefix(name, "out|"), strings.HasPrefix(name, "vip|"), strings.HasPrefix(name, "member|"), strings.HasPrefix(name, "ext|"), name == "out-virtual",
		strings.Contains(name, "/") && strings.Contains(name, ":"):
		p.origin, p.direction = mesh.OriginOutbound, mesh.OriginOutbound
	}
	if i := strings.LastIndexAny(name, ":|"); i >= 0 {
		if n, err := strconv.ParseInt(name[i+1:], 10, 32); err == nil {
			p.port = int32(n)
		}
	}
	return p
}

// at reports whether a patch is for resources of this place: the parts of a match that are about the whole resource.
func (e *editor) at(where place) bool {
	m := e.patch.Match
	if m == nil {
		return true
	}
	return (m.Origin == "" || m.Origin == where.origin) && (m.Direction == "" || m.Direction == where.direction) &&
		(m.Port == 0 || m.Port == where.port)
}

// within a resource of this name are things that the patch may be for.
func (e *editor) within(name string, where place) bool {
	m := e.patch.Match
	return e.at(where) && (m == nil || m.Listener == "" || m.Listener == name)
}

// named reports whether a thing has the name that the patch is for.
func (e *editor) named(name string) bool {
	m := e.patch.Match
	return m == nil || m.Name == "" || m.Name == name
}

var errNone = errors.New("nothing to change")

// resources that a proxy asks for by name.
func resources[T proto.Message](e *editor, kind string, all []T, nameOf func(T) string) []T {
	if e.patch.Op == mesh.PatchAdd {
		var zero T
		added, err := parse(zero, e.patch.Value)
		if err != nil {
			e.refuse("", err)
			return all
		}
		name := nameOf(added)
		if slices.ContainsFunc(all, func(r T) bool { return nameOf(r) == name }) {
			e.refuse(name, fmt.Errorf("there is a %s of this name: use Merge", strings.ToLower(kind)))
			return all
		}
		e.done(kind, name)
		return append(all, added)
	}
	var out []T
	for _, r := range all {
		name := nameOf(r)
		if !e.at(placeOf(name)) || !e.named(name) {
			out = append(out, r)
			continue
		}
		if e.patch.Op == mesh.PatchRemove {
			e.done(kind, name)
			continue
		}
		changed, err := edit(r, &e.patch.ProxyPatchItem)
		if err == nil && nameOf(changed) != name {
			err = errors.New("a patch must not change the name")
		}
		if err != nil {
			e.refuse(name, err)
			changed = r
		} else {
			e.done(kind, name)
		}
		out = append(out, changed)
	}
	return out
}

// inside changes parts of a resource, as a whole or not at all.
func inside[T proto.Message](e *editor, kind, name string, r T, change func(T) error) T {
	changed := proto.CloneOf(r)
	err := change(changed)
	if errors.Is(err, errNone) {
		return r
	}
	if err == nil {
		err = valid(changed)
	}
	if err != nil {
		e.refuse(name, err)
		return r
	}
	e.done(kind, name)
	return changed
}

// routes changes virtual hosts, or their routes.
func (e *editor) routes(r *routev3.RouteConfiguration) (err error) {
	if e.patch.Type == mesh.PatchVirtualHost {
		r.VirtualHosts, err = list(e, r.VirtualHosts, (*routev3.VirtualHost).GetName, false)
		return err
	}
	found := false
	for _, h := range r.VirtualHosts {
		changed, err := list(e, h.Routes, (*routev3.Route).GetName, false)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return err
		}
		h.Routes, found = changed, true
	}
	if !found {
		return errNone
	}
	return nil
}

// filters changes those of the chains of a listener, or those of their connection managers.
func (e *editor) filters(l *listenerv3.Listener) error {
	found := false
	chains := slices.Clone(l.FilterChains)
	if l.DefaultFilterChain != nil {
		chains = append(chains, l.DefaultFilterChain)
	}
	for _, c := range chains {
		var err error
		if e.patch.Type == mesh.PatchNetworkFilter {
			var changed []*listenerv3.Filter
			if changed, err = list(e, c.Filters, (*listenerv3.Filter).GetName, true); err == nil {
				c.Filters = changed
			}
		} else {
			err = e.httpFilters(c)
		}
		switch {
		case errors.Is(err, errNone):
		case err != nil:
			return err
		default:
			found = true
		}
	}
	if !found {
		return errNone
	}
	return nil
}

func (e *editor) httpFilters(c *listenerv3.FilterChain) error {
	found := false
	for _, f := range c.Filters {
		manager := &hcmv3.HttpConnectionManager{}
		if f.GetTypedConfig() == nil || !f.GetTypedConfig().MessageIs(manager) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(manager); err != nil {
			return err
		}
		changed, err := list(e, manager.HttpFilters, (*hcmv3.HttpFilter).GetName, true)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return err
		}
		manager.HttpFilters, found = changed, true
		if err := valid(manager); err != nil {
			return err
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: pack(manager)}
	}
	if !found {
		return errNone
	}
	return nil
}

// list changes a list by the patch. Filters have a terminal one at the end, which stays there: Add
// and Last are before it.
func list[T proto.Message](e *editor, all []T, nameOf func(T) string, terminal bool) ([]T, error) {
	switch e.patch.Op {
	case mesh.PatchAdd, mesh.PatchFirst, mesh.PatchLast, mesh.PatchBefore, mesh.PatchAfter:
		return insert(e, all, nameOf, terminal)
	}
	var out []T
	found := false
	for _, item := range all {
		if !e.named(nameOf(item)) {
			out = append(out, item)
			continue
		}
		found = true
		if e.patch.Op == mesh.PatchRemove {
			continue
		}
		changed, err := edit(item, &e.patch.ProxyPatchItem)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nameOf(item), err)
		}
		out = append(out, changed)
	}
	if !found {
		return nil, errNone
	}
	return out, nil
}

// insert places a new item into a list.
func insert[T proto.Message](e *editor, all []T, nameOf func(T) string, terminal bool) ([]T, error) {
	var zero T
	added, err := parse(zero, e.patch.Value)
	if err != nil {
		return nil, err
	}
	at := len(all)
	if terminal && at > 0 {
		at--
	}
	switch e.patch.Op {
	case mesh.PatchFirst:
		at = 0
	case mesh.PatchBefore, mesh.PatchAfter:
		i := slices.IndexFunc(all, func(item T) bool { return e.named(nameOf(item)) })
		if i < 0 {
			return nil, errNone
		}
		at = i
		if e.patch.Op == mesh.PatchAfter {
			at++
		}
	}
	return slices.Insert(slices.Clone(all), at, added), nil
}

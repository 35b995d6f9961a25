package nameserver

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

const (
	// clusterSet is the domain of imported Services (KEP-1645).
	clusterSet = "clusterset.local"
	// maxBelow is how many labels there are below a Service's name: "_http._tcp", or a host and its cluster.
	maxBelow = 2
)

// Table is the names of a mesh. The zero value has none, and is not ready. Safe for concurrent use.
type Table struct {
	mu sync.RWMutex
	// domain of the cluster; "": nothing was received yet.
	domain string
	// resources by their names, and what they say by whole names, without a dot at the end.
	resources map[string]*wire.HostName
	byName    map[string][]*wire.HostName
	reverse   map[netip.Addr][]string // sorted
}

// Take is a relay.Follower of the type wire.Names.
func (t *Table) Take(set []wire.Resource, removed []string) error {
	parsed := make(map[string]*wire.HostName, len(set))
	for _, r := range set {
		body, err := r.Body()
		if err != nil {
			return err
		}
		h, err := wire.ParseHostName(body)
		if err != nil {
			return err
		}
		parsed[r.Name] = &h
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.resources == nil {
		t.resources, t.byName, t.reverse = map[string]*wire.HostName{}, map[string][]*wire.HostName{}, map[netip.Addr][]string{}
	}
	if d := parsed[wire.NamesDomain]; d != nil {
		t.setDomain(d)
		delete(parsed, wire.NamesDomain)
	}
	for _, name := range removed {
		t.set(name, nil)
	}
	for name, h := range parsed {
		t.set(name, h)
	}
	return nil
}

// setDomain of the cluster. The names that are relative to it move.
func (t *Table) setDomain(d *wire.HostName) {
	domain := ""
	if len(d.Names) > 0 {
		domain = strings.TrimSuffix(d.Names[0], ".")
	}
	if domain == t.domain {
		return
	}
	for _, h := range t.resources {
		t.index(h, false)
	}
	t.domain = domain
	for _, h := range t.resources {
		t.index(h, true)
	}
}

func (t *Table) set(resource string, h *wire.HostName) {
	if was := t.resources[resource]; was != nil {
		t.index(was, false)
		delete(t.resources, resource)
	}
	if h != nil {
		t.resources[resource] = h
		t.index(h, true)
	}
}

// whole name, without a dot at its end.
func (t *Table) whole(name string) string {
	if absolute, ok := strings.CutSuffix(name, "."); ok {
		return absolute
	}
	return name + "." + t.domain
}

func (t *Table) index(h *wire.HostName, add bool) {
	for i, name := range h.Names {
		name = t.whole(name)
		if add {
			t.byName[name] = append(t.byName[name], h)
		} else if left := slices.DeleteFunc(t.byName[name], func(other *wire.HostName) bool { return other == h }); len(left) == 0 {
			delete(t.byName, name)
		} else {
			t.byName[name] = left
		}
		if i > 0 {
			continue // an address leads back to the first name
		}
		if !h.Headless {
			t.point(h.Addresses, name, add)
		}
		for _, host := range h.Hosts {
			t.point(host.Addresses, host.Name+"."+name, add)
		}
	}
}

func (t *Table) point(addresses []netip.Addr, name string, add bool) {
	for _, a := range addresses {
		names := t.reverse[a]
		i, found := slices.BinarySearch(names, name)
		switch {
		case add && !found:
			t.reverse[a] = slices.Insert(names, i, name)
		case !add && found && len(names) == 1:
			delete(t.reverse, a)
		case !add && found:
			t.reverse[a] = slices.Delete(names, i, i+1)
		}
	}
}

// find what a name in lower case, without a dot at its end, stands for, and the labels below that; nil: it
// is not known.
func (t *Table) find(name string) (h *wire.HostName, below string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if all := t.byName[name]; len(all) > 0 {
		return all[0], ""
	}
	if rest, ok := strings.CutSuffix(name, "."+meshname.Domain); ok {
		for _, form := range meshname.Forms(strings.Split(rest, ".")) {
			if all := t.byName[form+"."+meshname.Domain]; len(all) > 0 {
				return all[0], ""
			}
		}
		return nil, ""
	}
	at := name
	for range maxBelow {
		_, rest, ok := strings.Cut(at, ".")
		if !ok {
			return nil, ""
		}
		if all := t.byName[rest]; len(all) > 0 && t.isService(rest) {
			return all[0], name[:len(name)-len(rest)-1]
		}
		at = rest
	}
	return nil, ""
}

// isService reports whether there are names below a name: not below those of services outside every mesh.
func (t *Table) isService(name string) bool {
	return within(name, "svc."+t.domain) || within(name, "svc."+clusterSet)
}

// zone that a name is in, of those whose names nobody else has; ready: the names are known.
func (t *Table) zone(name string) (zone string, ready bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, z := range []string{t.domain, clusterSet, meshname.Domain} {
		if z != "" && (name == z || within(name, z)) {
			return z, t.domain != ""
		}
	}
	return "", t.domain != ""
}

// names that an address leads back to.
func (t *Table) names(a netip.Addr) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.reverse[a])
}

// Len is how many resources there are.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.resources)
}

func within(name, zone string) bool { return strings.HasSuffix(name, "."+zone) }

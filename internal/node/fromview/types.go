package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// held is what the feed has of one type, as it came.
type held struct {
	typ string
	// position up to which resources is complete; empty: unknown.
	position string
	// complete: a position was reached once, so nothing is missing.
	complete  bool
	resources map[string]stored
	// rejected are the names whose newest state was refused, with the reason.
	rejected map[string]string
}

type stored struct {
	version string
	body    []byte
}

func newHeld(typ string) *held {
	return &held{typ: typ, resources: map[string]stored{}, rejected: map[string]string{}}
}

// have is what the server is told. While something is refused the position would
// hide it: a program that understands it now would never be sent it.
func (h *held) have(cursor bool) map[string]string {
	if cursor && h.position != "" && len(h.rejected) == 0 {
		return map[string]string{"": h.position}
	}
	// What comes now is a difference to the versions, and the position is true
	// again only when it is complete.
	h.position = ""
	out := make(map[string]string, len(h.resources))
	for name, r := range h.resources {
		out[name] = r.version
	}
	return out
}

// take takes resources and removals, and adds what they mean to an update.
func (h *held) take(resources []*discovery.Resource, removed []string, u *Update) (refused []string) {
	for _, r := range resources {
		if err := h.set(r.GetName(), r.GetVersion(), r.GetResource().GetValue(), u); err != nil {
			h.rejected[r.GetName()] = err.Error()
			refused = append(refused, r.GetName())
		}
	}
	for _, name := range removed {
		delete(h.rejected, name)
		if _, ok := h.resources[name]; !ok {
			continue
		}
		delete(h.resources, name)
		h.forget(name, u)
	}
	return refused
}

func (h *held) set(name, version string, body []byte, u *Update) error {
	if err := decodeInto(u, h.typ, name, body); err != nil {
		return err
	}
	delete(h.rejected, name)
	h.resources[name] = stored{version: version, body: body}
	return nil
}

func (h *held) forget(name string, u *Update) {
	if h.typ == SuspectType {
		u.Suspects[name] = false
		return
	}
	namespace, object, _ := splitName(name)
	service, slice := proxy.ServiceName{Namespace: namespace, Name: object}, proxy.SliceName{Namespace: namespace, Name: object}
	switch h.typ {
	case ServiceType:
		u.Services[service] = nil
	case SliceType:
		u.Slices[slice] = nil
	case NameType:
		u.Names[service] = nil
	case NameSliceType:
		u.NameSlices[slice] = nil
	}
}

func decodeInto(u *Update, typ, name string, body []byte) error {
	switch typ {
	case ServiceType:
		s, err := decodeService(name, body)
		if err != nil {
			return err
		}
		u.Services[s.Name] = s
	case SliceType:
		s, err := decodeSlice(name, body)
		if err != nil {
			return err
		}
		u.Slices[s.Name] = s
	case NameType:
		n, err := decodeNameOf(name, body)
		if err != nil {
			return err
		}
		u.Names[n.Name] = n
	case NameSliceType:
		s, err := decodeNameSlice(name, body)
		if err != nil {
			return err
		}
		u.NameSlices[s.Name] = s
	case SuspectType:
		node, err := decodeSuspect(name, body)
		if err != nil {
			return err
		}
		u.Suspects[node] = true
	default:
		return fmt.Errorf("unknown type %q", typ)
	}
	return nil
}

func newUpdate() Update {
	return Update{
		Update: proxy.Update{
			Services: map[proxy.ServiceName]*proxy.Service{},
			Slices:   map[proxy.SliceName]*proxy.Slice{},
			Suspects: map[string]bool{},
		},
		Names:      map[proxy.ServiceName]*records.Name{},
		NameSlices: map[proxy.SliceName]*records.Slice{},
	}
}

// whole makes an update the whole state: it names no more what is gone.
func whole(u Update) Update {
	u.Reset = true
	maps.DeleteFunc(u.Services, func(_ proxy.ServiceName, s *proxy.Service) bool { return s == nil })
	maps.DeleteFunc(u.Slices, func(_ proxy.SliceName, s *proxy.Slice) bool { return s == nil })
	maps.DeleteFunc(u.Suspects, func(_ string, suspect bool) bool { return !suspect })
	maps.DeleteFunc(u.Names, func(_ proxy.ServiceName, n *records.Name) bool { return n == nil })
	maps.DeleteFunc(u.NameSlices, func(_ proxy.SliceName, s *records.Slice) bool { return s == nil })
	return u
}

// maxReasons is how many refused names one message spells out.
const maxReasons = 10

// refusal names what was refused and why.
func (h *held) refusal(names []string) string {
	var parts []string
	for _, name := range names[:min(len(names), maxReasons)] {
		parts = append(parts, fmt.Sprintf("%q: %s", name, h.rejected[name]))
	}
	if more := len(names) - maxReasons; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

func (h *held) toState() *nodev1.TypeState {
	s := &nodev1.TypeState{TypeUrl: h.typ, Position: h.position, Resources: make([]*nodev1.StoredResource, 0, len(h.resources))}
	for name, r := range h.resources {
		s.Resources = append(s.Resources, &nodev1.StoredResource{Name: name, Version: r.version, Body: r.body})
	}
	if len(h.rejected) > 0 {
		s.Position = ""
	}
	return s
}

// load takes a type from disk. The checksum speaks for what was written, not for
// who wrote it: everything is checked again, and one mistake refuses it all.
func (h *held) load(s *nodev1.TypeState, u *Update) error {
	h.makeRoom(len(s.GetResources()), u)
	for _, r := range s.GetResources() {
		if err := h.set(r.GetName(), r.GetVersion(), r.GetBody(), u); err != nil {
			return fmt.Errorf("%s %q: %w", h.typ, r.GetName(), err)
		}
	}
	h.position, h.complete = s.GetPosition(), true
	return nil
}

// makeRoom for n resources of this type, so that maps need not grow.
func (h *held) makeRoom(n int, u *Update) {
	h.resources = make(map[string]stored, n)
	switch h.typ {
	case ServiceType:
		u.Services = make(map[proxy.ServiceName]*proxy.Service, n)
	case SliceType:
		u.Slices = make(map[proxy.SliceName]*proxy.Slice, n)
	case NameType:
		u.Names = make(map[proxy.ServiceName]*records.Name, n)
	case NameSliceType:
		u.NameSlices = make(map[proxy.SliceName]*records.Slice, n)
	}
}

func copyReasons(types []*held) map[string]string {
	out := map[string]string{}
	for _, h := range types {
		for _, name := range slices.Sorted(maps.Keys(h.rejected)) {
			out[h.typ+" "+name] = h.rejected[name]
		}
	}
	return out
}

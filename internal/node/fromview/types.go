package fromview

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// typeState has the resources of one type, as they were received.
type typeState struct {
	typ string
	// position up to which resources is complete; empty: unknown.
	position string
	// complete: a position was reached once, so nothing is missing. confirmed: it was reached
	// on the present stream, or on the last one.
	complete, confirmed bool

	resources map[string]entry
	// rejected are the names whose newest state was refused, with the reason.
	rejected map[string]string
}

type entry struct {
	version string
	body    []byte
}

func newTypeState(typ string) *typeState {
	return &typeState{typ: typ, resources: map[string]entry{}, rejected: map[string]string{}}
}

// initialVersions are sent to the server at the start of a stream. While a resource is
// refused the position is not: with it, a program that can read the resource now would
// never receive it.
func (t *typeState) initialVersions(cursor bool) map[string]string {
	out := make(map[string]string, len(t.resources))
	for name, r := range t.resources {
		out[name] = r.version
	}
	if cursor && t.position != "" && len(t.rejected) == 0 {
		return map[string]string{"": delta.Cursor(t.position, out)}
	}
	// What is received next is a difference to the versions; the position is valid
	// again only when that is complete.
	t.position = ""
	return out
}

// apply stores resources and removals, and adds their meaning to an update.
func (t *typeState) apply(resources []*discovery.Resource, removed []string, u *node.Update) (refused []string) {
	for _, r := range resources {
		if err := t.set(r.GetName(), r.GetVersion(), r.GetResource().GetValue(), u); err != nil {
			t.rejected[r.GetName()] = err.Error()
			refused = append(refused, r.GetName())
		}
	}
	for _, name := range removed {
		delete(t.rejected, name)
		if _, ok := t.resources[name]; !ok {
			continue
		}
		delete(t.resources, name)
		t.remove(name, u)
	}
	return refused
}

func (t *typeState) set(name, version string, body []byte, u *node.Update) error {
	if err := decodeInto(u, t.typ, name, body); err != nil {
		return err
	}
	delete(t.rejected, name)
	t.resources[name] = entry{version: version, body: body}
	return nil
}

func (t *typeState) remove(name string, u *node.Update) {
	switch t.typ {
	case wire.SuspectType:
		u.Suspects[name] = false
		return
	case wire.LeavingType:
		u.Leaving[name] = false
		return
	case wire.MeshType:
		u.Meshes[name] = nil
		return
	}
	namespace, object, _ := wire.SplitName(name)
	service, slice := proxy.ServiceName{Namespace: namespace, Name: object}, proxy.SliceName{Namespace: namespace, Name: object}
	switch t.typ {
	case wire.ServiceType:
		u.Services[service] = nil
	case wire.SliceType:
		u.Slices[slice] = nil
	case wire.NameType:
		u.Names[service] = nil
	case wire.NameSliceType:
		u.NameSlices[slice] = nil
	case wire.RemoteType:
		u.Remotes[service], u.Elsewhere[service] = nil, nil
	case wire.OfferType:
		u.Offers[service] = nil
	case wire.VirtualIPType:
		u.VirtualIPs[service] = nil
	case wire.WorkloadType:
		u.Workloads[service] = nil
	}
}

func decodeInto(u *node.Update, typ, name string, body []byte) error {
	switch typ {
	case wire.ServiceType:
		s, err := wire.DecodeService(name, body)
		if err != nil {
			return err
		}
		u.Services[s.Name] = s
	case wire.SliceType:
		s, err := wire.DecodeSlice(name, body)
		if err != nil {
			return err
		}
		u.Slices[s.Name] = s
	case wire.NameType:
		n, err := wire.DecodeName(name, body)
		if err != nil {
			return err
		}
		u.Names[n.Name] = n
	case wire.NameSliceType:
		s, err := wire.DecodeNameSlice(name, body)
		if err != nil {
			return err
		}
		u.NameSlices[s.Name] = s
	case wire.SuspectType:
		suspect, err := wire.DecodeSuspect(name, body)
		if err != nil {
			return err
		}
		u.Suspects[suspect] = true
	case wire.LeavingType:
		leaving, err := wire.DecodeLeaving(name, body)
		if err != nil {
			return err
		}
		u.Leaving[leaving] = true
	case wire.RemoteType:
		r, err := wire.DecodeRemote(name, body)
		if err != nil {
			return err
		}
		u.Remotes[r.Service], u.Elsewhere[r.Service] = r, r.Elsewhere()
	case wire.OfferType:
		o, err := wire.DecodeOffer(name, body)
		if err != nil {
			return err
		}
		u.Offers[o.Service] = o
	case wire.VirtualIPType:
		v, err := wire.DecodeVirtualIP(name, body)
		if err != nil {
			return err
		}
		u.VirtualIPs[v.Name] = v
	case wire.MeshType:
		m, err := wire.DecodeMesh(name, body)
		if err != nil {
			return err
		}
		u.Meshes[m.Name] = m
	case wire.WorkloadType:
		w, err := wire.DecodeWorkload(name, body)
		if err != nil {
			return err
		}
		u.Workloads[w.Name] = w
	default:
		return fmt.Errorf("unknown type %q", typ)
	}
	return nil
}

func newUpdate() node.Update {
	return node.Update{
		Update: proxy.Update{
			Services: map[proxy.ServiceName]*proxy.Service{},
			Slices:   map[proxy.SliceName]*proxy.Slice{},
			Suspects: map[string]bool{}, Elsewhere: map[proxy.ServiceName]*proxy.Elsewhere{},
			VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{},
			Meshes:     map[string]*proxy.Mesh{}, Workloads: map[proxy.ServiceName]*proxy.Workload{},
		},
		Remotes: map[proxy.ServiceName]*sites.Remote{}, Offers: map[proxy.ServiceName]*sites.Offer{},
		Names:      map[proxy.ServiceName]*records.Name{},
		NameSlices: map[proxy.SliceName]*records.Slice{}, Leaving: map[string]bool{},
	}
}

// whole makes an update the whole state: it has no removals.
func whole(u node.Update) node.Update {
	u.Reset = true
	maps.DeleteFunc(u.Services, func(_ proxy.ServiceName, s *proxy.Service) bool { return s == nil })
	maps.DeleteFunc(u.Slices, func(_ proxy.SliceName, s *proxy.Slice) bool { return s == nil })
	maps.DeleteFunc(u.Suspects, func(_ string, suspect bool) bool { return !suspect })
	maps.DeleteFunc(u.Leaving, func(_ string, leaving bool) bool { return !leaving })
	maps.DeleteFunc(u.Elsewhere, func(_ proxy.ServiceName, e *proxy.Elsewhere) bool { return e == nil })
	maps.DeleteFunc(u.VirtualIPs, func(_ proxy.ServiceName, v *proxy.VirtualIP) bool { return v == nil })
	maps.DeleteFunc(u.Meshes, func(_ string, m *proxy.Mesh) bool { return m == nil })
	maps.DeleteFunc(u.Workloads, func(_ proxy.ServiceName, w *proxy.Workload) bool { return w == nil })
	maps.DeleteFunc(u.Remotes, func(_ proxy.ServiceName, r *sites.Remote) bool { return r == nil })
	maps.DeleteFunc(u.Offers, func(_ proxy.ServiceName, o *sites.Offer) bool { return o == nil })
	maps.DeleteFunc(u.Names, func(_ proxy.ServiceName, n *records.Name) bool { return n == nil })
	maps.DeleteFunc(u.NameSlices, func(_ proxy.SliceName, s *records.Slice) bool { return s == nil })
	return u
}

// maxReasons is the number of refused names in one message.
const maxReasons = 10

// refusal names what was refused and why.
func (t *typeState) refusal(names []string) string {
	var reasons []string
	for _, name := range names[:min(len(names), maxReasons)] {
		reasons = append(reasons, fmt.Sprintf("%q: %s", name, t.rejected[name]))
	}
	if more := len(names) - maxReasons; more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(reasons, "; ")
}

func (t *typeState) toState() *nodev1.TypeState {
	s := &nodev1.TypeState{
		TypeUrl:   t.typ,
		Position:  t.position,
		Resources: make([]*nodev1.StoredResource, 0, len(t.resources)),
	}
	for name, r := range t.resources {
		s.Resources = append(s.Resources, &nodev1.StoredResource{Name: name, Version: r.version, Body: r.body})
	}
	if len(t.rejected) > 0 {
		s.Position = ""
	}
	return s
}

// load a type from disk. The checksum proves what was written, not that it is valid:
// everything is checked again, and one invalid resource refuses the file.
func (t *typeState) load(s *nodev1.TypeState, u *node.Update) error {
	t.allocate(len(s.GetResources()), u)
	for _, r := range s.GetResources() {
		if err := t.set(r.GetName(), r.GetVersion(), r.GetBody(), u); err != nil {
			return fmt.Errorf("%s %q: %w", t.typ, r.GetName(), err)
		}
	}
	t.position, t.complete = s.GetPosition(), true
	return nil
}

// allocate maps for n resources of this type, so that they need not grow.
func (t *typeState) allocate(n int, u *node.Update) {
	t.resources = make(map[string]entry, n)
	switch t.typ {
	case wire.ServiceType:
		u.Services = make(map[proxy.ServiceName]*proxy.Service, n)
	case wire.SliceType:
		u.Slices = make(map[proxy.SliceName]*proxy.Slice, n)
	case wire.NameType:
		u.Names = make(map[proxy.ServiceName]*records.Name, n)
	case wire.NameSliceType:
		u.NameSlices = make(map[proxy.SliceName]*records.Slice, n)
	}
}

func copyReasons(types []*typeState) map[string]string {
	out := map[string]string{}
	for _, t := range types {
		for _, name := range slices.Sorted(maps.Keys(t.rejected)) {
			out[t.typ+" "+name] = t.rejected[name]
		}
	}
	return out
}

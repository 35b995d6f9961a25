package view

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// format changes whenever the content of a view changes for the same objects,
// so that positions of another version of the program are not valid.
const format = "proxima.node.v1/10"

// maxZones bounds the views that agents without a Node object can create.
const maxZones = 1024

// BuilderConfig configures a Builder.
type BuilderConfig struct {
	// Run is part of every position, and must differ from that of every other run of a
	// control plane, as a catalog's sequence identifies content within one run only. A
	// random text will do.
	Run string
	// Weights returns the plan of a zone for a slice: a weight for each endpoint, in
	// their order, relative to all slices of the Service. An endpoint whose weight is 0,
	// or missing, gets none of the zone's traffic. An empty result: no plan, the view has
	// the slice as it is. When the result changes though the slice does not, the Service
	// has to be in the replanned argument of Apply. A nil func: there are no plans.
	Weights func(zone locality.Zone, slice *discoveryv1.EndpointSlice) []uint32
	// Own returns the weights of a slice's endpoints where there is no plan, ReadySince when
	// they became ready, in seconds since 1970: one for each, in their order; nil: there are
	// none. When a result changes though the slice does not, the Service has to be in the
	// replanned argument of Apply. Nil funcs: there are none at all.
	Own        func(slice *discoveryv1.EndpointSlice) []uint32
	ReadySince func(slice *discoveryv1.EndpointSlice) []int64
	// Split returns the part of the plan of a zone for a port of a Service that concerns other
	// sites; nil: there is none. When the result changes, the Service has to be in the
	// replanned argument of Apply. A nil func: there are no plans.
	Split func(zone locality.Zone, service catalog.Key, port string) *sites.Split
	// HasSidecar reports whether the permissions of a pod are up to a proxy beside it. A nil func: no pod
	// has one.
	HasSidecar func(*corev1.Pod) bool
	// Site of this control plane, which distinguishes its own exports and gateways from
	// those of others; empty: locality.Local.
	Site   locality.Site
	Tracer *tracing.Recorder // nil: tracing is off
	Logger *slog.Logger      // nil: discard
}

// Builder keeps one view per zone. A view is built for its first
// subscriber. Safe for concurrent use; nothing blocks for long.
type Builder struct {
	config BuilderConfig

	mu       sync.Mutex
	filled   bool
	epoch    string
	sequence uint64
	services map[string][]byte
	names    map[string]*nameEntry
	slices   map[string]*sliceEntry
	// slicesOf has the slices of each Service, as a Service can become headless later.
	slicesOf map[string]map[string]struct{}
	nodes    map[string]locality.Zone
	suspects map[string][]byte // by node
	leaving  map[string][]byte // by node
	// machines by Dataplane, and the slices with loopback addresses.
	machines map[catalog.Key]string
	loopback map[string]struct{}
	sites    siteViews
	virtual  map[string][]byte
	meshes   meshViews
	routings Routings
	zones    map[locality.Zone]*delta.Scope
	streams  map[string]*assignment // by node
	steps    []step                 // the newest, oldest first
}

// step of a builder: from a sequence on, views have what the tables had at a revision.
type step struct{ revision, sequence uint64 }

// maxSteps are remembered.
const maxSteps = 4096

// sliceEntry is a slice and its encodings, which all zones share: without a plan
// for the proxy, and for DNS. One or both are nil.
type sliceEntry struct {
	object     *discoveryv1.EndpointSlice
	body, name []byte
}

// nameEntry is the encoding of a Service that is resolved but not proxied.
type nameEntry struct {
	body     []byte
	headless bool
}

// assignment of a node's streams to a zone's view. end is closed when it is no longer
// valid.
type assignment struct {
	zone locality.Zone
	end  chan struct{}
}

// NewBuilder makes a builder; its views are empty until the first Replace.
func NewBuilder(c BuilderConfig) *Builder {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Builder{
		config:  c,
		zones:   map[locality.Zone]*delta.Scope{},
		streams: map[string]*assignment{},
	}
	b.clear()
	return b
}

func (b *Builder) clear() {
	b.services, b.names, b.nodes = map[string][]byte{}, map[string]*nameEntry{}, map[string]locality.Zone{}
	b.leaving = map[string][]byte{}
	b.slices, b.slicesOf = map[string]*sliceEntry{}, map[string]map[string]struct{}{}
	b.machines, b.loopback = map[catalog.Key]string{}, map[string]struct{}{}
	b.virtual = map[string][]byte{}
	b.meshes = newMeshViews()
	b.routings = Routings{Site: cmp.Or(b.config.Site, locality.Local)}
	b.sites = newSiteViews(string(cmp.Or(b.config.Site, locality.Local)))
}

// Replace sets the content of every view. d is the whole state: the first delta of a
// subscription. Objects are shared, never changed; those that cannot be encoded are
// logged and left out.
func (b *Builder) Replace(d *catalog.Delta) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	b.store(d, nil)
	b.advance(d.After.Position)
	b.steps = b.steps[:0]
	b.came(d)
	return b.writeAll(true, nil, nil)
}

// Apply brings every view up to date with the next delta of the subscription, of which
// Replace got the first. replanned are the Services for which Weights has new results.
// A sequence may repeat, if nothing but plans changed.
func (b *Builder) Apply(d *catalog.Delta, replanned map[catalog.Key]struct{}) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := d.After.Position; !b.filled || at.Epoch != b.epoch {
		return fmt.Errorf("apply to views: delta at %s:%d does not follow %s:%d", at.Epoch, at.Sequence, b.epoch, b.sequence)
	}
	followed := b.follow(d)
	changes := b.store(d, replanned)
	if len(changes) == 0 {
		b.came(d)
		return nil
	}
	b.advance(d.After.Position)
	err := b.writeAll(false, changes, followed)
	b.came(d)
	return err
}

// came remembers that views have what the tables had after a delta.
func (b *Builder) came(d *catalog.Delta) {
	revision := d.After.Revision()
	if n := len(b.steps); n > 0 && b.steps[n-1].revision >= revision {
		return
	}
	if len(b.steps) == maxSteps {
		b.steps = append(b.steps[:0], b.steps[maxSteps/2:]...)
	}
	b.steps = append(b.steps, step{revision, b.sequence})
}

// Since returns the sequence from which views have what the store had at a revision, or a later one if that was long ago; ok is
// false while they do not. Views without a change keep a lower sequence. Kinds arrive on separate watches, so that the last ones of
// a revision may follow some milliseconds later.
func (b *Builder) Since(revision uint64) (sequence uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, _ := slices.BinarySearchFunc(b.steps, revision, func(s step, r uint64) int { return cmp.Compare(s.revision, r) })
	if i == len(b.steps) {
		return 0, false
	}
	return b.steps[i].sequence, true
}

// advance moves to the catalog's sequence, or to the next one if that has been used:
// a plan can change the content of a view while the catalog does not change.
func (b *Builder) advance(at catalog.Position) {
	if b.filled && at.Epoch == b.epoch && at.Sequence <= b.sequence {
		b.sequence++
		return
	}
	b.filled, b.epoch, b.sequence = true, at.Epoch, at.Sequence
}

// change names a resource that may have changed.
type change struct{ typ, name string }

// store the objects of a delta. It returns the resources that may have changed, sorted.
func (b *Builder) store(d *catalog.Delta, replanned map[catalog.Key]struct{}) []change {
	out := append(b.storeSites(d), b.storeVirtualIPs(d.VirtualIPs)...)
	out = append(out, b.storeMeshes(d)...)
	slice := func(key string) { out = append(out, change{wire.SliceType, key}, change{wire.NameSliceType, key}) }
	out = append(out, b.storeNodes(d.Nodes)...)
	for _, s := range b.storeMachines(d.Dataplanes) {
		slice(s)
	}
	for _, c := range b.withRouted(d) {
		key, turned := b.storeService(c.Key, c.New)
		out = append(out, change{wire.ServiceType, key}, change{wire.NameType, key})
		if !turned {
			continue
		}
		for s := range b.slicesOf[key] {
			b.encodeEntry(s, b.slices[s])
			slice(s)
		}
	}
	for _, c := range d.Slices {
		slice(b.storeSlice(c.Key, c.New))
	}
	for service := range replanned {
		for s := range b.slicesOf[wire.ResourceName(service.Namespace, service.Name)] {
			b.encodeEntry(s, b.slices[s])
			slice(s)
		}
		out = append(out, change{wire.RemoteType, wire.ResourceName(service.Namespace, service.Name)})
	}
	slices.SortFunc(out, func(x, y change) int {
		return cmp.Or(cmp.Compare(x.typ, y.typ), cmp.Compare(x.name, y.name))
	})
	return slices.Compact(out)
}

// storeService also reports whether the Service became headless, or ceased to be.
func (b *Builder) storeService(name catalog.Key, object *corev1.Service) (key string, turned bool) {
	key = wire.ResourceName(name.Namespace, name.Name)
	was := b.headless(key)
	delete(b.services, key)
	delete(b.names, key)
	if object == nil {
		b.routings.Of(name, nil)
		return key, was
	}
	var err error
	scope := kube.ScopeOf(object, b.meshes.of(name.Namespace))
	if s, ok := kube.ServiceOf(object); ok {
		s.Scope, s.Routing = scope, b.routings.Of(name, object)
		b.services[key], err = wire.EncodeService(s)
	} else if n, ok := kube.NameOf(object); ok {
		entry := &nameEntry{headless: n.Headless()}
		n.Scope = scope
		entry.body, err = wire.EncodeName(n)
		b.names[key] = entry
	}
	if err != nil {
		b.config.Logger.Error("service is not in the views", "error", err)
	}
	return key, was != b.headless(key)
}

func (b *Builder) headless(service string) bool {
	n := b.names[service]
	return n != nil && n.headless
}

func (b *Builder) storeSlice(name catalog.Key, object *discoveryv1.EndpointSlice) string {
	key := wire.ResourceName(name.Namespace, name.Name)
	if was := b.slices[key]; was != nil {
		service := serviceKey(was.object)
		if delete(b.slicesOf[service], key); len(b.slicesOf[service]) == 0 {
			delete(b.slicesOf, service)
		}
		delete(b.slices, key)
	}
	delete(b.loopback, key)
	if object == nil || object.Labels[discoveryv1.LabelServiceName] == "" {
		return key
	}
	service := serviceKey(object)
	if b.slicesOf[service] == nil {
		b.slicesOf[service] = make(map[string]struct{}, 1)
	}
	b.slicesOf[service][key] = struct{}{}
	b.slices[key] = &sliceEntry{object: object}
	if kube.HasLoopback(object) {
		b.loopback[key] = struct{}{}
	}
	b.encodeEntry(key, b.slices[key])
	return key
}

func serviceKey(s *discoveryv1.EndpointSlice) string {
	return wire.ResourceName(s.Namespace, s.Labels[discoveryv1.LabelServiceName])
}

// encodeEntry encodes a slice for its users: for DNS if its Service is headless, for
// the proxy otherwise. The Service decides, as the label of headless Services is
// missing on slices that users write.
func (b *Builder) encodeEntry(key string, entry *sliceEntry) {
	entry.body, entry.name = nil, nil
	var err error
	if b.headless(serviceKey(entry.object)) {
		entry.name, err = wire.EncodeNameSlice(kube.NameSliceOf(entry.object, b.machineOf))
	} else if s, ok := kube.SliceOf(entry.object); ok {
		kube.SetMachines(s, entry.object, b.machineOf)
		b.setWeights(s, entry.object, false)
		entry.body, err = wire.EncodeSlice(s)
	}
	if err != nil {
		b.config.Logger.Error("endpoint slice is not in the views", "slice", key, "error", err)
	}
}

// body is the content of a resource in a zone's view; nil: the view does not have it.
func (b *Builder) body(zone locality.Zone, c change) []byte {
	switch c.typ {
	case wire.ServiceType:
		return b.services[c.name]
	case wire.NameType:
		if n := b.names[c.name]; n != nil {
			return n.body
		}
		return nil
	case wire.SuspectType:
		return b.suspects[c.name]
	case wire.LeavingType:
		if of := b.nodes[c.name]; of != "" && of != zone {
			return nil
		}
		return b.leaving[c.name]
	case wire.RemoteType:
		return b.remoteBody(zone, c.name)
	case wire.OfferType:
		return b.sites.offers[c.name]
	case wire.VirtualIPType:
		return b.virtual[c.name]
	case wire.MeshType:
		return b.meshes.bodies[c.name]
	case wire.WorkloadType:
		if b.meshes.needed {
			return b.meshes.workloads[c.name]
		}
		return nil
	}
	entry := b.slices[c.name]
	switch {
	case entry == nil:
		return nil
	case c.typ == wire.NameSliceType:
		return entry.name
	case entry.body == nil || b.config.Weights == nil:
		return entry.body
	}
	weights := b.config.Weights(zone, entry.object)
	if len(weights) == 0 {
		return entry.body
	}
	body, err := b.encodePlanned(zone, entry.object, weights)
	if err != nil { // without weights it could be encoded
		b.config.Logger.Error("endpoint slice is sent without its plan", "zone", zone, "error", err)
		return entry.body
	}
	return body
}

func (b *Builder) encodePlanned(zone locality.Zone, object *discoveryv1.EndpointSlice, weights []uint32) ([]byte, error) {
	s, _ := kube.PlannedSliceOf(zone, object, weights)
	kube.SetMachines(s, object, b.machineOf)
	b.setWeights(s, object, true)
	return wire.EncodeSlice(s)
}

// setWeights sets what endpoints have of their own. The weights of a plan contain theirs.
func (b *Builder) setWeights(s *proxy.Slice, object *discoveryv1.EndpointSlice, planned bool) {
	var weights []uint32
	var since []int64
	if b.config.Own != nil && !planned {
		weights = b.config.Own(object)
	}
	if b.config.ReadySince != nil {
		since = b.config.ReadySince(object)
	}
	kube.SetWeights(s, object, weights, since)
}

// writeAll brings the views of all zones to the stored state: changes of it, or all.
func (b *Builder) writeAll(all bool, changes []change, followed *followed) error {
	var failed []error
	for _, zone := range slices.Sorted(maps.Keys(b.zones)) {
		if err := b.write(zone, b.zones[zone], all, changes, followed); err != nil {
			failed = append(failed, fmt.Errorf("write view of zone %q: %w", zone, err))
		}
	}
	return errors.Join(failed...)
}

func (b *Builder) write(zone locality.Zone, scope *delta.Scope, all bool, changes []change, followed *followed) error {
	at := b.position(zone)
	if all {
		_, err := scope.Replace(at, b.everything(zone))
		return err
	}
	out := make([]delta.Change, 0, len(changes))
	for _, c := range changes {
		body := b.body(zone, c)
		out = append(out, delta.Change{
			Resource: delta.Resource{Type: c.typ, Name: c.name, Body: body},
			Removed:  body == nil,
		})
	}
	spans := followed.attach(out)
	_, err := scope.Apply(at, out)
	followed.record(b.config.Tracer, zone, spans, err)
	return err
}

func (b *Builder) everything(zone locality.Zone) []delta.Resource {
	out := make([]delta.Resource, 0, len(b.services)+len(b.names)+len(b.slices))
	add := func(typ string, names []string) {
		for _, name := range names {
			if body := b.body(zone, change{typ, name}); body != nil {
				out = append(out, delta.Resource{Type: typ, Name: name, Body: body})
			}
		}
	}
	sliceNames := slices.Sorted(maps.Keys(b.slices))
	add(wire.ServiceType, slices.Sorted(maps.Keys(b.services)))
	add(wire.SliceType, sliceNames)
	add(wire.NameType, slices.Sorted(maps.Keys(b.names)))
	add(wire.NameSliceType, sliceNames)
	add(wire.SuspectType, slices.Sorted(maps.Keys(b.suspects)))
	add(wire.LeavingType, slices.Sorted(maps.Keys(b.leaving)))
	b.everySite(add)
	add(wire.VirtualIPType, slices.Sorted(maps.Keys(b.virtual)))
	add(wire.MeshType, slices.Sorted(maps.Keys(b.meshes.bodies)))
	add(wire.WorkloadType, slices.Sorted(maps.Keys(b.meshes.workloads)))
	return out
}

// position binds the sequence to everything that the content of a view depends on.
func (b *Builder) position(zone locality.Zone) delta.Position {
	h := sha256.New()
	for _, input := range []string{format, b.config.Run, b.epoch, string(zone)} {
		fmt.Fprintf(h, "%d:%s", len(input), input)
	}
	return delta.Position{Epoch: binary.BigEndian.Uint64(h.Sum(nil)), Sequence: b.sequence}
}

// Scope returns the view of a zone, and builds it if there is none. More than 1024 views
// are refused with codes.ResourceExhausted.
func (b *Builder) Scope(zone locality.Zone) (*delta.Scope, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.scope(zone)
}

func (b *Builder) scope(zone locality.Zone) (*delta.Scope, error) {
	if scope := b.zones[zone]; scope != nil {
		return scope, nil
	}
	if len(b.zones) >= maxZones {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d zones", maxZones)
	}
	scope := delta.NewScope(delta.Options{})
	if b.filled {
		if err := b.write(zone, scope, true, nil, nil); err != nil {
			return nil, status.Errorf(codes.Internal, "build view of zone %q: %v", zone, err)
		}
	}
	b.zones[zone] = scope
	return scope, nil
}

// Assign assigns an agent's stream to a view: to that of the zone of its Node object, or
// of the zone that the agent announces as long as the Node has none. It does not
// authenticate: that is up to the caller. It fits stream.ServerConfig.
func (b *Builder) Assign(_ context.Context, node *core.Node) (stream.Admission, error) {
	if node.GetId() == "" {
		return stream.Admission{}, status.Error(codes.InvalidArgument, "the first request must name the node")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	zone := b.nodes[node.GetId()]
	if zone == "" {
		zone = locality.Zone(node.GetLocality().GetZone())
	}
	scope, err := b.scope(zone)
	if err != nil {
		return stream.Admission{}, err
	}
	a := b.streams[node.GetId()]
	if a == nil || a.zone != zone {
		if a != nil {
			close(a.end)
		}
		a = &assignment{zone: zone, end: make(chan struct{})}
		b.streams[node.GetId()] = a
	}
	return stream.Admission{Scope: scope, Header: metadata.Pairs(wire.ZoneHeader, string(zone)), End: a.end}, nil
}

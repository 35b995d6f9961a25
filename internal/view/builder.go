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
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// format changes whenever the same objects are written differently into a view,
// so that positions of an older program are not taken for ours.
const format = "proxima.node.v1/4"

// maxZones bounds the views that agents without a Node object can bring about.
const maxZones = 1024

// Delta is what the builder is told: objects that are new or different, and
// those that are gone (nil). With Reset it is all there is. Objects are shared
// and never changed.
type Delta struct {
	Reset bool
	// Sequence never falls from one Delta to the next. Epoch names the history that
	// sequences belong to; it may change with Reset.
	Epoch    string
	Sequence uint64
	Services map[proxy.ServiceName]*corev1.Service
	Slices   map[proxy.SliceName]*discoveryv1.EndpointSlice
	Nodes    map[string]*corev1.Node
	// Machines that Dataplanes with loopback addresses are on; empty: none any more.
	Machines map[catalog.Key]string
}

// BuilderConfig configures a Builder.
type BuilderConfig struct {
	// Run is part of every position. A catalog's sequence is proof of content in
	// one run of it only, so whoever makes the builder gives it something that no
	// other run has; a random number will do.
	Run string
	// Weights plans a zone's share of the endpoints of a slice: a weight for each,
	// in their order, relative to all slices of the Service. An endpoint whose weight
	// is 0, or missing, gets none of the zone's traffic. Nil: no plan, the slice goes
	// as it is. Where the answer changes though the slice does not, the slice has to
	// be in a Delta again. Nil: no plan at all.
	Weights func(zone string, slice *discoveryv1.EndpointSlice) []uint32
	Log     *slog.Logger // nil: silence
}

// Builder keeps one view per zone. A view comes into being with its first
// subscriber. Safe for concurrent use; nothing blocks for long.
type Builder struct {
	config BuilderConfig

	mu       sync.Mutex
	filled   bool
	epoch    string
	sequence uint64
	services map[string][]byte
	names    map[string]*heldName
	slices   map[string]*heldSlice
	// slicesOf are the slices of each Service: who is headless can turn out later.
	slicesOf map[string]map[string]struct{}
	nodes    map[string]string // zone by node
	suspects map[string][]byte // by node
	// machines of Dataplanes, and the slices with loopback addresses.
	machines map[catalog.Key]string
	loopback map[string]struct{}
	zones    map[string]*delta.Scope
	seats    map[string]*seat
}

// heldSlice is a slice and its encodings, which all zones share: without a plan
// for the proxy, and for names. One or both are nil.
type heldSlice struct {
	object     *discoveryv1.EndpointSlice
	body, name []byte
}

// heldName is the encoding of a Service that no proxy carries.
type heldName struct {
	body     []byte
	headless bool
}

// seat is where a node's streams sit.
type seat struct {
	zone string
	end  chan struct{}
}

// NewBuilder makes a builder; its views wait for the first Apply.
func NewBuilder(c BuilderConfig) *Builder {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Builder{
		config: c, zones: map[string]*delta.Scope{}, seats: map[string]*seat{},
		services: map[string][]byte{}, names: map[string]*heldName{}, nodes: map[string]string{},
		slices: map[string]*heldSlice{}, slicesOf: map[string]map[string]struct{}{},
		machines: map[catalog.Key]string{}, loopback: map[string]struct{}{},
	}
}

// Apply brings every view up to date. Objects that cannot be encoded are logged
// and left as they were. The first Delta must have Reset. A sequence may be
// repeated: by a Delta that changes nothing, or nothing but a plan.
func (b *Builder) Apply(d Delta) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !d.Reset && (!b.filled || d.Epoch != b.epoch) {
		return fmt.Errorf("apply to views: delta at %s:%d does not follow %s:%d", d.Epoch, d.Sequence, b.epoch, b.sequence)
	}
	if d.Reset {
		b.services, b.names, b.nodes = map[string][]byte{}, map[string]*heldName{}, map[string]string{}
		b.slices, b.slicesOf = map[string]*heldSlice{}, map[string]map[string]struct{}{}
		b.machines, b.loopback = map[catalog.Key]string{}, map[string]struct{}{}
	}
	b.seatNodes(d)
	changes := b.hold(d)
	if !d.Reset && len(changes) == 0 {
		return nil
	}
	b.advance(d)
	var failed []error
	for zone, scope := range b.zones {
		if err := b.write(zone, scope, d.Reset, changes); err != nil {
			failed = append(failed, fmt.Errorf("write view of zone %q: %w", zone, err))
		}
	}
	return errors.Join(failed...)
}

// advance moves to the delta's sequence, or to the next one if that has been used:
// a plan can change what a view holds while the catalog stands still.
func (b *Builder) advance(d Delta) {
	if b.filled && d.Epoch == b.epoch && d.Sequence <= b.sequence {
		b.sequence++
		return
	}
	b.filled, b.epoch, b.sequence = true, d.Epoch, d.Sequence
}

// change names a resource that may be different now.
type change struct{ typ, name string }

// hold takes the objects of a delta in and returns their names, in a fixed
// order.
func (b *Builder) hold(d Delta) []change {
	var out []change
	slice := func(key string) { out = append(out, change{SliceType, key}, change{NameSliceType, key}) }
	for _, s := range b.holdMachines(d) {
		slice(s)
	}
	for name, object := range d.Services {
		key, turned := b.holdService(name, object)
		out = append(out, change{ServiceType, key}, change{NameType, key})
		if !turned {
			continue
		}
		for s := range b.slicesOf[key] {
			b.encodeHeld(s, b.slices[s])
			slice(s)
		}
	}
	for name, object := range d.Slices {
		slice(b.holdSlice(name, object))
	}
	slices.SortFunc(out, func(x, y change) int {
		return cmp.Or(cmp.Compare(x.typ, y.typ), cmp.Compare(x.name, y.name))
	})
	return slices.Compact(out)
}

// holdService also says whether the Service became headless, or is it no more.
func (b *Builder) holdService(name proxy.ServiceName, object *corev1.Service) (key string, turned bool) {
	key = resourceName(name.Namespace, name.Name)
	was := b.headless(key)
	delete(b.services, key)
	delete(b.names, key)
	if object == nil {
		return key, was
	}
	var err error
	if s, ok := ServiceOf(object); ok {
		b.services[key], err = encodeService(s)
	} else if n, ok := NameOf(object); ok {
		held := &heldName{headless: n.Headless()}
		held.body, err = encodeName(n)
		b.names[key] = held
	}
	if err != nil {
		b.config.Log.Error("service is not in the views", "error", err)
	}
	return key, was != b.headless(key)
}

func (b *Builder) headless(service string) bool {
	n := b.names[service]
	return n != nil && n.headless
}

func (b *Builder) holdSlice(name proxy.SliceName, object *discoveryv1.EndpointSlice) string {
	key := resourceName(name.Namespace, name.Name)
	if was := b.slices[key]; was != nil {
		service := serviceKey(was.object)
		if delete(b.slicesOf[service], key); len(b.slicesOf[service]) == 0 {
			delete(b.slicesOf, service)
		}
		delete(b.slices, key)
	}
	b.noteLoopback(key, nil)
	if object == nil || object.Labels[discoveryv1.LabelServiceName] == "" {
		return key
	}
	service := serviceKey(object)
	if b.slicesOf[service] == nil {
		b.slicesOf[service] = make(map[string]struct{}, 1)
	}
	b.slicesOf[service][key] = struct{}{}
	b.slices[key] = &heldSlice{object: object}
	b.noteLoopback(key, object)
	b.encodeHeld(key, b.slices[key])
	return key
}

func serviceKey(s *discoveryv1.EndpointSlice) string {
	return resourceName(s.Namespace, s.Labels[discoveryv1.LabelServiceName])
}

// encodeHeld encodes a slice for those who need it: names for a headless Service,
// the proxy for any other. The label that says so is not on every slice that a
// user writes, so the Service is asked.
func (b *Builder) encodeHeld(key string, held *heldSlice) {
	held.body, held.name = nil, nil
	var err error
	if b.headless(serviceKey(held.object)) {
		held.name, err = encodeNameSlice(nameSliceOf(held.object, b.machineOf))
	} else if s, ok := SliceOf(held.object); ok {
		SetMachines(s, held.object, b.machineOf)
		held.body, err = encodeSlice(s)
	}
	if err != nil {
		b.config.Log.Error("endpoint slice is not in the views", "slice", key, "error", err)
	}
}

// body is the content of a resource in a zone's view; nil: it has none.
func (b *Builder) body(zone string, c change) []byte {
	switch c.typ {
	case ServiceType:
		return b.services[c.name]
	case NameType:
		if n := b.names[c.name]; n != nil {
			return n.body
		}
		return nil
	case SuspectType:
		return b.suspects[c.name]
	}
	held := b.slices[c.name]
	switch {
	case held == nil:
		return nil
	case c.typ == NameSliceType:
		return held.name
	case held.body == nil || b.config.Weights == nil:
		return held.body
	}
	weights := b.config.Weights(zone, held.object)
	if len(weights) == 0 {
		return held.body
	}
	body, err := b.encodePlanned(zone, held.object, weights)
	if err != nil { // without weights it could be encoded
		b.config.Log.Error("endpoint slice goes without its plan", "zone", zone, "error", err)
		return held.body
	}
	return body
}

// nowhere is a zone hint that no zone answers to: a label's value cannot be that.
const nowhere = "-"

func (b *Builder) encodePlanned(zone string, object *discoveryv1.EndpointSlice, weights []uint32) ([]byte, error) {
	s, _ := PlannedSliceOf(zone, object, weights)
	SetMachines(s, object, b.machineOf)
	return encodeSlice(s)
}

// PlannedSliceOf is SliceOf as a zone's view has it when there is a plan. Weights stand
// for the endpoints of the object, of which the translation may have left some out. The
// hints of the object are for those who know no weights; in their place come hints that
// fit the plan, as agents ask hints first: whoever gets a share names the zone, whoever
// gets none names another.
func PlannedSliceOf(zone string, object *discoveryv1.EndpointSlice, weights []uint32) (*proxy.Slice, bool) {
	s, ok := SliceOf(object)
	if !ok {
		return nil, false
	}
	here, elsewhere := proxy.HintsOf([]string{zone}, nil), proxy.HintsOf([]string{nowhere}, nil)
	next := 0
	for i := range object.Endpoints {
		if _, ok := endpointOf(&object.Endpoints[i]); !ok {
			continue
		}
		e := &s.Endpoints[next]
		next++
		e.Hints = nil
		switch {
		case !e.Ready: // hints and weights mean nothing
		case i < len(weights) && weights[i] > 0:
			e.Weight, e.Hints = weights[i], here
		case e.Zone != "" && e.Zone != zone:
			e.Hints = proxy.HintsOf([]string{e.Zone}, nil)
		default:
			e.Hints = elsewhere
		}
	}
	return s, true
}

func (b *Builder) write(zone string, scope *delta.Scope, all bool, changes []change) error {
	at := b.position(zone)
	if all {
		_, err := scope.Replace(at, b.everything(zone))
		return err
	}
	out := make([]delta.Change, 0, len(changes))
	for _, c := range changes {
		body := b.body(zone, c)
		out = append(out, delta.Change{Resource: delta.Resource{Type: c.typ, Name: c.name, Body: body}, Removed: body == nil})
	}
	_, err := scope.Apply(at, out)
	return err
}

func (b *Builder) everything(zone string) []delta.Resource {
	out := make([]delta.Resource, 0, len(b.services)+len(b.names)+len(b.slices))
	add := func(typ string, names []string) {
		for _, name := range names {
			if body := b.body(zone, change{typ, name}); body != nil {
				out = append(out, delta.Resource{Type: typ, Name: name, Body: body})
			}
		}
	}
	held := slices.Sorted(maps.Keys(b.slices))
	add(ServiceType, slices.Sorted(maps.Keys(b.services)))
	add(SliceType, held)
	add(NameType, slices.Sorted(maps.Keys(b.names)))
	add(NameSliceType, held)
	add(SuspectType, slices.Sorted(maps.Keys(b.suspects)))
	return out
}

// position binds the sequence to all that a view's content depends on.
func (b *Builder) position(zone string) delta.Position {
	h := sha256.New()
	for _, part := range []string{format, b.config.Run, b.epoch, zone} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return delta.Position{Epoch: binary.BigEndian.Uint64(h.Sum(nil)), Sequence: b.sequence}
}

// Scope returns the view of a zone, built if need be.
func (b *Builder) Scope(zone string) (*delta.Scope, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.scope(zone)
}

func (b *Builder) scope(zone string) (*delta.Scope, error) {
	if scope := b.zones[zone]; scope != nil {
		return scope, nil
	}
	if len(b.zones) >= maxZones {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d zones", maxZones)
	}
	scope := delta.NewScope(delta.Options{})
	if b.filled {
		if err := b.write(zone, scope, true, nil); err != nil {
			return nil, status.Errorf(codes.Internal, "build view of zone %q: %v", zone, err)
		}
	}
	b.zones[zone] = scope
	return scope, nil
}

// Admit seats an agent: in the zone of its Node object, or in the one that it
// announces as long as that has none. It does not ask who the agent is; that is
// for the caller to have done. It fits stream.ServerConfig.
func (b *Builder) Admit(_ context.Context, node *core.Node) (stream.Admission, error) {
	if node.GetId() == "" {
		return stream.Admission{}, status.Error(codes.InvalidArgument, "the first request must name the node")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	zone := b.nodes[node.GetId()]
	if zone == "" {
		zone = node.GetLocality().GetZone()
	}
	scope, err := b.scope(zone)
	if err != nil {
		return stream.Admission{}, err
	}
	s := b.seats[node.GetId()]
	if s == nil || s.zone != zone {
		if s != nil {
			close(s.end)
		}
		s = &seat{zone: zone, end: make(chan struct{})}
		b.seats[node.GetId()] = s
	}
	return stream.Admission{Scope: scope, Header: metadata.Pairs(zoneHeader, zone), End: s.end}, nil
}

// seatNodes learns zones and asks those up who sit in the wrong one.
func (b *Builder) seatNodes(d Delta) {
	for name, object := range d.Nodes {
		zone := ""
		if object != nil {
			zone = object.Labels[corev1.LabelTopologyZone]
		}
		if zone == "" {
			delete(b.nodes, name)
			continue
		}
		b.nodes[name] = zone
		if s := b.seats[name]; s != nil && s.zone != zone {
			close(s.end)
			delete(b.seats, name)
		}
	}
}

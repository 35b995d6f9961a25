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

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// format changes whenever the same objects are written differently into a view,
// so that positions of an older program are not taken for ours.
const format = "proxima.node.v1/1"

// maxZones bounds the views that agents without a Node object can bring about.
const maxZones = 1024

// Delta is what the builder is told: objects that are new or different, and
// those that are gone (nil). With Reset it is all there is. Objects are shared
// and never changed.
type Delta struct {
	Reset bool
	// Sequence rises from one Delta to the next. Epoch names the history that
	// sequences belong to; it may change with Reset.
	Epoch    string
	Sequence uint64
	Services map[proxy.ServiceName]*corev1.Service
	Slices   map[proxy.SliceName]*discoveryv1.EndpointSlice
	Nodes    map[string]*corev1.Node
}

// BuilderConfig configures a Builder.
type BuilderConfig struct {
	// Run is part of every position. A catalog's sequence is proof of content in
	// one run of it only, so whoever makes the builder gives it something that no
	// other run has; a random number will do.
	Run string
	// Weights plans a zone's share of the endpoints of a slice, in their order; nil
	// or too short: no plan for these. It must depend on its arguments and on what
	// the catalog held with them only. Nil: no plan at all.
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
	slices   map[string]*heldSlice
	nodes    map[string]string // zone by node
	zones    map[string]*delta.Scope
	seats    map[string]*seat
}

// heldSlice is a slice and its encoding without a plan, which all zones share.
type heldSlice struct {
	object *discoveryv1.EndpointSlice
	body   []byte
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
		services: map[string][]byte{}, slices: map[string]*heldSlice{}, nodes: map[string]string{},
	}
}

// Apply brings every view up to date. Objects that cannot be encoded are logged
// and left as they were. The first Delta must have Reset; one that changes
// nothing may repeat a sequence.
func (b *Builder) Apply(d Delta) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !d.Reset && (!b.filled || d.Epoch != b.epoch) {
		return fmt.Errorf("apply to views: delta at %s:%d does not follow %s:%d", d.Epoch, d.Sequence, b.epoch, b.sequence)
	}
	if d.Reset {
		b.services, b.slices, b.nodes = map[string][]byte{}, map[string]*heldSlice{}, map[string]string{}
	}
	b.seatNodes(d)
	changes := b.hold(d)
	if !d.Reset && len(changes) == 0 {
		return nil
	}
	b.filled, b.epoch, b.sequence = true, d.Epoch, d.Sequence
	var failed []error
	for zone, scope := range b.zones {
		if err := b.write(zone, scope, d.Reset, changes); err != nil {
			failed = append(failed, fmt.Errorf("write view of zone %q: %w", zone, err))
		}
	}
	return errors.Join(failed...)
}

// change names a resource that may be different now.
type change struct{ typ, name string }

// hold takes the objects of a delta in and returns their names, in a fixed
// order.
func (b *Builder) hold(d Delta) []change {
	var out []change
	for name, object := range d.Services {
		out = append(out, change{ServiceType, b.holdService(name, object)})
	}
	for name, object := range d.Slices {
		out = append(out, change{SliceType, b.holdSlice(name, object)})
	}
	slices.SortFunc(out, func(x, y change) int {
		return cmp.Or(cmp.Compare(x.typ, y.typ), cmp.Compare(x.name, y.name))
	})
	return out
}

func (b *Builder) holdService(name proxy.ServiceName, object *corev1.Service) string {
	key := resourceName(name.Namespace, name.Name)
	if object == nil {
		delete(b.services, key)
		return key
	}
	s, ok := ServiceOf(object)
	if !ok {
		delete(b.services, key)
		return key
	}
	body, err := encodeService(s)
	if err != nil {
		b.config.Log.Error("service left as it was in the views", "error", err)
		return key
	}
	b.services[key] = body
	return key
}

func (b *Builder) holdSlice(name proxy.SliceName, object *discoveryv1.EndpointSlice) string {
	key := resourceName(name.Namespace, name.Name)
	if object == nil {
		delete(b.slices, key)
		return key
	}
	s, ok := SliceOf(object)
	if !ok {
		delete(b.slices, key)
		return key
	}
	body, err := encodeSlice(s)
	if err != nil {
		b.config.Log.Error("endpoint slice left as it was in the views", "error", err)
		return key
	}
	b.slices[key] = &heldSlice{object: object, body: body}
	return key
}

// body is the content of a resource in a zone's view; nil: it has none.
func (b *Builder) body(zone string, c change) []byte {
	if c.typ == ServiceType {
		return b.services[c.name]
	}
	held := b.slices[c.name]
	if held == nil {
		return nil
	}
	if b.config.Weights == nil {
		return held.body
	}
	weights := b.config.Weights(zone, held.object)
	if len(weights) == 0 {
		return held.body
	}
	body, err := encodePlanned(held.object, weights)
	if err != nil { // without weights it could be encoded
		b.config.Log.Error("endpoint slice goes without its plan", "zone", zone, "error", err)
		return held.body
	}
	return body
}

// encodePlanned encodes a slice with weights. These stand for the endpoints of
// the object, of which the translation may have left some out.
func encodePlanned(object *discoveryv1.EndpointSlice, weights []uint32) ([]byte, error) {
	s, _ := SliceOf(object)
	next := 0
	for i := range object.Endpoints {
		if _, ok := endpointOf(&object.Endpoints[i]); !ok {
			continue
		}
		if i < len(weights) {
			s.Endpoints[next].Weight = weights[i]
		}
		next++
	}
	return encodeSlice(s)
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
	out := make([]delta.Resource, 0, len(b.services)+len(b.slices))
	for _, name := range slices.Sorted(maps.Keys(b.services)) {
		out = append(out, delta.Resource{Type: ServiceType, Name: name, Body: b.services[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(b.slices)) {
		out = append(out, delta.Resource{Type: SliceType, Name: name, Body: b.body(zone, change{SliceType, name})})
	}
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

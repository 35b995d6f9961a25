package registered

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/controller/sliceset"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// SlicesConfig of Slices. Client and Catalog are required.
type SlicesConfig struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// PodAt is the Pod that has an address of its own; nil: there is none. A nil function finds none.
	PodAt func(netip.Addr) *corev1.Pod
	// Window as in loop.Config.
	Window time.Duration
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: discard
}

// Slices keeps the EndpointSlices of the Services that a Controller with Config.Slices makes. The endpoint of an
// instance at the address of a Pod names that Pod, so it is what other endpoints of the Pod are: to plans, to proxies, to
// identities. It touches no slice that it did not make. Make it with NewSlices.
type Slices struct {
	SlicesConfig
	loop *loop.Loop
}

// NewSlices makes it; Run starts it.
func NewSlices(c SlicesConfig) *Slices {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.PodAt == nil {
		c.PodAt = func(netip.Addr) *corev1.Pod { return nil }
	}
	s := &Slices{SlicesConfig: c}
	s.loop = loop.New(loop.Config{What: "registered service", Sync: s.sync, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	return s
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Slices) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch, catalog.Dataplanes, catalog.Services, catalog.Slices, catalog.Nodes)
}

// dispatch queues the Services that a delta concerns, by their keys. An endpoint has the zone of its node as of
// the last write.
func (c *Slices) dispatch(d catalog.Delta) {
	for _, change := range d.Dataplanes {
		for _, dp := range []*meshv1alpha1.Dataplane{change.Old, change.New} {
			if registry.Registered(dp) && dp.Labels[registry.LabelService] != "" {
				c.loop.Add(resource.Key{Namespace: change.Key.Namespace, Name: dp.Labels[registry.LabelService]})
			}
		}
	}
	for _, change := range d.Services {
		if derived(change.Old) || derived(change.New) {
			c.loop.Add(change.Key)
		}
	}
	for _, change := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{change.Old, change.New} {
			if !ours(slice) {
				continue
			}
			if key := (resource.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}); !loop.Echo(c.loop, key, change) {
				c.loop.Add(key)
			}
		}
	}
}

func ours(s *discoveryv1.EndpointSlice) bool {
	return s != nil && s.Labels[discoveryv1.LabelManagedBy] == registry.SlicesManagedBy && s.Labels[discoveryv1.LabelServiceName] != ""
}

// sync brings the slices of one Service to what they should be.
func (c *Slices) sync(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	var existing []*discoveryv1.EndpointSlice
	for _, slice := range s.SlicesOf(key) {
		if ours(slice) {
			existing = append(existing, slice)
		}
	}
	if !loop.Observed(c.loop.Expectations(key), s.Slices.Revision(), existing...) {
		return loop.ErrStale
	}
	service, _ := s.Services.Get(key)
	plan := endpointslice.Plan{Delete: existing}
	if derived(service) && len(service.Spec.Selector) == 0 {
		plan = endpointslice.Reconcile(c.input(s, service, existing))
	}
	if plan.Empty() {
		if service == nil {
			c.loop.Forget(key)
		}
		return nil
	}
	c.loop.Writes(key)
	return sliceset.Writer{
		Client: c.Client, Kind: kind.EndpointSlice, Expectations: c.loop.Expectations(key), What: "endpoint slice of service " + key.String(),
	}.Write(ctx, plan.Create, plan.Update, plan.Delete)
}

// input of the slices of a Service, as if it selected its instances.
func (c *Slices) input(s *catalog.Snapshot, service *corev1.Service, existing []*discoveryv1.EndpointSlice) endpointslice.Input {
	selecting := service.DeepCopy()
	selecting.Spec.Selector = map[string]string{registry.LabelService: service.Name}
	in := endpointslice.Input{
		Service: selecting, Slices: existing, Options: endpointslice.Options{ManagedBy: registry.SlicesManagedBy},
		Node: func(name string) *corev1.Node {
			node, _ := s.Nodes.Get(resource.Key{Name: name})
			return node
		},
	}
	for _, dp := range s.DataplanesMatching(service.Namespace, selecting.Spec.Selector) {
		if !registry.Registered(dp) {
			continue
		}
		b := backend.OfDataplane(dp, service.Name)
		if pod := c.podOf(dp); pod != nil {
			b.Ref = corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
			b.Node = pod.Spec.NodeName
		}
		in.Backends = append(in.Backends, b)
	}
	return in
}

// podOf an instance, in its namespace: endpoints name no Pods of others.
func (c *Slices) podOf(dp *meshv1alpha1.Dataplane) *corev1.Pod {
	if len(dp.Spec.Addresses) == 0 {
		return nil
	}
	address, err := netip.ParseAddr(dp.Spec.Addresses[0])
	if err != nil {
		return nil
	}
	pod := c.PodAt(address.Unmap())
	if pod == nil || pod.Namespace != dp.Namespace {
		return nil
	}
	return pod
}

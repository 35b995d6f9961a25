package multicluster

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Config of Exports and of Imports. Client, Catalog and Site are required.
type Config struct {
	// Client to write with.
	Client resource.Client
	// Catalog to read from.
	Catalog *catalog.Catalog
	// Site is the name of this zone.
	Site string
	// Workers is how many names are worked on at the same time; 0: 4.
	Workers int
	// Window is how long a name is left alone after a write, so that a burst of changes
	// shares the next one; 0: loop.DefaultWindow, negative: none.
	Window time.Duration
	// Demand that other zones need for their plans; nil: exports do not name it. It is for
	// Exports.
	Demand Demand
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Demand of this zone. Its methods must not block.
type Demand interface {
	// Wanted reports whether plans of a Service need it.
	Wanted(*corev1.Service) bool
	// Rate of new connections to a service port, per second.
	Rate(proxy.PortName) float64
	// Warm: enough nodes have reported for Rate to be believed.
	Warm() bool
}

// demandInterval is how often demand is looked at.
const demandInterval = 10 * time.Second

func (c *Config) complete() {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) loop(what string, sync func(context.Context, resource.Key) error) *loop.Loop {
	return loop.New(loop.Config{What: what, Sync: sync, Workers: c.Workers, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
}

// Exports keeps the statuses of this zone's ServiceExports. Make it with NewExports.
type Exports struct {
	Config
	loop *loop.Loop
}

// NewExports makes the controller; Run starts it.
func NewExports(config Config) *Exports {
	e := &Exports{Config: config}
	e.complete()
	e.loop = e.Config.loop("export", e.sync)
	return e
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (e *Exports) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait()
	defer cancel()
	if e.Demand != nil {
		looking.Go(func() { e.lookAtDemand(ctx) })
	}
	return e.loop.Run(ctx, e.Catalog, e.dispatch, append(backend.Kinds(), catalog.ServiceExports, catalog.Slices, catalog.Meshes, catalog.RegistryConfigs)...)
}

// lookAtDemand queues the names whose demand is exported.
func (e *Exports) lookAtDemand(ctx context.Context) {
	ticker := e.Clock.NewTicker(demandInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		s := e.Catalog.Snapshot()
		for key, export := range s.ServiceExports.All() {
			if export.Labels[meshv1alpha1.LabelZone] != "" {
				continue
			}
			if service, ok := s.Services.Get(key); ok && e.Demand.Wanted(service) {
				e.loop.Add(key)
			}
		}
	}
}

// dispatch queues the names that a delta concerns. Workloads and slices concern only what is
// exported.
func (e *Exports) dispatch(d catalog.Delta) {
	for _, change := range d.ServiceExports {
		if change.Old != nil {
			e.loop.Add(catalog.ExportedService(change.Old))
		}
		if change.New != nil {
			e.loop.Add(catalog.ExportedService(change.New))
		}
	}
	for _, change := range d.Services {
		e.loop.Add(change.Key)
	}
	for _, change := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{change.Old, change.New} {
			if slice == nil {
				continue
			}
			if key := serviceOf(slice); isExported(d.After, key) {
				e.loop.Add(key)
			}
		}
	}
	backend.Changed(d, func(service resource.Key) {
		if isExported(d.After, service) {
			e.loop.Add(service)
		}
	})
	for _, change := range d.Dataplanes {
		if change.New != nil && kind.DataplaneHasProxy(change.Old) != kind.DataplaneHasProxy(change.New) {
			backend.Behind(d.After, change.New, func(service resource.Key) {
				if isExported(d.After, service) {
					e.loop.Add(service)
				}
			})
		}
	}
	for _, change := range d.RegistryConfigs {
		e.addApplication(d.After, change)
	}
	namespaces := map[string]bool{}
	for _, change := range d.Namespaces {
		namespaces[change.Key.Name] = true
	}
	if len(namespaces) == 0 && len(d.Meshes) == 0 {
		return
	}
	for key := range d.After.Services.All() {
		if len(d.Meshes) > 0 || namespaces[key.Namespace] {
			e.loop.Add(key)
		}
	}
}

// addApplication queues the exported Services of an application of Dubbo whose metadata have changed, if
// that is what an entry of the configuration is.
func (e *Exports) addApplication(s *catalog.Snapshot, change catalog.Change[*meshv1alpha1.RegistryConfig]) {
	entry := cmp.Or(change.New, change.Old)
	if !registry.IsMetadata(entry) {
		return
	}
	for key, export := range s.ServiceExports.Namespace(entry.Namespace) {
		service, ok := s.Services.Get(key)
		if !ok || export.Labels[meshv1alpha1.LabelZone] != "" {
			continue
		}
		if name, ok := registry.NameOf(service); ok && name.Name == entry.Spec.DataID {
			e.loop.Add(key)
		}
	}
}

func isExported(s *catalog.Snapshot, key resource.Key) bool {
	_, ok := s.ServiceExports.Get(key)
	return ok
}

// sync brings the export of one name to what it should be.
func (e *Exports) sync(ctx context.Context, key resource.Key) error {
	plan := ReconcileExport(e.input(e.Catalog.Snapshot(), key))
	var err error
	switch {
	case plan.Create != nil:
		e.loop.Writes(key)
		_, err = e.Client.Create(ctx, kind.ServiceExport, plan.Create)
	case plan.Delete:
		err = e.Client.Delete(ctx, kind.ServiceExport, key, resource.Preconditions{})
	case plan.Status != nil:
		e.loop.Writes(key)
		_, err = e.Client.UpdateStatus(ctx, kind.ServiceExport, plan.Status)
	}
	return loop.Outcome("write export "+key.String(), err)
}

func (e *Exports) input(s *catalog.Snapshot, key resource.Key) ExportInput {
	in := ExportInput{Key: key, Site: e.Site, Now: metav1.NewTime(e.Clock.Now())}
	in.Service, _ = s.Services.Get(key)
	in.Namespace, _ = s.Namespaces.Get(catalog.Key{Name: key.Namespace})
	in.Mesh, _ = s.Meshes.Get(catalog.Key{Name: meshOf(in.Namespace)})
	in.Demand, in.HoldDemand = e.demandOf(s, in.Service)
	for _, export := range s.ExportsOf(key) {
		if export.Labels[meshv1alpha1.LabelZone] != "" {
			in.Others = append(in.Others, export)
		} else {
			in.Export = export
		}
	}
	if in.Export != nil { // nothing else follows from them
		in.Slices = slicesOf(s, key, in.Service)
		in.Dataplanes = dataplanesOf(s, key.Namespace, in.Slices)
		in.Configs = func(key registry.ConfigKey) *meshv1alpha1.RegistryConfig { return registry.StoredConfig(s, key) }
	}
	return in
}

// dataplanesOf endpoints: those of Pods have the names of the Pods.
func dataplanesOf(s *catalog.Snapshot, namespace string, all []*discoveryv1.EndpointSlice) map[string]*meshv1alpha1.Dataplane {
	out := map[string]*meshv1alpha1.Dataplane{}
	for _, slice := range all {
		for i := range slice.Endpoints {
			if ref := slice.Endpoints[i].TargetRef; ref != nil {
				if d, ok := s.Dataplanes.Get(catalog.Key{Namespace: namespace, Name: ref.Name}); ok {
					out[ref.Name] = d
				}
			}
		}
	}
	return out
}

// slicesOf a Service, as they will be: the export does not wait until they are written, which
// takes a commit of its own. Meanwhile the gateways of this zone have the endpoints of before.
func slicesOf(s *catalog.Snapshot, key resource.Key, service *corev1.Service) (out []*discoveryv1.EndpointSlice) {
	if service != nil && endpointslice.Applies(service) {
		return endpointslice.Expected(s, service)
	}
	for _, slice := range s.SlicesOf(key) {
		out = append(out, slice)
	}
	return out
}

// demandOf a Service that starts in this zone, by the number of the port: that for its own
// name, and for the name of the import. hold: it is not known yet, so that what was exported
// before holds.
func (e *Exports) demandOf(s *catalog.Snapshot, service *corev1.Service) (rates map[int32]float64, hold bool) {
	switch {
	case service == nil, e.Demand == nil, !e.Demand.Wanted(service):
		return nil, false
	case !e.Demand.Warm():
		return nil, true
	}
	rates = map[int32]float64{}
	add := func(of *corev1.Service) {
		name := proxy.ServiceName{Namespace: of.Namespace, Name: of.Name}
		for _, p := range of.Spec.Ports {
			if protocolOf(p.Protocol) == corev1.ProtocolTCP {
				rates[p.Port] += e.Demand.Rate(proxy.PortName{ServiceName: name, Port: p.Name})
			}
		}
	}
	add(service)
	derived := resource.Key{Namespace: service.Namespace, Name: DerivedName(resource.KeyOf(service))}
	if d, ok := s.Services.Get(derived); ok && IsDerived(d) {
		add(d)
	}
	return rates, false
}

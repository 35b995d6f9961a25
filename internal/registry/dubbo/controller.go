package dubbo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// groupMapping has the mappings from interfaces to applications.
const groupMapping = "mapping"

// Config of a Controller. Client and Catalog are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// MachineID of this machine (package machine): providers with loopback addresses are asked if they are on
	// it; empty: they are not.
	MachineID string
	// WithoutSecrets as the method of registry.Configs.
	WithoutSecrets bool
	Meters         *registry.Meters // nil: nothing is counted
	Clock          clock.WithTicker // nil: the real one
	Logger         *slog.Logger     // nil: discard
}

// Controller writes the entries. One runs at a time. Make it with New.
type Controller struct {
	Config
	configs  *registry.Configs
	services *loop.Loop
	// instances are asked for the metadata of their revisions.
	instances *loop.Loop
	asked     slots
	// offers are those of other zones.
	offers *loop.Loop
}

const (
	// patience is how long a provider has to answer.
	patience = 5 * time.Second
	// maxAsked providers are asked at a time, of which maxAskedOfNamespace are of one namespace: what does not
	// answer there keeps no other waiting.
	maxAsked            = 16
	maxAskedOfNamespace = 8
	// maxStored is how many bytes of metadata that providers were asked for a namespace may have. Consumers ask
	// the providers of more.
	maxStored = 64 << 20
)

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	out := &Controller{Config: c, configs: registry.NewConfigs(c.Client, c.Catalog, c.Logger)}
	if c.WithoutSecrets {
		out.configs.WithoutSecrets()
	}
	out.services = loop.New(loop.Config{What: "service of dubbo", Sync: out.syncService, Window: -1, Clock: c.Clock, Logger: c.Logger})
	out.instances = loop.New(loop.Config{
		What: "instance of dubbo", Sync: out.syncInstance, Window: -1, Workers: maxAsked, Clock: c.Clock, Logger: c.Logger,
	})
	out.offers = loop.New(loop.Config{What: "application of dubbo in another zone", Sync: out.syncOffer, Window: -1, Clock: c.Clock, Logger: c.Logger})
	return out
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.configs.Run(following); err != nil {
			c.Logger.Error("follow the configuration", "error", err)
		}
	})
	running.Go(func() {
		if err := c.instances.Run(following, c.Catalog, c.dispatchInstances, catalog.Dataplanes, catalog.RegistryConfigs); err != nil {
			c.Logger.Error("follow instances", "error", err)
		}
	})
	running.Go(func() {
		if err := c.offers.Run(following, c.Catalog, c.dispatchOffers, catalog.ServiceExports, catalog.Namespaces, catalog.RegistryConfigs); err != nil {
			c.Logger.Error("follow what other zones offer", "error", err)
		}
	})
	running.Go(func() { c.collect(following) })
	defer running.Wait()
	defer stop()
	return c.services.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.RegistryConfigs)
}

// dispatchInstances queues the instances that are new, or of another revision, and those whose metadata are
// stored no more.
func (c *Controller) dispatchInstances(d catalog.Delta) {
	for _, change := range d.Dataplanes {
		if registry.Registered(change.New) && (change.Old == nil ||
			change.Old.Annotations[registry.AnnotationInstance] != change.New.Annotations[registry.AnnotationInstance]) {
			c.instances.Add(change.Key)
		}
	}
	for _, change := range d.RegistryConfigs {
		if change.New != nil || change.Old == nil || !slices.Contains(change.Old.Spec.Tags, registry.TagMetadata) {
			continue
		}
		for key, o := range d.After.Dataplanes.Namespace(change.Key.Namespace) {
			if strings.Contains(o.Annotations[registry.AnnotationInstance], change.Old.Spec.Group) {
				c.instances.Add(key)
			}
		}
	}
}

// syncInstance asks a provider for the metadata of its revision, unless they are known.
func (c *Controller) syncInstance(ctx context.Context, key resource.Key) error {
	d, ok := c.Catalog.Snapshot().Dataplanes.Get(key)
	if !ok || !registry.Registered(d) {
		c.instances.Forget(key)
		return nil
	}
	in, err := registry.Parse(d)
	if err != nil || in.Service.RPC() || in.Metadata[registry.KeyStorage] == registry.StorageRemote {
		return nil //nolint:nilerr // the index says so
	}
	revision := in.Metadata[registry.KeyRevision]
	if revision == "" || revision == "0" || len(revision) > maxRevision {
		return nil
	}
	entry := registry.ConfigKey{Namespace: key.Namespace, Group: revision, DataID: in.Service.Name}
	if c.configs.Get(entry) != nil {
		return nil
	}
	machine := d.Annotations[meshv1alpha1.AnnotationMachineID]
	at, how, err := serviceOfInstance(in, machine != "" && machine == c.MachineID)
	switch {
	case errors.Is(err, errNoService):
		return nil
	case err != nil:
		c.Logger.Warn("a provider of dubbo is not asked for its metadata: its consumers ask it", "application", in.Service.String(), "instance", key.String(), "error", err)
		return nil
	case c.stored(key.Namespace) >= maxStored:
		c.Logger.Warn("a namespace has too many metadata of dubbo: consumers ask the providers for more", "namespace", key.Namespace,
			"application", in.Service.String(), "bytes", maxStored)
		return nil
	}
	if !c.asked.take(entry, key) {
		c.instances.AddAfter(key, patience) // those that wait before it may need none, and wake nothing then
		return nil
	}
	defer func() {
		for _, waited := range c.asked.free(entry) {
			c.instances.Add(waited)
		}
	}()
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := how(asking, at, in.Service.Name, revision)
	if err == nil {
		err = check(m, in.Service.Name, revision)
	}
	if c.Meters != nil && ctx.Err() == nil {
		c.Meters.Metadata(err)
	}
	if err != nil {
		return fmt.Errorf("fetch metadata of revision %.40s of application %s from %s: %w", revision, in.Service.Name, at, err)
	}
	return c.write(ctx, key.Namespace, m, "of a provider")
}

// stored is how many bytes a namespace has of the metadata that this package wrote.
func (c *Controller) stored(namespace string) (n int) {
	for _, o := range c.Catalog.Snapshot().RegistryConfigs.Namespace(namespace) {
		if slices.Contains(o.Spec.Tags, registry.TagMetadata) {
			n += len(o.Spec.Content)
		}
	}
	return n
}

// slots are the providers that are asked at present, and the instances that wait for them: those of a revision that
// is asked for already, and those of a namespace that has no slot left. The zero value is ready to use; safe for
// concurrent use.
type slots struct {
	mu       sync.Mutex
	revision map[registry.ConfigKey]map[resource.Key]struct{}
	count    map[string]int
	waiting  map[string]map[resource.Key]struct{}
}

// take a slot for an instance. Without one left, it waits.
func (s *slots) take(entry registry.ConfigKey, instance resource.Key) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision == nil {
		s.revision, s.count, s.waiting = map[registry.ConfigKey]map[resource.Key]struct{}{}, map[string]int{}, map[string]map[resource.Key]struct{}{}
	}
	if same, asked := s.revision[entry]; asked {
		same[instance] = struct{}{}
		return false
	}
	if s.count[entry.Namespace] >= maxAskedOfNamespace {
		if s.waiting[entry.Namespace] == nil {
			s.waiting[entry.Namespace] = map[resource.Key]struct{}{}
		}
		s.waiting[entry.Namespace][instance] = struct{}{}
		return false
	}
	s.revision[entry] = map[resource.Key]struct{}{}
	s.count[entry.Namespace]++
	return true
}

// free the slot. It returns the instances that wait no more.
func (s *slots) free(entry registry.ConfigKey) []resource.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Collect(maps.Keys(s.revision[entry]))
	delete(s.revision, entry)
	if s.count[entry.Namespace]--; s.count[entry.Namespace] == 0 {
		delete(s.count, entry.Namespace)
	}
	for next := range s.waiting[entry.Namespace] {
		out = append(out, next)
		if delete(s.waiting[entry.Namespace], next); len(s.waiting[entry.Namespace]) == 0 {
			delete(s.waiting, entry.Namespace)
		}
		break
	}
	return out
}

// dispatch queues the Services whose entries may not be what they should be.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Services {
		if change.New != nil && change.New.Annotations[registry.AnnotationInterface] != "" {
			c.services.Add(change.Key)
		}
	}
	namespaces := map[string]struct{}{} // in which an entry of a Service may be gone
	for _, change := range d.RegistryConfigs {
		if change.Old != nil {
			namespaces[change.Key.Namespace] = struct{}{}
		}
	}
	for namespace := range namespaces {
		for key, s := range d.After.Services.Namespace(namespace) {
			if s.Annotations[registry.AnnotationInterface] != "" {
				c.services.Add(key)
			}
		}
	}
}

// syncService writes the metadata of a Service that is annotated, and then the mappings to it.
func (c *Controller) syncService(ctx context.Context, key resource.Key) error {
	s, ok := c.Catalog.Snapshot().Services.Get(key)
	if !ok || s.DeletionTimestamp != nil {
		c.services.Forget(key)
		return nil
	}
	m, err := registry.MetadataOf(s)
	if err != nil {
		c.Logger.Warn("a service is no application of dubbo, though it has annotations of one", "service", key.String(), "error", err,
			"hint", "kubectl annotate --overwrite it")
		return nil
	}
	if m == nil {
		return nil
	}
	return c.write(ctx, s.Namespace, m, "of service "+key.String())
}

// write the metadata of a revision, and then the mappings of its interfaces: who finds the application
// by them finds its metadata.
func (c *Controller) write(ctx context.Context, namespace string, m *registry.ApplicationMetadata, from string) error {
	content, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("metadata of application %s: %w", m.Application, err)
	}
	user := registry.User{Admin: true}
	key := registry.ConfigKey{Namespace: namespace, Group: m.Revision, DataID: m.Application}
	err = c.configs.Put(ctx, user, key, func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
		if exists && !slices.Contains(spec.Tags, registry.TagMetadata) {
			return nil // a provider has published it
		}
		spec.Content, spec.Type, spec.Application = string(content), "json", m.Application
		spec.Description, spec.Tags = "metadata "+from, []string{registry.TagMetadata}
		return nil
	})
	if err != nil {
		return err
	}
	return c.writeMappings(ctx, namespace, m.Interfaces(), m.Application)
}

// writeMappings adds an application to the mappings of interfaces.
func (c *Controller) writeMappings(ctx context.Context, namespace string, interfaces []string, application string) error {
	for _, name := range interfaces {
		key := registry.ConfigKey{Namespace: namespace, Group: groupMapping, DataID: name}
		err := c.configs.Put(ctx, registry.User{Admin: true}, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = registry.MergeConfig(key, spec.Content, application)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

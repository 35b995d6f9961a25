package dubbo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
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

// Tag is on the entries of metadata that this package writes.
const Tag = "dubbo-metadata"

// Config of a Controller. Client and Catalog are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	Clock   clock.WithTicker // nil: the real one
	Logger  *slog.Logger     // nil: discard
}

// Controller writes the entries. One runs at a time. Make it with New.
type Controller struct {
	Config
	configs  *registry.Configs
	services *loop.Loop
	// instances are asked for the metadata of their revisions; asked are those that are at present.
	instances *loop.Loop
	asked     sync.Map // of registry.ConfigKey
	// offers are those of other zones.
	offers *loop.Loop
}

// patience is how long a provider has to answer.
const patience = 5 * time.Second

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	out := &Controller{Config: c, configs: registry.NewConfigs(c.Client, c.Catalog, c.Logger)}
	out.services = loop.New(loop.Config{What: "service of dubbo", Sync: out.syncService, Window: -1, Clock: c.Clock, Logger: c.Logger})
	out.instances = loop.New(loop.Config{What: "instance of dubbo", Sync: out.syncInstance, Window: -1, Clock: c.Clock, Logger: c.Logger})
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
		if err := c.instances.Run(following, c.Catalog, c.dispatchInstances, catalog.Dataplanes); err != nil {
			c.Logger.Error("follow instances", "error", err)
		}
	})
	running.Go(func() {
		if err := c.offers.Run(following, c.Catalog, c.dispatchOffers, catalog.ServiceExports, catalog.Namespaces); err != nil {
			c.Logger.Error("follow what other zones offer", "error", err)
		}
	})
	running.Go(func() { c.collect(following) })
	defer running.Wait()
	defer stop()
	return c.services.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.RegistryConfigs)
}

// dispatchInstances queues the instances that are new, or of another revision.
func (c *Controller) dispatchInstances(d catalog.Delta) {
	for _, change := range d.Dataplanes {
		if registry.Registered(change.New) && (change.Old == nil ||
			change.Old.Annotations[registry.AnnotationInstance] != change.New.Annotations[registry.AnnotationInstance]) {
			c.instances.Add(change.Key)
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
	at, ok := endpointOf(in)
	if !ok || revision == "" || revision == "0" {
		return nil
	}
	entry := registry.ConfigKey{Namespace: key.Namespace, Group: revision, DataID: in.Service.Name}
	if c.configs.Get(entry) != nil {
		return nil
	}
	if _, busy := c.asked.LoadOrStore(entry, struct{}{}); busy {
		c.instances.AddAfter(key, time.Second) // another instance of the revision is asked
		return nil
	}
	defer c.asked.Delete(entry)
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := fetch(asking, at, in.Service.Name, revision)
	if err != nil {
		return fmt.Errorf("fetch metadata of revision %.40s of application %s from %s: %w", revision, in.Service.Name, at, err)
	}
	return c.write(ctx, key.Namespace, m, "of a provider")
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
		if exists && !slices.Contains(spec.Tags, Tag) {
			return nil // a provider has published it
		}
		spec.Content, spec.Type, spec.Application = string(content), "json", m.Application
		spec.Description, spec.Tags = "metadata "+from, []string{Tag}
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

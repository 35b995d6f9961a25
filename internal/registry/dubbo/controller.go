package dubbo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

// Tag is on the entries of metadata that this package writes, which it removes when nothing names them
// for longer than Keep.
const Tag = "dubbo-metadata"

// Keep is how long the metadata of a revision stay after the last instance of it has gone.
const Keep = time.Hour

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
}

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
	defer running.Wait()
	defer stop()
	return c.services.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.RegistryConfigs)
}

// dispatch queues the Services whose entries may not be what they should be.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Services {
		if change.New != nil && change.New.Annotations[registry.AnnotationInterface] != "" {
			c.services.Add(change.Key)
		}
	}
	for _, change := range d.RegistryConfigs {
		if change.Old == nil {
			continue
		}
		for key, s := range d.After.Services.All() { // an entry of one of them may be gone
			if s.Namespace == change.Key.Namespace && s.Annotations[registry.AnnotationInterface] != "" {
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
	if o := c.configs.Get(key); o == nil || o.Spec.Content != string(content) {
		err := c.configs.Put(ctx, user, key, func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
			if exists && len(spec.Tags) == 0 {
				return nil // a provider has published it
			}
			spec.Content, spec.Type, spec.Application = string(content), "json", m.Application
			spec.Description, spec.Tags = "metadata "+from, []string{Tag}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, name := range m.Interfaces() {
		key := registry.ConfigKey{Namespace: namespace, Group: groupMapping, DataID: name}
		before := ""
		if o := c.configs.Get(key); o != nil {
			before = o.Spec.Content
		}
		if registry.MergeConfig(key, before, m.Application) == before {
			continue
		}
		err := c.configs.Put(ctx, user, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = registry.MergeConfig(key, spec.Content, m.Application)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

package dubbo

import (
	"cmp"
	"context"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// offeredBy is the entry of the metadata that another zone offers; ok is false if it offers none.
func offeredBy(e *mcs.ServiceExport) (key registry.ConfigKey, ok bool) {
	if e == nil || e.Labels[meshv1alpha1.LabelZone] == "" || e.Status.Available == nil ||
		e.Status.Available.Registry == nil || e.Status.Available.Registry.Dubbo == nil {
		return key, false
	}
	r, of := e.Status.Available.Registry, catalog.ExportedService(e)
	name := registry.ParseGrouped(of.Namespace, cmp.Or(r.Service, of.Name))
	return registry.ConfigKey{Namespace: of.Namespace, Group: r.Dubbo.Revision, DataID: name.Name}, true
}

// dispatchOffers queues the exports of other zones whose metadata are others than before.
func (c *Controller) dispatchOffers(d catalog.Delta) {
	for _, change := range d.ServiceExports {
		now, ok := offeredBy(change.New)
		if before, had := offeredBy(change.Old); ok && (!had || before != now) {
			c.offers.Add(change.Key)
		}
	}
	for _, change := range d.Namespaces {
		if change.Old != nil || change.New == nil {
			continue
		}
		for key, e := range d.After.ServiceExports.All() { // they waited for it
			if entry, ok := offeredBy(e); ok && entry.Namespace == change.Key.Name {
				c.offers.Add(key)
			}
		}
	}
}

// syncOffer writes the metadata that another zone offers, and the mappings to them. The providers' ports for
// metadata are not reached from here.
func (c *Controller) syncOffer(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	e, _ := s.ServiceExports.Get(key)
	entry, ok := offeredBy(e)
	if !ok {
		c.offers.Forget(key)
		return nil
	}
	if n, ok := s.Namespaces.Get(resource.Key{Name: entry.Namespace}); !ok || n.DeletionTimestamp != nil {
		return nil
	}
	zone := e.Labels[meshv1alpha1.LabelZone]
	content, m, err := registry.OfferedMetadata(entry.DataID, e.Status.Available.Registry.Dubbo)
	if err != nil {
		c.Logger.Warn("metadata of another zone are not used", "zone", zone, "error", err)
		return nil
	}
	user := registry.User{Admin: true}
	err = c.configs.Put(ctx, user, entry, func(spec *meshv1alpha1.RegistryConfigSpec, exists bool) error {
		if exists && !slices.Contains(spec.Tags, registry.TagMetadata) {
			return nil // a provider has published it
		}
		spec.Content, spec.Type, spec.Application = content, "json", entry.DataID
		spec.Description, spec.Tags = "metadata of zone "+zone, []string{registry.TagMetadata}
		return nil
	})
	if err != nil {
		return err
	}
	return c.writeMappings(ctx, entry.Namespace, m.Interfaces(), entry.DataID)
}

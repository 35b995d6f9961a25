package registry

import (
	"context"
	"slices"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// TagMetadata is on the entries of metadata of Dubbo that are deleted when nothing has named them for a while
// (package registry/dubbo).
const TagMetadata = "dubbo-metadata"

// Withdraw deletes an entry for a client. What instances that are there still need of Dubbo stays, and kept is
// true: the metadata of their revision, and the mappings to their application. Replicas of a provider share both,
// and the client of one that ends deletes them. Metadata that stay are deleted when nothing names them. Errors are
// those of Configs.Delete.
func (c *Core) Withdraw(ctx context.Context, user User, key ConfigKey) (kept bool, err error) {
	o := c.Configs.Get(key)
	if o == nil || !user.May(key.Namespace) {
		return false, c.Configs.Delete(ctx, user, key)
	}
	if key.Group == groupMapping {
		names := strings.Split(o.Spec.Content, ",")
		if c.Index.has(key.Namespace, func(s Service, _ *Instance) bool { return slices.Contains(names, s.Name) }) {
			return true, nil
		}
	}
	if !c.Index.has(key.Namespace, func(s Service, in *Instance) bool {
		return s.Name == key.DataID && in.Metadata[KeyRevision] == key.Group
	}) &&
		!c.Index.annotated(key) {
		return false, c.Configs.Delete(ctx, user, key)
	}
	return true, c.Configs.Put(ctx, user, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
		if !slices.Contains(spec.Tags, TagMetadata) {
			spec.Tags = append(spec.Tags, TagMetadata)
		}
		return nil
	})
}

// has reports whether a registered instance of a namespace matches.
func (x *Index) has(namespace string, match func(Service, *Instance) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s, e := range x.services {
		if s.Namespace != namespace {
			continue
		}
		for _, in := range e.own {
			if match(s, in) {
				return true
			}
		}
	}
	return false
}

// annotated reports whether an entry is the metadata of a Service of Kubernetes.
func (x *Index) annotated(key ConfigKey) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.services[Service{Namespace: key.Namespace, Name: key.DataID}]
	if e == nil {
		return false
	}
	for from := range e.from {
		if s, ok := x.snapshot.Services.Get(from); ok {
			if m, err := MetadataOf(s); err == nil && m != nil && m.Revision == key.Group {
				return true
			}
		}
	}
	return false
}

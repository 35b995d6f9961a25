package app

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// meshExports follows which meshes have a Service of which others exported to them: those exchange
// roots. Which servers admit their clients follows from the Services, in internal/xds/build.
type meshExports struct {
	tables *catalog.Catalog
	// export takes the meshes to which each mesh is exported, sorted, after each change.
	export func(map[string][]string)

	services map[catalog.Key]*corev1.Service // those with the annotation
}

// follow until ctx ends.
func (e *meshExports) follow(ctx context.Context) error {
	sub := e.tables.Subscribe(catalog.Services, catalog.Namespaces, catalog.Meshes)
	defer sub.Close()
	e.services = map[catalog.Key]*corev1.Service{}
	for {
		d, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if e.concerned(&d) {
			e.export(e.meshes(d.After))
		}
	}
}

// concerned reports whether a delta may change what meshes export, and notes its Services.
func (e *meshExports) concerned(d *catalog.Delta) bool {
	changed := false
	for _, c := range d.Services {
		was, had := e.services[c.Key]
		switch is := c.New; {
		case is != nil && is.Annotations[meshv1alpha1.AnnotationToMeshes] != "":
			changed = changed || !had || was.Annotations[meshv1alpha1.AnnotationToMeshes] != is.Annotations[meshv1alpha1.AnnotationToMeshes]
			e.services[c.Key] = is
		case had:
			changed = true
			delete(e.services, c.Key)
		}
	}
	return changed || len(e.services) > 0 && len(d.Namespaces)+len(d.Meshes) > 0
}

func (e *meshExports) meshes(tables *catalog.Snapshot) map[string][]string {
	to := map[string]map[string]struct{}{}
	for key, service := range e.services {
		of := meshv1alpha1.DefaultMesh
		if n, ok := tables.Namespaces.Get(catalog.Key{Name: key.Namespace}); ok {
			of = kind.MeshOf(n)
		}
		if to[of] == nil {
			to[of] = map[string]struct{}{}
		}
		names, all := kube.ExportsOf(service, of)
		for _, name := range names {
			to[of][name] = struct{}{}
		}
		for mesh := range tables.Meshes.All() {
			if all && mesh.Name != of {
				to[of][mesh.Name] = struct{}{}
			}
		}
	}
	out := make(map[string][]string, len(to))
	for of, names := range to {
		out[of] = slices.Sorted(maps.Keys(names))
	}
	return out
}

package tagged

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Config of a Controller. Client and Catalog are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// Window as in loop.Config.
	Window time.Duration
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: discard
}

// Controller keeps the Services of tags, and their namespaces. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Controller{Config: c}
	t.loop = loop.New(loop.Config{What: "service tag", Sync: t.sync, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	return t
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch,
		catalog.Dataplanes, catalog.Pods, catalog.Services, catalog.Namespaces, catalog.ServiceExports)
}

// Keys of the queue are those of tags, mesh and hostname, and of the namespaces of meshes,
// without a hostname.
func keyOf(t backend.Tag) resource.Key { return resource.Key{Namespace: t.Mesh, Name: t.Host} }

// dispatch queues the tags and meshes that a delta concerns.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Dataplanes {
		if backend.DataplaneMatters(change.Old, change.New) {
			c.add(backend.TagsOfDataplane(d, change))
		}
	}
	for _, change := range d.Pods {
		if backend.PodMatters(change.Old, change.New) {
			c.add(backend.TagsOfPod(d, change))
		}
	}
	for _, change := range d.Services {
		c.add(backend.TagsOfSelected(d, change))
		for _, s := range []*corev1.Service{change.Old, change.New} {
			if host, ok := servicetag.HostOf(s); ok && owned(s.Labels) {
				c.loop.Add(resource.Key{Namespace: s.Labels[meshv1alpha1.LabelMesh], Name: host})
				c.loop.Add(resource.Key{Namespace: s.Labels[meshv1alpha1.LabelMesh]})
			}
		}
	}
	for _, change := range d.ServiceExports {
		for _, e := range []*mcs.ServiceExport{change.Old, change.New} {
			if e != nil && e.Status.Available != nil && servicetag.InNamespace(catalog.ExportedService(e).Namespace) {
				c.loop.Add(resource.Key{Namespace: e.Status.Available.Mesh})
			}
		}
	}
	if len(d.Namespaces) > 0 && d.Before.Namespaces.Len() > 0 {
		c.namespaces(d)
	}
}

func (c *Controller) add(tags []backend.Tag) {
	for _, t := range tags {
		c.loop.Add(keyOf(t))
	}
}

// namespaces queues all tags of the namespaces that got another mesh, before and now, and all
// there are if one of ours changed: where it went, its Services are gone.
func (c *Controller) namespaces(d catalog.Delta) {
	all := false
	changed := map[string]bool{}
	for _, change := range d.Namespaces {
		if meshOf(change.Old) != meshOf(change.New) {
			changed[change.Key.Name] = true
		}
		if servicetag.InNamespace(change.Key.Name) {
			all = true
			for _, n := range []*corev1.Namespace{change.Old, change.New} {
				c.loop.Add(resource.Key{Namespace: meshOf(n)})
			}
		}
	}
	if !all && len(changed) == 0 {
		return
	}
	for _, s := range []*catalog.Snapshot{d.Before, d.After} {
		at := catalog.Delta{After: s}
		for key, dp := range s.Dataplanes.All() {
			if all || changed[key.Namespace] {
				c.add(backend.TagsOfDataplane(at, catalog.Change[*meshv1alpha1.Dataplane]{Key: key, New: dp}))
			}
		}
		for key, pod := range s.Pods.All() {
			if all || changed[key.Namespace] {
				c.add(backend.TagsOfPod(at, catalog.Change[*corev1.Pod]{Key: key, New: pod}))
			}
		}
	}
}

func meshOf(n *corev1.Namespace) string {
	if n == nil {
		return meshv1alpha1.DefaultMesh
	}
	return kind.MeshOf(n)
}

// sync brings the Service of one tag, or the namespace of one mesh, to what it should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	if key.Name == "" {
		return c.syncNamespace(ctx, s, key.Namespace)
	}
	in := c.input(s, backend.Tag{Mesh: key.Namespace, Host: key.Name})
	what := fmt.Sprintf("service of tag %s of mesh %s", key.Name, key.Namespace)
	if in.Service != nil && !owned(in.Service.Labels) {
		c.Logger.Warn("a Service has the name of that of a service tag, which has none therefore",
			"service", resource.KeyOf(in.Service), "tag", key.Name, "mesh", key.Namespace, "hint", "delete the Service")
		return nil
	}
	service, after := Reconcile(in)
	if after > 0 {
		c.loop.AddAfter(key, after)
	}
	var err error
	switch {
	case service == nil && in.Service == nil:
		c.loop.Forget(key)
	case service == nil:
		c.loop.Writes(key)
		err = c.Client.Delete(ctx, kind.Service, resource.KeyOf(in.Service),
			resource.Preconditions{UID: in.Service.UID, ResourceVersion: in.Service.ResourceVersion})
	case in.Service == nil:
		if ok, err := c.ensureNamespace(ctx, s, key.Namespace); !ok {
			return err
		}
		c.loop.Writes(key)
		_, err = c.Client.Create(ctx, kind.Service, service)
	case service != in.Service:
		c.loop.Writes(key)
		_, err = c.Client.Update(ctx, kind.Service, service)
	}
	return loop.Outcome("write "+what, err)
}

func (c *Controller) input(s *catalog.Snapshot, tag backend.Tag) Input {
	in := Input{Tag: tag, Now: c.Clock.Now()}
	in.Service, _ = s.Services.Get(resource.Key{Namespace: servicetag.Namespace(tag.Mesh), Name: servicetag.ServiceName(tag.Host)})
	pods, dataplanes := backend.Tagged(s, tag.Mesh, tag.Host)
	for _, pod := range pods {
		if _, ok := backend.OfPod(pod, ""); ok {
			in.Workloads = append(in.Workloads, servicetag.PodInbounds(pod, tag.Host))
		}
	}
	for _, dp := range dataplanes {
		in.Workloads = append(in.Workloads, servicetag.DataplaneInbounds(dp, tag.Host))
	}
	return in
}

// ensureNamespace creates the namespace of a mesh if it is missing. ok is false if nothing can
// be created in it, now or at all.
func (c *Controller) ensureNamespace(ctx context.Context, s *catalog.Snapshot, mesh string) (ok bool, err error) {
	name := servicetag.Namespace(mesh)
	n, have := s.Namespaces.Get(catalog.Key{Name: name})
	switch {
	case have && !owned(n.Labels), have && kind.MeshOf(n) != mesh:
		c.Logger.Warn("a namespace has the name of that of the service tags of a mesh, and another mesh or owner: they have no Services",
			"namespace", name, "mesh", mesh, "hint", "delete the namespace")
		return false, nil
	case have:
		return n.DeletionTimestamp.IsZero(), nil
	}
	_, err = c.Client.Create(ctx, kind.Namespace, namespaceFor(mesh))
	if err == nil || apierrors.IsAlreadyExists(err) {
		return false, loop.ErrStale // slices are written once the tables show it
	}
	return false, fmt.Errorf("create namespace %s: %w", name, err)
}

// syncNamespace creates the namespace of a mesh that other zones export tags of, as their
// imports need it, and deletes one that nothing needs: a mesh with a namespace cannot be
// deleted.
func (c *Controller) syncNamespace(ctx context.Context, s *catalog.Snapshot, mesh string) error {
	name := servicetag.Namespace(mesh)
	n, have := s.Namespaces.Get(catalog.Key{Name: name})
	switch needed := needed(s, mesh, name); {
	case needed && !have:
		_, err := c.ensureNamespace(ctx, s, mesh)
		return err
	case needed || !have || !owned(n.Labels) || !n.DeletionTimestamp.IsZero():
		return nil
	}
	c.loop.Writes(resource.Key{Namespace: mesh})
	err := c.Client.Delete(ctx, kind.Namespace, resource.Key{Name: name}, resource.Preconditions{UID: n.UID, ResourceVersion: n.ResourceVersion})
	return loop.Outcome("delete namespace "+name, err)
}

// needed reports whether there are Services or exports in the namespace of a mesh, exports of
// other zones that are imported there, or workloads with a tag.
func needed(s *catalog.Snapshot, mesh, namespace string) bool {
	for range s.Services.Namespace(namespace) {
		return true
	}
	for range s.ServiceExports.Namespace(namespace) {
		return true
	}
	for _, e := range s.ServiceExports.All() {
		if a := e.Status.Available; a != nil && a.Mesh == mesh && catalog.ExportedService(e).Namespace == namespace {
			return true
		}
	}
	for key, dp := range s.Dataplanes.All() {
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
		if len(servicetag.OfDataplane(dp)) > 0 && kind.DataplaneMesh(dp, namespace) == mesh {
			return true
		}
	}
	for key, pod := range s.Pods.All() {
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
		if len(servicetag.OfPod(pod)) > 0 && kind.PodMesh(pod, namespace) == mesh {
			return true
		}
	}
	return false
}

package apiserver

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Client reads and writes in process, through the same registries as HTTP
// requests, without serialization on the way and without authorization: its
// user is the system's own. Writes do not track field ownership; an object
// written without managedFields keeps those it has. Admission is of requests over HTTP: a registry
// that is given nothing to admit an object by copies none for it.
type Client struct {
	server *Server
	user   user.Info
}

var _ resource.Client = (*Client)(nil)

// Client returns a client that acts as a named system user. It may be used as
// soon as the server runs.
func (s *Server) Client(name string) *Client {
	return &Client{server: s, user: &user.DefaultInfo{
		Name:   name,
		Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}
}

func (c *Client) context(ctx context.Context, s *served, namespace string) context.Context {
	ctx = request.WithNamespace(request.WithUser(ctx, c.user), namespace)
	if s.alias { // selects the API version of the Event for the registry
		ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
			IsResourceRequest: true, APIGroup: s.kind.GVK.Group, APIVersion: s.kind.GVK.Version, Resource: s.kind.Resource,
		})
	}
	return ctx
}

// servedOf finds the registry for a kind.
func (c *Client) servedOf(kind *resource.Descriptor) (*served, error) {
	if s, ok := c.server.kinds[kind.GVK]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("kind %s is not served", kind.GVK)
}

// writable finds the registry for a kind, and checks that an object is of its Go
// type: registries panic at others.
func (c *Client) writable(kind *resource.Descriptor, obj resource.Object) (*served, error) {
	s, err := c.servedOf(kind)
	if err != nil {
		return nil, err
	}
	if reflect.TypeOf(obj) != s.goType {
		return nil, fmt.Errorf("%s %s: the object is a %T", kind.Singular, resource.KeyOf(obj), obj)
	}
	return s, nil
}

// Get implements resource.Client.
func (c *Client) Get(ctx context.Context, kind *resource.Descriptor, key resource.Key) (resource.Object, error) {
	s, err := c.servedOf(kind)
	if err != nil {
		return nil, err
	}
	got, err := s.front.Get(c.context(ctx, s, key.Namespace), key.Name, &metav1.GetOptions{})
	return s.own(got, err)
}

// List implements resource.Client.
func (c *Client) List(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	s, err := c.servedOf(kind)
	if err != nil {
		return nil, "", err
	}
	list, err := s.front.List(c.context(ctx, s, opts.Namespace),
		&metainternalversion.ListOptions{LabelSelector: opts.Labels, FieldSelector: opts.Fields})
	if err != nil {
		return nil, "", err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	out := make([]resource.Object, 0, meta.LenList(list))
	err = meta.EachListItem(list, func(item runtime.Object) error {
		// Items share memory with the watch cache, and with the list.
		if opts.Shared {
			item = s.sharedItem(item)
		} else {
			item = item.DeepCopyObject()
		}
		obj, err := s.own(item, nil)
		out = append(out, obj)
		return err
	})
	return out, m.GetResourceVersion(), err
}

// Watch implements resource.Client. Events come from the watch cache.
func (c *Client) Watch(ctx context.Context, kind *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	s, err := c.servedOf(kind)
	if err != nil {
		return nil, err
	}
	list := &metainternalversion.ListOptions{
		LabelSelector:       opts.Labels,
		FieldSelector:       opts.Fields,
		ResourceVersion:     opts.ResourceVersion,
		AllowWatchBookmarks: true,
		Watch:               true,
	}
	if opts.ResourceVersion == "" {
		initial := true
		list.SendInitialEvents = &initial
		list.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w, err := s.front.Watch(c.context(ctx, s, opts.Namespace), list)
	if err != nil {
		return nil, err
	}
	return resource.MapWatch(w, func(in watch.Event) (watch.Event, bool) {
		if opts.Shared && (in.Type == watch.Added || in.Type == watch.Modified) {
			if kept := s.kept(in.Object); kept != nil {
				in.Object = kept
			}
		}
		// The cache wraps what it sends to several watchers.
		if shared, ok := in.Object.(runtime.CacheableObject); ok {
			in.Object = shared.GetObject()
		}
		if _, isObject := in.Object.(resource.Object); isObject {
			obj, err := s.own(in.Object, nil)
			if err != nil {
				return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}, true
			}
			in.Object = obj
		}
		return in, true
	}), nil
}

// kept is the watch cache's own object of the same version; nil: it has none.
func (s *served) kept(obj runtime.Object) runtime.Object {
	m, err := meta.Accessor(obj)
	if err != nil || s.alias || s.storage == nil {
		return nil
	}
	return s.storage.Kept(m)
}

// sharedItem is an item of a list without the memory of the list.
func (s *served) sharedItem(item runtime.Object) runtime.Object {
	if kept := s.kept(item); kept != nil {
		return kept
	}
	return shallow(item)
}

// shallow copies an object, but nothing that it refers to.
func shallow(obj runtime.Object) runtime.Object {
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	s, err := c.writable(kind, obj)
	if err != nil {
		return nil, err
	}
	in, err := s.stored(obj)
	if err != nil {
		return nil, err
	}
	out, err := s.front.Create(c.context(ctx, s, obj.GetNamespace()), in, nil, &metav1.CreateOptions{})
	return s.own(out, err)
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	s, err := c.writable(kind, obj)
	if err != nil {
		return nil, err
	}
	return c.update(ctx, s, s.front, obj)
}

// Try does all that Create does, or Update of an object that has a resource version, and
// stores nothing: its error is the one that they would return.
func (c *Client) Try(ctx context.Context, kind *resource.Descriptor, obj resource.Object) error {
	s, err := c.writable(kind, obj)
	if err != nil {
		return err
	}
	in, err := s.stored(obj)
	if err != nil {
		return err
	}
	ctx, dryRun := c.context(ctx, s, obj.GetNamespace()), []string{metav1.DryRunAll}
	if obj.GetResourceVersion() == "" {
		_, err = s.front.Create(ctx, in, rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	_, _, err = s.front.Update(context.WithValue(ctx, updateOnly{}, true), obj.GetName(), rest.DefaultUpdatedObjectInfo(in), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc,
		false, &metav1.UpdateOptions{DryRun: dryRun})
	return err
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	s, err := c.writable(kind, obj)
	if err != nil {
		return nil, err
	}
	if s.status == nil {
		return nil, fmt.Errorf("kind %s has no status", s.kind.GVK)
	}
	return c.update(ctx, s, s.status, obj)
}

// FinalizeNamespace replaces spec.finalizers of a Namespace; with the last one
// gone, a namespace that is being deleted goes too.
func (c *Client) FinalizeNamespace(ctx context.Context, namespace *corev1.Namespace) error {
	s, err := c.servedOf(kind.Namespace)
	if err == nil && c.server.finalize == nil {
		err = fmt.Errorf("kind %s is served without finalizers", kind.Namespace.GVK)
	}
	if err != nil {
		return err
	}
	_, err = c.update(ctx, s, c.server.finalize, namespace)
	return err
}

func (c *Client) update(ctx context.Context, s *served, to rest.Updater, obj resource.Object) (resource.Object, error) {
	in, err := s.stored(obj)
	if err != nil {
		return nil, err
	}
	info := rest.DefaultUpdatedObjectInfo(in, func(_ context.Context, next, prev runtime.Object) (runtime.Object, error) {
		if n := next.(resource.Object); len(n.GetManagedFields()) == 0 {
			var kept []metav1.ManagedFieldsEntry
			for _, f := range prev.(resource.Object).GetManagedFields() {
				kept = append(kept, *f.DeepCopy())
			}
			n.SetManagedFields(kept)
		}
		return next, nil
	})
	ctx = context.WithValue(c.context(ctx, s, obj.GetNamespace()), updateOnly{}, true)
	out, _, err := to.Update(ctx, obj.GetName(), info, nil, nil, false, &metav1.UpdateOptions{})
	return s.own(out, err)
}

// Delete implements resource.Client. Objects with a grace period are only marked
// and go when it is over.
func (c *Client) Delete(ctx context.Context, kind *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	options := &metav1.DeleteOptions{}
	if pre.Now {
		options = metav1.NewDeleteOptions(0)
	}
	if pre.Propagation != "" {
		options.PropagationPolicy = &pre.Propagation
	}
	s, err := c.servedOf(kind)
	if err != nil {
		return err
	}
	if pre.UID != "" || pre.ResourceVersion != "" {
		options.Preconditions = preconditions(pre)
	}
	_, _, err = s.front.Delete(c.context(ctx, s, key.Namespace), key.Name, rest.ValidateAllObjectFunc, options)
	return err
}

func preconditions(pre resource.Preconditions) *metav1.Preconditions {
	out := &metav1.Preconditions{}
	if pre.UID != "" {
		out.UID = &pre.UID
	}
	if pre.ResourceVersion != "" {
		out.ResourceVersion = &pre.ResourceVersion
	}
	return out
}

// stored turns a caller's object into one for the registry: a copy, of the type
// that is stored, with defaults.
func (s *served) stored(obj resource.Object) (runtime.Object, error) {
	in := obj.DeepCopyObject()
	s.schemes.serving.Default(in)
	if !s.alias {
		return in, nil
	}
	out := s.registry.New()
	if err := s.schemes.serving.Convert(in, out, nil); err != nil {
		return nil, fmt.Errorf("convert %T: %w", obj, err)
	}
	return out, nil
}

// own converts an object returned by the registry into the kind of the request.
// It passes an error on.
func (s *served) own(obj runtime.Object, err error) (resource.Object, error) {
	if err != nil {
		return nil, err
	}
	if s.alias {
		out := s.kind.New()
		if err := s.schemes.serving.Convert(obj, out, nil); err != nil {
			return nil, fmt.Errorf("convert %T: %w", obj, err)
		}
		return out, nil
	}
	out, ok := obj.(resource.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object of kind %s", obj, s.kind.GVK)
	}
	return out, nil
}

package fromkube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
)

// store is what a reflector writes to: it translates and passes on, and keeps
// no objects.
type store[T any] struct {
	feed *Feed
	what string
	put  func(*node.Update, T)
	drop func(*node.Update, T)
	// replaced is called with all there is, and drops what is not in it.
	replaced func(*node.Update, []T)
}

func (s *store[T]) Add(obj any) error { return s.one(obj, s.put) }

func (s *store[T]) Update(obj any) error { return s.one(obj, s.put) }

func (s *store[T]) Delete(obj any) error { return s.one(obj, s.drop) }

func (s *store[T]) one(obj any, do func(*node.Update, T)) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("%s: the API sent a %T", s.what, obj)
	}
	s.feed.change(func(u *node.Update) { do(u, o) })
	return nil
}

func (s *store[T]) Replace(list []any, _ string) error {
	objects := make([]T, 0, len(list))
	for _, obj := range list {
		o, ok := obj.(T)
		if !ok {
			return fmt.Errorf("%s: the API sent a %T", s.what, obj)
		}
		objects = append(objects, o)
	}
	s.feed.change(func(u *node.Update) {
		s.feed.seen[s.what] = true
		s.replaced(u, objects)
	})
	return nil
}

func (s *store[T]) Resync() error { return nil }

func set[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

func (f *Feed) putService(u *node.Update, s *corev1.Service) {
	name := proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}
	f.services[name] = struct{}{}
	service, proxied := kube.ServiceOf(s)
	if !proxied {
		service = nil
	}
	set(&u.Services, name, service)
	if f.cfg.Names {
		n, named := kube.NameOf(s)
		if !named {
			n = nil
		}
		set(&u.Names, name, n)
	}
}

func (f *Feed) dropService(u *node.Update, s *corev1.Service) {
	f.forgetService(u, proxy.ServiceName{Namespace: s.Namespace, Name: s.Name})
}

func (f *Feed) forgetService(u *node.Update, name proxy.ServiceName) {
	delete(f.services, name)
	set(&u.Services, name, nil)
	if f.cfg.Names {
		set(&u.Names, name, nil)
	}
}

func (f *Feed) replacedServices(u *node.Update, all []*corev1.Service) {
	gone := f.services
	f.services = make(map[proxy.ServiceName]struct{}, len(all))
	for _, s := range all {
		f.putService(u, s)
		delete(gone, proxy.ServiceName{Namespace: s.Namespace, Name: s.Name})
	}
	for name := range gone {
		f.forgetService(u, name)
	}
}

func (f *Feed) putSlice(u *node.Update, s *discoveryv1.EndpointSlice) {
	name := proxy.SliceName{Namespace: s.Namespace, Name: s.Name}
	f.slices[name] = struct{}{}
	slice, proxied := kube.SliceOf(s)
	if !proxied {
		slice = nil
	}
	set(&u.Slices, name, slice)
	if f.cfg.Names {
		var names *records.Slice
		if named(s) {
			names = kube.NameSliceOf(s, nil)
		}
		set(&u.NameSlices, name, names)
	}
}

// managedBySlices is the controller that marks the slices of headless Services;
// others' may belong to one without saying so.
const managedBySlices = "endpointslice-controller.k8s.io"

// named reports whether the endpoints of a slice may have names of their own.
func named(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return s.Labels[discoveryv1.LabelServiceName] != "" && (headless || s.Labels[discoveryv1.LabelManagedBy] != managedBySlices)
}

func (f *Feed) dropSlice(u *node.Update, s *discoveryv1.EndpointSlice) {
	f.forgetSlice(u, proxy.SliceName{Namespace: s.Namespace, Name: s.Name})
}

func (f *Feed) forgetSlice(u *node.Update, name proxy.SliceName) {
	delete(f.slices, name)
	set(&u.Slices, name, nil)
	if f.cfg.Names {
		set(&u.NameSlices, name, nil)
	}
}

func (f *Feed) replacedSlices(u *node.Update, all []*discoveryv1.EndpointSlice) {
	gone := f.slices
	f.slices = make(map[proxy.SliceName]struct{}, len(all))
	for _, s := range all {
		f.putSlice(u, s)
		delete(gone, proxy.SliceName{Namespace: s.Namespace, Name: s.Name})
	}
	for name := range gone {
		f.forgetSlice(u, name)
	}
}

// nodeStore takes the agent's own Node.
type nodeStore struct{ feed *Feed }

func (s *nodeStore) Add(obj any) error    { return s.observe(obj) }
func (s *nodeStore) Update(obj any) error { return s.observe(obj) }
func (s *nodeStore) Delete(any) error     { return s.observe(nil) }
func (s *nodeStore) Resync() error        { return nil }

func (s *nodeStore) Replace(list []any, _ string) error {
	var err error
	if len(list) > 0 {
		err = s.observe(list[0])
	} else {
		err = s.observe(nil)
	}
	s.feed.change(func(*node.Update) { s.feed.seen["nodes"] = true })
	return err
}

func (s *nodeStore) observe(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok && obj != nil {
		return fmt.Errorf("nodes: the API sent a %T", obj)
	}
	if n != nil && n.Name != s.feed.cfg.Node {
		return nil // an API that knows no field selectors
	}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.cfg.OnNode(n)
	return nil
}

// noting notes errors for status; the reflector only logs them.
func (f *Feed) noting(lw *cache.ListWatch) *cache.ListWatch {
	list, watching := lw.ListWithContextFunc, lw.WatchFuncWithContext
	lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		obj, err := list(ctx, o)
		if err != nil && ctx.Err() == nil {
			f.fail(err)
		}
		return obj, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := watching(ctx, o)
		if err != nil && ctx.Err() == nil {
			f.fail(err)
		}
		return w, err
	}
	return lw
}

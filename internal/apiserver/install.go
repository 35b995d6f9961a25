package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// served is one kind in one version.
type served struct {
	kind     *resource.Descriptor
	schemes  *schemes
	registry *registry
	// front is the registry with the behaviour of its kind.
	front front
	// rest is what HTTP sees of front.
	rest   rest.Storage
	status *subresource
	// storage of the kind, with what its watch cache has.
	storage *kvstorage.Storage
	// alias: stored as another type.
	alias bool
	// goType of the kind's objects.
	goType reflect.Type
}

// build makes the registries and puts them where their URLs are.
func (s *Server) build(schemes *schemes) error {
	byResource := map[schema.GroupResource]*resource.Descriptor{}
	for _, kind := range s.cfg.Kinds {
		byResource[kind.GroupResource()] = kind
	}
	options, err := kvstorage.NewRESTOptions(context.Background(), kvstorage.RESTConfig{
		Store: s.cfg.Store,
		Codec: func(group schema.GroupResource) (runtime.Codec, error) {
			return schemes.storageCodec(byResource[group])
		},
		Transformer: s.cfg.Transformer,
		Uncached: func(group schema.GroupResource) bool {
			return s.cfg.Transformer != nil && s.cfg.Transformer(group) != nil
		},
		CountPeriod: countPeriod,
		Compact:     newCompactor(s.cfg.Kinds).compact,
		Tracer:      s.cfg.Tracer,
	})
	if err != nil {
		return err
	}
	s.options = options
	for _, kind := range s.cfg.Kinds {
		if isEventAlias(kind) {
			continue // after the kind that it is an alias of
		}
		r, err := newRegistry(schemes.serving, options, kind)
		if err != nil {
			return err
		}
		s.generic.RegisterDestroyFunc(r.Destroy)
		s.add(&served{kind: kind, schemes: schemes, registry: r, front: r, rest: r, storage: options.Storage(kind.GroupResource())})
	}
	if err := s.specialize(options); err != nil {
		return err
	}
	s.specializeRanged(schemes)
	// Sub-resources share what their registry has become, so they come last.
	for _, k := range s.kinds {
		strategy := newStrategy(schemes.serving, k.kind)
		if k.kind.Status {
			k.status = newSubresource(k.registry, statusStrategy{strategy})
		}
		if k.kind.GVK == corev1.SchemeGroupVersion.WithKind("Namespace") {
			s.finalize = newSubresource(k.registry, finalizeStrategy{strategy})
		}
	}
	return s.install(schemes)
}

func (s *Server) add(k *served) {
	s.kinds[k.kind.GVK] = k
	k.goType = reflect.TypeOf(k.kind.New())
}

// specialize gives the kinds that need it their own behaviour.
func (s *Server) specialize(options *kvstorage.RESTOptions) error {
	for _, kind := range s.cfg.Kinds {
		if isEventAlias(kind) {
			if err := s.specializeEvents(kind); err != nil {
				return err
			}
		}
	}
	if err := s.specializeServices(options); err != nil {
		return err
	}
	if node := s.kinds[corev1.SchemeGroupVersion.WithKind("Node")]; node != nil && s.cfg.NodeDeletion != nil {
		registry := newNodes(node.registry, s.cfg.NodeDeletion)
		node.front, node.rest = registry, registry
	}
	namespace := s.kinds[corev1.SchemeGroupVersion.WithKind("Namespace")]
	if namespace == nil {
		return nil
	}
	stored, err := options.Resource(namespace.kind.GroupResource())
	if err != nil {
		return err
	}
	registry := newNamespaces(namespace.registry, stored)
	namespace.front, namespace.rest = registry, namespaceREST{registry}
	if err := s.specializeMeshes(options, registry); err != nil {
		return err
	}
	for _, k := range s.kinds { // last: it keeps what others begin creations with
		if k.kind.Namespaced && !k.alias {
			quota, err := s.quotaOf(k, options)
			if err != nil {
				return err
			}
			k.registry.within(registry, quota)
		}
	}
	return nil
}

func (s *Server) specializeMeshes(options *kvstorage.RESTOptions, namespaces *namespaces) error {
	mesh := s.kinds[meshv1alpha1.SchemeGroupVersion.WithKind("Mesh")]
	if mesh == nil {
		return nil
	}
	stored, err := options.Resource(mesh.kind.GroupResource())
	if err != nil {
		return err
	}
	registry := &meshes{registry: mesh.registry, namespaces: namespaces, store: s.cfg.Store, stored: stored}
	mesh.front, mesh.rest = registry, registry
	for name, meshOf := range meshMembers {
		if k := s.kinds[meshv1alpha1.SchemeGroupVersion.WithKind(name)]; k != nil {
			registry.members = append(registry.members, member{k.registry, meshOf})
		}
	}
	registry.follow()
	return nil
}

func (s *Server) specializeEvents(alias *resource.Descriptor) error {
	core := s.kinds[corev1.SchemeGroupVersion.WithKind("Event")]
	if core == nil {
		return fmt.Errorf("kind %s is served only together with %s", alias.GVK, corev1.SchemeGroupVersion.WithKind("Event"))
	}
	strategy := eventStrategy{newStrategy(core.schemes.serving, core.kind), alias}
	core.registry.CreateStrategy, core.registry.UpdateStrategy = strategy, strategy
	s.add(&served{kind: alias, schemes: core.schemes, registry: core.registry, front: core.front, rest: core.rest, alias: true})
	return nil
}

func (s *Server) specializeServices(options *kvstorage.RESTOptions) error {
	service := s.kinds[corev1.SchemeGroupVersion.WithKind("Service")]
	address := s.kinds[networkingv1.SchemeGroupVersion.WithKind("IPAddress")]
	if service == nil || address == nil {
		return nil
	}
	ports, err := ipam.NewPorts(ipam.PortOptions{Range: s.cfg.NodePorts, WholePool: s.cfg.OneNodePortPool})
	if err != nil {
		return err
	}
	stored, err := options.Resource(address.kind.GroupResource())
	if err != nil {
		return err
	}
	s.services = &services{
		registry:    service.registry,
		addresses:   ipam.NewAddresses(ipam.AddressOptions{WholePool: s.cfg.OneAddressPool}),
		ports:       ports,
		store:       s.cfg.Store,
		quota:       s.cfg.Quota,
		ipAddresses: stored,
		prepareIP:   address.prepare,
	}
	if _, ok := s.cfg.Quota[NodePortQuota]; ok {
		service.registry.turns = &turns{}
	}
	s.services.begin()
	service.front, service.rest = s.services, s.services
	return nil
}

// prepare completes an object of the kind as a creation would.
func (k *served) prepare(ctx context.Context, obj *networkingv1.IPAddress) error {
	rest.FillObjectMetaSystemFields(obj)
	k.schemes.serving.Default(obj)
	return rest.BeforeCreate(k.registry.CreateStrategy, ctx, obj)
}

// groups collects what is served under each API group, in the order of kinds.
type groups struct {
	order  []string
	byName map[string]map[string]map[string]rest.Storage // group, version, resource
	kinds  map[string][]*resource.Descriptor
}

func (g *groups) add(gv schema.GroupVersion, resource string, storage rest.Storage) {
	if g.byName[gv.Group] == nil {
		g.byName[gv.Group] = map[string]map[string]rest.Storage{}
		g.order = append(g.order, gv.Group)
	}
	if g.byName[gv.Group][gv.Version] == nil {
		g.byName[gv.Group][gv.Version] = map[string]rest.Storage{}
	}
	g.byName[gv.Group][gv.Version][resource] = storage
}

// install puts the registries where their URLs are.
func (s *Server) install(schemes *schemes) error {
	g := groups{byName: map[string]map[string]map[string]rest.Storage{}, kinds: map[string][]*resource.Descriptor{}}
	for _, kind := range s.cfg.Kinds {
		k, gv := s.kinds[kind.GVK], kind.GVK.GroupVersion()
		g.kinds[gv.Group] = append(g.kinds[gv.Group], kind)
		g.add(gv, kind.Resource, k.rest)
		if k.status != nil {
			g.add(gv, kind.Resource+"/status", k.status)
		}
		if kind.GVK == corev1.SchemeGroupVersion.WithKind("Namespace") {
			g.add(gv, kind.Resource+"/finalize", s.finalize)
		}
	}
	g.add(authenticationv1.SchemeGroupVersion, "selfsubjectreviews", selfSubjectReview())
	g.add(authenticationv1.SchemeGroupVersion, "tokenreviews", tokenReview(s.cfg.Authenticator))
	g.add(authorizationv1.SchemeGroupVersion, "selfsubjectaccessreviews", selfSubjectAccessReview(gate{s.cfg.Authorizer}))
	if s.cfg.Rules != nil {
		g.add(authorizationv1.SchemeGroupVersion, "selfsubjectrulesreviews", selfSubjectRulesReview(s.cfg.Rules))
	}
	g.add(authorizationv1.SchemeGroupVersion, "subjectaccessreviews", subjectAccessReview(gate{s.cfg.Authorizer}))
	g.add(authorizationv1.SchemeGroupVersion, "localsubjectaccessreviews", localSubjectAccessReview(gate{s.cfg.Authorizer}))

	for _, k := range emptyKinds(s.cfg.Kinds) {
		g.add(k.GVK.GroupVersion(), k.Resource, k)
	}

	params := runtime.NewParameterCodec(schemes.serving)
	var named []*genericapiserver.APIGroupInfo
	for _, name := range g.order {
		info := genericapiserver.NewDefaultAPIGroupInfo(name, schemes.serving, params, schemes.codecs)
		info.VersionedResourcesStorageMap = g.byName[name]
		info.NegotiatedSerializer = schemes.negotiated(g.kinds[name])
		if name != "" {
			named = append(named, &info)
		} else if err := s.generic.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
			return err
		}
	}
	if err := s.generic.InstallAPIGroups(named...); err != nil {
		return err
	}
	if s.cfg.Metrics != nil {
		own := prometheus.NewRegistry()
		own.MustRegister(s.limiter)
		if s.services != nil {
			own.MustRegister(rangeUsage{s.services})
		}
		s.generic.Handler.NonGoRestfulMux.Unregister("/metrics")
		all := prometheus.Gatherers{legacyregistry.DefaultGatherer, own, s.cfg.Metrics}
		s.generic.Handler.NonGoRestfulMux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{}))
	}
	s.generic.Handler.NonGoRestfulMux.HandleFunc(customKindsPath, noCustomKinds)
	s.refuse(append(slices.Clone(s.cfg.Unoffered), emptyElsewhere()...))
	for path, handler := range s.cfg.ExtraHandlers {
		s.Handle(path, handler)
	}
	return nil
}

// customKindsPath is requested by kubectl before it creates an object of a kind that
// cannot be patched, such as a review; without an answer kubectl fails.
const customKindsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// noCustomKinds answers that there are none. Discovery does not show the kind, as
// none can be made.
func noCustomKinds(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "custom kinds cannot be made here", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_, _ = io.WriteString(w,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinitionList","metadata":{"resourceVersion":"1"},"items":[]}`)
}

// namespaceCollection is what HTTP may do with Namespaces: all but deleting them
// by collection, as in Kubernetes.
type namespaceCollection interface {
	front
	rest.Scoper
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.SingularNameProvider
	rest.ResetFieldsStrategy
	rest.StorageWithReadiness
	rest.StorageVersionProvider
	rest.MayReturnFullObjectDeleter
}

type namespaceREST struct{ namespaceCollection }

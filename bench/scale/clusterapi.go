package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
)

// clusterAPI stands in for the API server of a Kubernetes cluster that is larger than one on this
// machine could be: it serves lists by watches, watches, and the writes of a control plane, in
// protobuf where Kubernetes does. It checks nothing, and objects that were never written are made
// when they are asked for. It counts requests.
type clusterAPI struct {
	scheme *runtime.Scheme
	codecs serializer.CodecFactory

	mu        sync.Mutex
	resources map[string]*clusterResource
	requests  map[string]int
	version   int64
}

// clusterResource are the objects of a resource.
type clusterResource struct {
	gvk schema.GroupVersionKind
	// made are objects that exist from the beginning: their number, and the one with a number.
	made int
	make func(i int) runtime.Object
	// written replaces them, by namespace/name.
	written map[string]runtime.Object
	events  []clusterEvent
	news    chan struct{} // closed when events has grown
}

type clusterEvent struct {
	version int64
	typ     watch.EventType
	object  runtime.Object
}

func newClusterAPI() (*clusterAPI, error) {
	a := &clusterAPI{scheme: runtime.NewScheme(), resources: map[string]*clusterResource{}, requests: map[string]int{}, version: 1000}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme, authenticationv1.AddToScheme, networkingv1.AddToScheme,
		meshv1alpha1.AddToScheme, plannerv1alpha1.AddToScheme,
	} {
		if err := add(a.scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(a.scheme, schema.GroupVersion{Version: "v1"})
	a.codecs = serializer.NewCodecFactory(a.scheme)
	for name, object := range map[string]runtime.Object{
		"namespaces": &corev1.Namespace{}, "nodes": &corev1.Node{}, "services": &corev1.Service{}, "pods": &corev1.Pod{},
		"secrets": &corev1.Secret{}, "configmaps": &corev1.ConfigMap{}, "events": &corev1.Event{},
		"endpointslices": &discoveryv1.EndpointSlice{}, "leases": &coordinationv1.Lease{},
		"meshes": &meshv1alpha1.Mesh{}, "zonecosts": &meshv1alpha1.ZoneCosts{},
		"topologyheuristics": &meshv1alpha1.TopologyHeuristic{}, "zoneshifts": &meshv1alpha1.ZoneShift{},
		"ipaddresspools": &meshv1alpha1.IPAddressPool{}, "servicecidrs": &networkingv1.ServiceCIDR{},
		"trafficplans": &plannerv1alpha1.TrafficPlan{},
	} {
		kinds, _, err := a.scheme.ObjectKinds(object)
		if err != nil {
			return nil, err
		}
		a.resources[name] = &clusterResource{
			gvk: kinds[0], written: map[string]runtime.Object{}, news: make(chan struct{}),
		}
	}
	return a, nil
}

// counted requests so far, by verb and resource.
func (a *clusterAPI) counted() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.requests)
}

// clusterRequest is what a URL asks for.
type clusterRequest struct{ resource, namespace, name, sub string }

func parseRequest(path string) (r clusterRequest) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2 // api/v1
	if parts[0] == "apis" {
		skip = 3
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		r.namespace, parts = parts[1], parts[2:]
	}
	for i, into := range []*string{&r.resource, &r.name, &r.sub} {
		if i < len(parts) {
			*into = parts[i]
		}
	}
	return r
}

// ServeHTTP implements http.Handler.
func (a *clusterAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := parseRequest(r.URL.Path)
	of := a.resources[asked.resource]
	verb := strings.ToLower(r.Method)
	if r.URL.Query().Get("watch") == "true" {
		verb = "watch"
	}
	a.mu.Lock()
	a.requests[verb+" "+strings.Trim(asked.resource+"/"+asked.sub, "/")]++
	a.mu.Unlock()
	if of == nil {
		a.fail(w, r, apierrors.NewNotFound(schema.GroupResource{Resource: asked.resource}, asked.name))
		return
	}
	if verb == "watch" {
		_ = a.watch(w, r, of) // the client has gone
		return
	}
	out, err := a.call(r, asked, of)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	a.answer(w, r, code, out)
}

func (a *clusterAPI) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	status.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	a.answer(w, r, int(status.Code), &status)
}

// form of an answer, by what the client prefers.
func (a *clusterAPI) form(accept string) runtime.SerializerInfo {
	for wanted := range strings.SplitSeq(accept, ",") {
		wanted, _, _ = strings.Cut(strings.TrimSpace(wanted), ";")
		if info, ok := runtime.SerializerInfoForMediaType(a.codecs.SupportedMediaTypes(), wanted); ok {
			return info
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(a.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info
}

func (a *clusterAPI) answer(w http.ResponseWriter, r *http.Request, code int, out runtime.Object) {
	info := a.form(r.Header.Get("Accept"))
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_ = info.Serializer.Encode(out, w) // the client has gone
}

// call is a request for one object.
func (a *clusterAPI) call(r *http.Request, asked clusterRequest, of *clusterResource) (runtime.Object, error) {
	var in runtime.Object
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if in, err = a.scheme.New(of.gvk); err != nil {
			return nil, err
		}
		if _, _, err := a.form(r.Header.Get("Content-Type")).Serializer.Decode(body, nil, in); err != nil {
			return nil, err
		}
		m, err := meta.Accessor(in)
		if err != nil {
			return nil, err
		}
		m.SetNamespace(asked.namespace)
		if asked.name = m.GetName(); asked.name == "" { // an Event
			asked.name = m.GetGenerateName() + strconv.Itoa(len(of.written))
			m.SetName(asked.name)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	was := of.get(asked.namespace, asked.name)
	switch {
	case r.Method == http.MethodPost && was != nil:
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: asked.resource}, asked.name)
	case r.Method != http.MethodPost && was == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: asked.resource}, asked.name)
	case r.Method == http.MethodPost:
		return in, a.write(of, watch.Added, in)
	case r.Method == http.MethodPut:
		return in, a.write(of, watch.Modified, in)
	case r.Method == http.MethodDelete:
		return was, a.write(of, watch.Deleted, was.DeepCopyObject())
	}
	return was, nil
}

// one of the objects that exist from the beginning.
func (of *clusterResource) one(i int) runtime.Object {
	o := of.make(i)
	o.GetObjectKind().SetGroupVersionKind(of.gvk)
	return o
}

// get an object; nil: there is none. a.mu is held.
func (of *clusterResource) get(namespace, name string) runtime.Object {
	if o, ok := of.written[namespace+"/"+name]; ok {
		return o
	}
	// Objects that are made end with their number.
	i, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil || i >= of.made {
		return nil
	}
	o := of.one(i)
	if m, err := meta.Accessor(o); err != nil || m.GetName() != name || m.GetNamespace() != namespace {
		return nil
	}
	return o
}

// write an object, which belongs to the API from then on. a.mu is held.
func (a *clusterAPI) write(of *clusterResource, typ watch.EventType, o runtime.Object) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	a.version++
	o.GetObjectKind().SetGroupVersionKind(of.gvk)
	m.SetResourceVersion(strconv.FormatInt(a.version, 10))
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0001-%012d", a.version)))
	}
	key := m.GetNamespace() + "/" + m.GetName()
	of.written[key] = o
	if typ == watch.Deleted {
		of.written[key] = nil
	}
	of.events = append(of.events, clusterEvent{a.version, typ, o})
	close(of.news)
	of.news = make(chan struct{})
	return nil
}

// put an object from outside, as another controller would.
func (a *clusterAPI) put(resource string, o runtime.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	typ := watch.Added
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	if a.resources[resource].get(m.GetNamespace(), m.GetName()) != nil {
		typ = watch.Modified
	}
	return a.write(a.resources[resource], typ, o)
}

// watch answers a watch until the client ends it.
func (a *clusterAPI) watch(w http.ResponseWriter, r *http.Request, of *clusterResource) error {
	stream := newWatchWriter(a, w, r)
	query := r.URL.Query()
	from, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if query.Get("sendInitialEvents") == "true" {
		var err error
		if from, err = a.sendAll(stream, of); err != nil {
			return err
		}
	}
	for {
		a.mu.Lock()
		at, _ := slices.BinarySearchFunc(of.events, from+1, func(e clusterEvent, v int64) int { return int(e.version - v) })
		events, news := of.events[at:], of.news
		a.mu.Unlock()
		for _, e := range events {
			if err := stream.send(e.typ, e.object); err != nil {
				return err
			}
			from = e.version
		}
		stream.flush()
		select {
		case <-news:
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
}

// sendAll objects that there are, and the mark of their end. It returns the version that they are of.
func (a *clusterAPI) sendAll(stream *watchWriter, of *clusterResource) (int64, error) {
	a.mu.Lock()
	version, written := a.version, maps.Clone(of.written)
	a.mu.Unlock()
	for i := range of.made {
		o := of.one(i)
		m, err := meta.Accessor(o)
		if err != nil {
			return 0, err
		}
		if _, other := written[m.GetNamespace()+"/"+m.GetName()]; other {
			continue
		}
		if err := stream.send(watch.Added, o); err != nil {
			return 0, err
		}
	}
	for _, o := range written {
		if o == nil {
			continue
		}
		if err := stream.send(watch.Added, o); err != nil {
			return 0, err
		}
	}
	end, err := a.scheme.New(of.gvk)
	if err != nil {
		return 0, err
	}
	end.GetObjectKind().SetGroupVersionKind(of.gvk)
	m, err := meta.Accessor(end)
	if err != nil {
		return 0, err
	}
	m.SetResourceVersion(strconv.FormatInt(version, 10))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return version, stream.send(watch.Bookmark, end)
}

// watchWriter encodes the events of a watch.
type watchWriter struct {
	w              http.ResponseWriter
	frames         io.Writer
	object, events runtime.Encoder
	buffer         bytes.Buffer
}

func newWatchWriter(a *clusterAPI, w http.ResponseWriter, r *http.Request) *watchWriter {
	info := a.form(r.Header.Get("Accept"))
	w.Header().Set("Content-Type", info.MediaType)
	if info.MediaType == runtime.ContentTypeProtobuf {
		w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	}
	w.WriteHeader(http.StatusOK)
	return &watchWriter{
		w: w, frames: info.StreamSerializer.Framer.NewFrameWriter(w), object: info.Serializer,
		events: a.codecs.WithoutConversion().EncoderForVersion(info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"}),
	}
}

func (s *watchWriter) send(typ watch.EventType, o runtime.Object) error {
	s.buffer.Reset()
	if err := s.object.Encode(o, &s.buffer); err != nil {
		return err
	}
	event := &metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: s.buffer.Bytes()}}
	var frame bytes.Buffer
	if err := s.events.Encode(event, &frame); err != nil {
		return err
	}
	_, err := s.frames.Write(frame.Bytes())
	return err
}

func (s *watchWriter) flush() { _ = http.NewResponseController(s.w).Flush() }

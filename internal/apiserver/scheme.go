package apiserver

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// schemes know every type that is served.
type schemes struct {
	// serving is what the server works with. The external types are registered
	// as internal ones too, so objects are never converted on their way.
	serving *runtime.Scheme
	// external lacks the internal versions: what clients may know of.
	external *runtime.Scheme
	codecs   serializer.CodecFactory
}

// newSchemes registers the kinds and the review types.
func newSchemes(kinds []*resource.Descriptor) (*schemes, error) {
	s := &schemes{serving: runtime.NewScheme(), external: runtime.NewScheme()}
	for _, scheme := range []*runtime.Scheme{s.serving, s.external} {
		// Options and errors of all groups are encoded as v1 without a group.
		metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
		registerReviews(scheme)
		for _, kind := range kinds {
			registerKind(scheme, kind)
		}
		for _, k := range emptyKinds(kinds) {
			k.register(scheme, k.GVK.GroupVersion())
		}
	}
	for _, k := range emptyKinds(kinds) {
		k.register(s.serving, schema.GroupVersion{Group: k.GVK.Group, Version: runtime.APIVersionInternal})
	}
	registerReviewsInternal(s.serving)
	for _, kind := range kinds {
		s.registerInternal(kind)
		if err := s.serving.AddFieldLabelConversionFunc(kind.GVK, fieldLabels(kind)); err != nil {
			return nil, fmt.Errorf("register field labels of %s: %w", kind.GVK, err)
		}
		if kind.Default != nil {
			s.serving.AddTypeDefaultingFunc(kind.New(), func(obj any) { kind.Default(obj.(resource.Object)) })
		}
	}
	if err := registerEventConversions(s.serving); err != nil {
		return nil, err
	}
	for gv := range s.groupVersions() {
		if err := s.serving.SetVersionPriority(gv); err != nil {
			return nil, fmt.Errorf("register version %s: %w", gv, err)
		}
	}
	s.codecs = serializer.NewCodecFactory(s.serving,
		serializer.WithStreamingCollectionEncodingToJSON(),
		serializer.WithStreamingCollectionEncodingToProtobuf())
	return s, nil
}

// groupVersions are the external versions; each group has exactly one.
func (s *schemes) groupVersions() map[schema.GroupVersion]bool {
	out := map[schema.GroupVersion]bool{}
	for gvk := range s.external.AllKnownTypes() {
		if gvk.Version != runtime.APIVersionInternal {
			out[gvk.GroupVersion()] = true
		}
	}
	return out
}

func registerKind(scheme *runtime.Scheme, kind *resource.Descriptor) {
	gv := kind.GVK.GroupVersion()
	scheme.AddKnownTypeWithName(kind.GVK, kind.New())
	scheme.AddKnownTypeWithName(gv.WithKind(kind.GVK.Kind+"List"), kind.NewList())
	metav1.AddToGroupVersion(scheme, gv)
}

// registerInternal makes the external type the internal one. An Event of
// events.k8s.io is the exception: within the server it is a core Event.
func (s *schemes) registerInternal(kind *resource.Descriptor) {
	internal := schema.GroupVersion{Group: kind.GVK.Group, Version: runtime.APIVersionInternal}
	obj, list := runtime.Object(kind.New()), kind.NewList()
	if isEventAlias(kind) {
		obj, list = &corev1.Event{}, &corev1.EventList{}
	}
	s.serving.AddKnownTypeWithName(internal.WithKind(kind.GVK.Kind), obj)
	s.serving.AddKnownTypeWithName(internal.WithKind(kind.GVK.Kind+"List"), list)
}

// storageCodec encodes a kind for the store: protobuf where the type can, else
// JSON.
func (s *schemes) storageCodec(kind *resource.Descriptor) (runtime.Codec, error) {
	mediaType := runtime.ContentTypeJSON
	if isProtobuf(kind) {
		mediaType = runtime.ContentTypeProtobuf
	}
	info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("storage codec of %s: no serializer for %s", kind.GVK, mediaType)
	}
	internal := schema.GroupVersion{Group: kind.GVK.Group, Version: runtime.APIVersionInternal}
	return s.codecs.CodecForVersions(info.Serializer, s.codecs.UniversalDeserializer(), kind.GVK.GroupVersion(), internal), nil
}

// isProtobuf reports whether a kind can be encoded as protobuf.
func isProtobuf(kind *resource.Descriptor) bool {
	_, ok := kind.New().(interface{ Marshal() ([]byte, error) })
	return ok
}

// negotiated is the serializer of a group: without protobuf where a kind of the
// group cannot be encoded so.
func (s *schemes) negotiated(kinds []*resource.Descriptor) runtime.NegotiatedSerializer {
	if slices.ContainsFunc(kinds, func(k *resource.Descriptor) bool { return !isProtobuf(k) }) {
		return textOnly{s.codecs}
	}
	return s.codecs
}

// textOnly supports JSON and YAML only.
type textOnly struct{ runtime.NegotiatedSerializer }

func (t textOnly) SupportedMediaTypes() []runtime.SerializerInfo {
	var out []runtime.SerializerInfo
	for _, info := range t.NegotiatedSerializer.SupportedMediaTypes() {
		if info.EncodesAsText {
			out = append(out, info)
		}
	}
	return out
}

// fieldLabels defines which fields a selector may name, and their names in the
// attributes of a stored object.
func fieldLabels(kind *resource.Descriptor) runtime.FieldLabelConversionFunc {
	if kind.Fields == nil && !isEventAlias(kind) {
		return runtime.DefaultMetaV1FieldSelectorConversion
	}
	known := map[string]string{"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace"}
	if kind.Fields != nil {
		for label := range kind.Fields(kind.New()) {
			known[label] = label
		}
	}
	if isEventAlias(kind) {
		maps.Copy(known, eventFieldLabels())
	}
	return func(label, value string) (string, string, error) {
		if to, ok := known[label]; ok {
			return to, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
}

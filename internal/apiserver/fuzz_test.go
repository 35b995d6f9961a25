package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"testing"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func fuzzSchemes(f *testing.F) *schemes {
	f.Helper()
	s, err := newSchemes(kind.All())
	if err != nil {
		f.Fatal(err)
	}
	return s
}

func kindAt(i uint8) *resource.Descriptor {
	all := kind.All()
	return all[int(i)%len(all)]
}

// FuzzObject sends bytes as the body of a creation: whatever is decoded from JSON,
// YAML or protobuf goes through defaulting, preparation, validation and printing
// without a panic, and what is valid comes out of the store as it went in.
func FuzzObject(f *testing.F) {
	s := fuzzSchemes(f)
	decoder := s.codecs.UniversalDeserializer()
	for i, k := range kind.All() {
		head := `{"apiVersion":"` + k.GVK.GroupVersion().String() + `","kind":"` + k.GVK.Kind + `","metadata":{"name":"a","namespace":"b"}`
		f.Add(uint8(i), []byte(head+`}`))
		f.Add(uint8(i), []byte(head+`,"spec":{"ports":[{"port":80,"name":"x"}],"addresses":[],"mtls":{"backends":[{}]},"tls":{},"cidrs":["x"]},"status":{},"data":{"a":"Yg=="}}`))
		if isProtobuf(k) {
			obj := k.New()
			obj.SetName("a")
			if info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf); ok {
				obj.GetObjectKind().SetGroupVersionKind(k.GVK)
				if raw, err := runtime.Encode(info.Serializer, obj); err == nil {
					f.Add(uint8(i), raw)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		k := kindAt(which)
		decoded, _, err := decoder.Decode(body, &k.GVK, k.New())
		if err != nil {
			return
		}
		obj, ok := decoded.(resource.Object)
		if !ok {
			return // a list, or options
		}
		if k = describedBy(obj); k == nil {
			return
		}
		s.serving.Default(obj)
		if k.Prepare != nil {
			k.Prepare(obj, nil)
		}
		errs := k.Validate(obj, nil)
		if _, err := (tables{k}).ConvertToTable(context.Background(), obj, nil); err != nil {
			t.Fatalf("print: %v", err)
		}
		if _, _, err := attributes(k)(obj); err != nil {
			t.Fatalf("attributes: %v", err)
		}
		if len(errs) == 0 && !isEventAlias(k) {
			roundTrip(t, s, k, obj)
		}
	})
}

func describedBy(obj resource.Object) *resource.Descriptor {
	for _, k := range kind.All() {
		if reflect.TypeOf(k.New()) == reflect.TypeOf(obj) {
			return k
		}
	}
	return nil
}

// roundTrip stores an object and reads it back; twice must be the same bytes.
func roundTrip(t *testing.T, s *schemes, k *resource.Descriptor, obj resource.Object) {
	codec, err := s.storageCodec(k)
	if err != nil {
		t.Fatal(err)
	}
	first, err := runtime.Encode(codec, obj)
	if err != nil {
		return // such as text that is not UTF-8, which protobuf refuses
	}
	again, err := runtime.Decode(codec, first)
	if err != nil {
		t.Fatalf("what was stored cannot be read: %v", err)
	}
	second, err := runtime.Encode(codec, again)
	if err != nil {
		t.Fatalf("what was read cannot be stored: %v", err)
	}
	if !bytes.Equal(first, second) {
		t.Fatalf("read back it differs:\n%q\n%q", first, second)
	}
}

// FuzzListOptions decodes the query of a list as the handlers do: label and field
// selectors, limits, resource versions.
func FuzzListOptions(f *testing.F) {
	s := fuzzSchemes(f)
	codec := runtime.NewParameterCodec(s.serving)
	for i, k := range kind.All() {
		f.Add(uint8(i), "a=b,c!=d,e in (f,g),!h", "metadata.name=x", "10", "", "")
		if k.Fields != nil {
			for label := range k.Fields(k.New()) {
				f.Add(uint8(i), "", label+"!=None", "", "5", "NotOlderThan")
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, labels, fields, limit, version, match string) {
		k := kindAt(which)
		query := map[string][]string{"labelSelector": {labels}, "fieldSelector": {fields}, "limit": {limit}, "resourceVersion": {version},
			"resourceVersionMatch": {match}}
		var opts metainternalversion.ListOptions
		if err := codec.DecodeParameters(query, k.GVK.GroupVersion(), &opts); err != nil {
			return
		}
		if opts.FieldSelector != nil {
			convert := fieldLabels(k)
			selector, err := opts.FieldSelector.Transform(func(label, value string) (string, string, error) { return convert(label, value) })
			if err != nil {
				return
			}
			if _, set, err := attributes(k)(k.New()); err == nil {
				selector.Matches(set)
			}
		}
		if opts.LabelSelector != nil {
			if again, err := metav1.ParseToLabelSelector(opts.LabelSelector.String()); err == nil {
				if _, err := metav1.LabelSelectorAsSelector(again); err != nil {
					t.Fatalf("%q: %v", opts.LabelSelector, err)
				}
			}
		}
	})
}

// FuzzContinueToken decodes what clients send as a place to go on: it never leads
// out of the list that it belongs to.
func FuzzContinueToken(f *testing.F) {
	good, err := storage.EncodeContinue("/registry/services/a/b", "/registry/services/", 7)
	if err != nil {
		f.Fatal(err)
	}
	for _, token := range []string{good, "", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9zZWNyZXRzL2EifQ"} {
		f.Add(token)
	}
	const prefix = "/registry/services/"
	f.Fuzz(func(t *testing.T, token string) {
		from, _, err := storage.DecodeContinue(token, prefix)
		if err == nil && len(from) < len(prefix) || err == nil && from[:len(prefix)] != prefix {
			t.Fatalf("token %q leads to %q", token, from)
		}
	})
}

// FuzzPatch applies a strategic merge patch to an object of a kind, as the server
// does, and validates what comes out.
func FuzzPatch(f *testing.F) {
	for i := range kind.All() {
		f.Add(uint8(i), []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		f.Add(uint8(i), []byte(`{"metadata":{"$patch":"replace"},"spec":{"ports":[{"$patch":"delete","port":80}],"$setElementOrder/ports":[{"port":1}]}}`))
		f.Add(uint8(i), []byte(`{"spec":null,"status":{"conditions":[{"type":"Ready","$retainKeys":["type"]}]}}`))
	}
	f.Fuzz(func(t *testing.T, which uint8, patch []byte) {
		k := kindAt(which)
		old := k.New()
		old.SetName("a")
		original, err := json.Marshal(old)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := strategicMerge(original, patch, k.New())
		if err != nil {
			return
		}
		obj := k.New()
		if json.Unmarshal(patched, obj) != nil {
			return
		}
		if k.Default != nil {
			k.Default(obj)
			k.Default(old)
		}
		if k.Prepare != nil {
			k.Prepare(obj, old)
		}
		k.Validate(obj, old)
	})
}

// strategicMerge fails where upstream's library panics, as it does where an order
// is given for a list of objects without a merge key. The server turns such a
// panic into the failure of that one request (finisher.FinishRequest).
func strategicMerge(original, patch []byte, like any) (patched []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("patch: %v", p)
		}
	}()
	return strategicpatch.StrategicMergePatch(original, patch, like)
}

// FuzzRequestInfo parses request paths as the server does: what a request is
// for is decided before who may do it, so no path may panic.
func FuzzRequestInfo(f *testing.F) {
	resolver := &genericapirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, path := range []string{"/api/v1/namespaces/a/services/b/status",
		"/apis/mesh.proxima.dev/v1alpha1/meshes?watch=1&fieldSelector=metadata.name%3Dx", "/apis", "/api/v1/watch/namespaces//pods", "//"} {
		f.Add("GET", path)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		r, ok := requestOf(method, path)
		if !ok {
			return
		}
		info, err := resolver.NewRequestInfo(r)
		if err == nil && info.IsResourceRequest && isPublic(info.Path) {
			t.Fatalf("%s %s is a public path and a resource", method, path)
		}
	})
}

func requestOf(method, path string) (*http.Request, bool) {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, false
	}
	return &http.Request{Method: method, URL: u}, true
}

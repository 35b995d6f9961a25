package secrets

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func from(kind, name, key string) *v1alpha1.DataSource {
	return &v1alpha1.DataSource{SecretRef: &v1alpha1.SecretKeyReference{Kind: kind, Name: name, Key: key}}
}

func meshOf(backends ...v1alpha1.MeshCertificateBackend) *v1alpha1.Mesh {
	return &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: v1alpha1.MeshSpec{MTLS: &v1alpha1.MeshMTLS{Backends: backends}}}
}

func external(name string, zones []string, tls *v1alpha1.ExternalServiceTLS) *v1alpha1.ExternalService {
	return &v1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1alpha1.ExternalServiceSpec{Zones: zones, TLS: tls},
	}
}

func TestUses(t *testing.T) {
	provided := v1alpha1.MeshCertificateBackend{Name: "p", Provided: &v1alpha1.MeshProvidedAuthority{
		Certificate: *from("", "corp", "tls.crt"), Key: *from("", "corp-key", "tls.key"), Roots: from("", "corp", "ca"),
	}}
	together := v1alpha1.MeshCertificateBackend{Name: "t", Provided: &v1alpha1.MeshProvidedAuthority{
		Certificate: *from("", "both", "tls.crt"), Key: *from("", "both", "tls.key"),
	}}
	for _, test := range []struct {
		name string
		of   []resource.Object
		want string
	}{
		{"nothing", []resource.Object{meshOf(), external("e", nil, nil), &corev1.Secret{}}, ""},
		{"external roots", []resource.Object{meshOf(v1alpha1.MeshCertificateBackend{External: &v1alpha1.MeshExternalAuthority{Roots: *from("", "r", "")}})},
			"/r: * value=public"},
		{"provided", []resource.Object{meshOf(provided)}, "/corp-key:  ; /corp: * ca=public,tls.crt=public"},
		{"key and certificate together", []resource.Object{meshOf(together)}, "/both:  "},
		{"the key of an authority, for something else, too", []resource.Object{
			meshOf(together), external("e", nil, &v1alpha1.ExternalServiceTLS{ClientKey: from("GlobalSecret", "both", "other")}),
		}, "/both:  "},
		{"some zones", []resource.Object{
			external("e", []string{"b", "a"}, &v1alpha1.ExternalServiceTLS{CACertificates: from("", "s", "ca"), ClientKey: from("Secret", "s", "key")}),
		}, "shop/s: a,b ca=public,key"},
		{"several services", []resource.Object{
			external("e", []string{"b"}, &v1alpha1.ExternalServiceTLS{CACertificates: from("", "s", "x")}),
			external("f", []string{"a"}, &v1alpha1.ExternalServiceTLS{ClientKey: from("", "s", "x"), ClientCertificate: from("GlobalSecret", "g", "")}),
		}, "/g: a value; shop/s: a,b x"},
		{"all zones", []resource.Object{
			external("e", []string{"b"}, &v1alpha1.ExternalServiceTLS{ClientKey: from("", "s", "x")}),
			external("f", nil, &v1alpha1.ExternalServiceTLS{ClientKey: from("", "s", "x")}),
		}, "shop/s: * x"},
	} {
		var all []Reference
		for _, obj := range test.of {
			all = append(all, References(obj)...)
		}
		uses := Uses(all)
		var got []string
		for key, u := range uses {
			zones, values := u.Annotations()
			got = append(got, key.Namespace+"/"+key.Name+": "+zones+" "+values)
		}
		slices.Sort(got)
		if text := strings.Join(got, "; "); text != test.want {
			t.Errorf("%s: %q, want %q", test.name, text, test.want)
		}
	}
}

func TestPrune(t *testing.T) {
	data := map[string][]byte{
		"cert": []byte("-----BEGIN CERTIFICATE-----\n"), "both": []byte("-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n"),
		"key": []byte("-----BEGIN PRIVATE KEY-----\n"), "other": []byte("x"),
	}
	notes := map[string]string{AnnotationZones: "a,b", AnnotationValues: "both=public,cert=public,gone,key", "mine": "yes"}
	immutable := true
	for _, obj := range []resource.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: maps.Clone(notes)}, Data: maps.Clone(data), Type: corev1.SecretTypeTLS, Immutable: &immutable},
		&v1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Annotations: maps.Clone(notes)}, Data: maps.Clone(data), Type: "x", Immutable: &immutable},
	} {
		if zones := Zones(obj); !slices.Equal(zones, []string{"a", "b"}) {
			t.Errorf("zones %q", zones)
		}
		Prune(obj)
		var left map[string][]byte
		var typ string
		frozen := true
		switch s := obj.(type) {
		case *corev1.Secret:
			left, typ, frozen = s.Data, string(s.Type), s.Immutable != nil
		case *v1alpha1.GlobalSecret:
			left, typ, frozen = s.Data, s.Type, s.Immutable != nil
		}
		if names := slices.Sorted(maps.Keys(left)); !slices.Equal(names, []string{"cert", "key"}) || typ != "Opaque" || frozen {
			t.Errorf("%T: values %q of type %s, immutable %t", obj, names, typ, frozen)
		}
		if got := obj.GetAnnotations(); len(got) != 1 || got["mine"] != "yes" {
			t.Errorf("annotations %v", got)
		}
		Prune(obj) // without notes nothing is left
		if zones := Zones(obj); zones != nil {
			t.Errorf("zones %q of a secret without notes", zones)
		}
	}
}

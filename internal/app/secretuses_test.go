package app

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func secretSource(kindOf, name, key string) *meshv1alpha1.DataSource {
	return &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Kind: kindOf, Name: name, Key: key}}
}

// edit an object until it is written.
func (p *plane) edit(k *resource.Descriptor, key resource.Key, change func(resource.Object)) {
	p.t.Helper()
	until(p.t, "the "+k.Singular+" is written", func() bool {
		obj, err := p.client.Get(p.t.Context(), k, key)
		if err != nil {
			p.t.Fatal(err)
		}
		change(obj)
		_, err = p.client.Update(p.t.Context(), k, obj)
		if err != nil && !apierrors.IsConflict(err) {
			p.t.Fatal(err)
		}
		return err == nil
	})
}

// TestSecretsTravel: only what a zone uses, never the key of an authority, and only as long
// as it is referred to.
func TestSecretsTravel(t *testing.T) {
	s := startSites(t)
	const value = "a-client-key-in-plain-text"
	pay := s.global.create(kind.Secret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pay"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": []byte("crt"), "tls.key": []byte(value), "other": []byte("not referred to")},
	})
	s.global.create(kind.Secret, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "unused", Annotations: map[string]string{secrets.AnnotationZones: "*", secrets.AnnotationValues: "x"},
	}, Data: map[string][]byte{"x": []byte("x")}})
	for name, data := range map[string]map[string][]byte{
		"corp":  {"tls.crt": []byte("crt"), "tls.key": []byte("key")},
		"roots": {"ca": []byte("crt"), "rest": []byte("rest")},
	} {
		s.global.create(kind.GlobalSecret, &meshv1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data})
	}
	m := namedMesh("shop")
	m.Spec.MTLS = &meshv1alpha1.MeshMTLS{Backends: []meshv1alpha1.MeshCertificateBackend{
		{Name: "p", Type: meshv1alpha1.BackendProvided, Provided: &meshv1alpha1.MeshProvidedAuthority{
			Certificate: *secretSource("", "corp", "tls.crt"), Key: *secretSource("", "corp", "tls.key"),
		}},
		{Name: "x", Type: meshv1alpha1.BackendExternal, External: &meshv1alpha1.MeshExternalAuthority{
			SignerName: "example.com/mesh", Roots: *secretSource("", "roots", "ca"),
		}},
	}}
	s.global.create(kind.Mesh, m)
	s.global.create(kind.ExternalService, &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pay"},
		Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"pay.example"}, Ports: []meshv1alpha1.ExternalServicePort{{Port: 443}}, Zones: []string{"a"},
			TLS: &meshv1alpha1.ExternalServiceTLS{
				CACertificates:    secretSource("GlobalSecret", "corp", "tls.crt"), // of a secret that stays
				ClientCertificate: secretSource("", "pay", "tls.crt"), ClientKey: secretSource("", "pay", "tls.key"),
			},
		},
	})
	until(t, "the Secret in zone a", func() bool { return s.a.has(kind.Secret, "pay") })
	for _, p := range []*plane{s.a, s.b} {
		until(t, "the GlobalSecret in both zones", func() bool { return p.has(kind.GlobalSecret, "roots") })
	}
	copied := s.a.displayed(kind.Secret)["pay"].(*corev1.Secret)
	got := slices.Sorted(maps.Keys(copied.Data))
	if !slices.Equal(got, []string{"tls.crt", "tls.key"}) || string(copied.Data["tls.key"]) != value {
		t.Errorf("values of the copy: %q", got)
	}
	roots := s.b.displayed(kind.GlobalSecret)["roots"].(*meshv1alpha1.GlobalSecret)
	if got := slices.Sorted(maps.Keys(roots.Data)); !slices.Equal(got, []string{"ca"}) {
		t.Errorf("values of the copy: %q", got)
	}
	if copied.Annotations[secrets.AnnotationZones] != "" || copied.Annotations[secrets.AnnotationValues] != "" {
		t.Errorf("notes of global in a zone: %v", copied.Annotations)
	}
	record, found, _, err := s.a.store.Get(t.Context(), "/registry/secrets/default/pay", 0)
	if err != nil || !found || bytes.Contains(record.Value, []byte(value)) {
		t.Errorf("the copy is not encrypted in the store: %v, found: %t", err, found)
	}
	s.testSecretWrites(pay)
	s.testSecretWithdrawn()
	for _, p := range []*plane{s.a, s.b} {
		if p.has(kind.GlobalSecret, "corp") || p.has(kind.Secret, "unused") {
			t.Error("a zone has what is not for it")
		}
	}
	if s.b.has(kind.Secret, "pay") {
		t.Error("zone b has what zone a alone uses")
	}
}

// testSecretWrites: deletions are refused as long as there is a reference, copies are
// read-only, and a zone's own secrets are its own.
func (s *sites) testSecretWrites(pay resource.Object) {
	for _, test := range []struct {
		at   *plane
		kind *resource.Descriptor
		key  resource.Key
		want string
	}{
		{s.global, kind.Secret, resource.KeyOf(pay),
			"it is referred to by externalservice default/pay (spec.tls.clientCertificate.secretRef)"},
		{s.global, kind.GlobalSecret, resource.Key{Name: "corp"},
			"it is referred to by mesh shop (spec.mtls.backends[p].provided.certificate.secretRef)"},
		{s.a, kind.Secret, resource.KeyOf(pay), "it is a copy of an object of global"},
	} {
		err := test.at.client.Delete(s.t.Context(), test.kind, test.key, resource.Preconditions{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			s.t.Errorf("deletion of %s %s: %v, want %q", test.kind.Singular, test.key, err, test.want)
		}
	}
	s.global.edit(kind.Secret, resource.Key{Namespace: "default", Name: "unused"}, func(obj resource.Object) {
		obj.SetAnnotations(map[string]string{secrets.AnnotationZones: "*", secrets.AnnotationValues: "x"})
	})
	if notes := s.global.displayed(kind.Secret)["unused"].GetAnnotations(); len(notes) > 0 {
		s.t.Errorf("notes that a user wrote: %v", notes)
	}
	s.global.edit(kind.Secret, resource.KeyOf(pay), func(obj resource.Object) {
		obj.SetAnnotations(nil)
		obj.(*corev1.Secret).Data["tls.crt"] = []byte("next")
	})
	until(s.t, "a change of the value is in zone a", func() bool {
		return string(s.a.displayed(kind.Secret)["pay"].(*corev1.Secret).Data["tls.crt"]) == "next"
	})
	s.a.create(kind.Secret, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "own"}})
	s.a.create(kind.GlobalSecret, &meshv1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Name: "own"}})
}

// testSecretWithdrawn: with the reference goes the copy, and the secret may be deleted.
func (s *sites) testSecretWithdrawn() {
	s.global.edit(kind.ExternalService, resource.Key{Namespace: "default", Name: "pay"}, func(obj resource.Object) {
		obj.(*meshv1alpha1.ExternalService).Spec.TLS = nil
	})
	until(s.t, "the copy is withdrawn", func() bool { return !s.a.has(kind.Secret, "pay") })
	key := resource.Key{Namespace: "default", Name: "pay"}
	if err := s.global.client.Delete(s.t.Context(), kind.Secret, key, resource.Preconditions{}); err != nil {
		s.t.Error(err)
	}
	if !s.a.has(kind.Secret, "own") || s.global.has(kind.Secret, "own") {
		s.t.Error("the zone's own Secret left it")
	}
}

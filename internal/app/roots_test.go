package app

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestRootsOfMeshes: all zones sign below the one root of a mesh, whose key global alone has;
// each by an intermediate of its own.
func TestRootsOfMeshes(t *testing.T) {
	s := startSites(t)
	blue := namedMesh("blue")
	blue.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "own", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "own"}}}
	s.global.create(kind.Mesh, blue)
	authorities := map[string]string{}
	for name, p := range map[string]*plane{"a": s.a, "b": s.b} {
		until(t, "zone "+name+" signs", func() bool {
			issuer, ok := p.cp.identities.authorities.Issuer("blue")
			if ok && len(issuer.Signer.Roots()) == 1 {
				authorities[name] = issuer.ID
			}
			return authorities[name] != ""
		})
		names, err := p.cp.identities.records.Names(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range names {
			if strings.HasPrefix(record, "roots/") {
				t.Errorf("zone %s has the key of a root: %s", name, record)
			}
		}
	}
	root, err := s.global.global.roots.authorities.Root("blue", "own")
	if err != nil || authorities["a"] != root.ID || authorities["b"] != root.ID {
		t.Errorf("zones sign below %v; the root is %s, %v", authorities, root.ID, err)
	}

	// The zone of an intermediate is that of the credential, and there must be such an authority.
	client, err := s.a.cp.identities.link.client()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Root(t.Context(), &federationv1.RootRequest{Mesh: "blue", Backend: "own"})
	if err != nil || !bytes.Equal(answer.GetRoot(), root.Roots) {
		t.Errorf("root: %v", err)
	}
	if certs, err := certpem.ParseCertificates(answer.GetRoot()); err != nil || len(certs) != 1 {
		t.Errorf("root certificates: %v", err)
	}
	for what, q := range map[string]*federationv1.IntermediateRequest{
		"another authority": {Mesh: "blue", Authority: "none"},
		"another mesh":      {Mesh: "red", Authority: root.ID},
		"no request":        {Mesh: "blue", Authority: root.ID, Request: []byte("x")},
	} {
		if _, err := client.Intermediate(t.Context(), q); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRootsChangeInAllZonesTogether: nobody issues by another root before all zones trust it, a
// zone that is away included, as it signs on.
func TestRootsChangeInAllZonesTogether(t *testing.T) {
	s := startSites(t)
	blue := namedMesh("blue")
	blue.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "one", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "one"}, {Name: "two"}}}
	s.global.create(kind.Mesh, blue)
	state := func(p *plane) rotation.State {
		own := s.global.global.roots.authorities
		if p != s.global {
			own = p.cp.identities.authorities
		}
		found, _ := own.State("blue")
		return found
	}
	var old string
	until(t, "all have one root", func() bool {
		old = state(s.global).Issuer
		for _, p := range []*plane{s.a, s.b} {
			if issuer, ok := p.cp.identities.authorities.Issuer("blue"); !ok || issuer.ID != old || len(issuer.Signer.Roots()) != 1 {
				return false
			}
		}
		return old != ""
	})

	s.b.stop()
	until(t, "zone b is offline", func() bool { return !s.online("b") })
	obj, err := s.global.client.Get(t.Context(), kind.Mesh, resource.Key{Name: "blue"})
	if err != nil {
		t.Fatal(err)
	}
	obj.(*meshv1alpha1.Mesh).Spec.MTLS.EnabledBackend = "two"
	if _, err := s.global.client.Update(t.Context(), kind.Mesh, obj); err != nil {
		t.Fatal(err)
	}
	until(t, "global waits for zone b alone", func() bool {
		obj, err := s.global.client.Get(t.Context(), kind.Mesh, resource.Key{Name: "blue"})
		if err != nil {
			t.Fatal(err)
		}
		mtls := obj.(*meshv1alpha1.Mesh).Status.MTLS
		return mtls != nil && mtls.Phase == string(rotation.Trusting) && slices.Equal(mtls.WaitingFor, []string{"zone b"})
	})
	next := state(s.global).Target().ID
	if got := state(s.a); got.Issuer != old || !got.Trusts(next) {
		t.Errorf("zone a has %+v; it should trust %s, and issue by %s still", got, next, old)
	}

	s.b = startPlane(t, s.b.cfg, s.b.store)
	until(t, "all have the other root alone", func() bool {
		for _, p := range []*plane{s.global, s.a, s.b} {
			if got := state(p); got.Phase != rotation.Stable || got.Issuer != next || got.Trusts(old) {
				return false
			}
		}
		return true
	})
}

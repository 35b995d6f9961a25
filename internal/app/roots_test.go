package app

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
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

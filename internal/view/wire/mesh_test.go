package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// fuzzMeshes: whatever comes, it is refused, or it can be encoded again and means the same.
func fuzzMeshes(t *testing.T, name string, body []byte) {
	if m, err := DecodeMesh(name, body); err == nil {
		again, err := EncodeMesh(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeMesh(name, again); err != nil || *got != *m {
			t.Fatalf("mesh %q: %+v, %v", name, got, err)
		}
	}
	if w, err := DecodeWorkload(name, body); err == nil {
		again, err := EncodeWorkload(w)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeWorkload(name, again)
		if diff := cmp.Diff(w, got, compareModel); err != nil || diff != "" {
			t.Fatalf("workload %q: %v\n%s", name, err, diff)
		}
	}
}

// TestScopes: who may use a Service survives, and what is missing stands for all meshes.
func TestScopes(t *testing.T) {
	name := proxy.ServiceName{Namespace: "ns", Name: "web"}
	for _, want := range []proxy.Scope{{}, {Mesh: "default"}, {Mesh: "blue"}, {Mesh: "default", Exported: []string{"blue", "red"}}} {
		body, err := EncodeService(&proxy.Service{Name: name, ClusterIPs: addrs("10.0.0.1"), Scope: want})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := DecodeService("ns/web", body); err != nil || !s.Scope.Equal(want) {
			t.Errorf("%+v: %+v, %v", want, s, err)
		}
		if body, err = EncodeName(&records.Name{Name: name, ExternalName: "x.test", Scope: want}); err != nil {
			t.Fatal(err)
		}
		if n, err := DecodeName("ns/web", body); err != nil || !n.Scope.Equal(want) {
			t.Errorf("name of %+v: %+v, %v", want, n, err)
		}
	}
	for _, scope := range []*nodev1.Scope{{Mesh: "*"}, {Exported: []string{"*"}}, {Exported: []string{""}}} {
		if s, err := decodeScope(scope); err == nil {
			t.Errorf("%+v is read as %+v", scope, s)
		}
	}
}

// TestInvalidMeshesAreRefused: names that are not those of the resource, and workloads without
// an address.
func TestInvalidMeshesAreRefused(t *testing.T) {
	mesh, _ := EncodeMesh(&proxy.Mesh{Name: "blue"})
	for _, name := range []string{"red", "", "*"} {
		if _, err := DecodeMesh(name, mesh); err == nil {
			t.Errorf("mesh blue is read as %q", name)
		}
	}
	all, _ := EncodeMesh(&proxy.Mesh{Name: "*"})
	if _, err := DecodeMesh("*", all); err == nil {
		t.Error("* is a mesh")
	}
	name := proxy.ServiceName{Namespace: "ns", Name: "web"}
	for _, w := range []*proxy.Workload{{Name: name, Mesh: "blue"}, {Name: name, Mesh: "*", Addrs: addrs("10.0.0.1")}} {
		body, _ := EncodeWorkload(w)
		if _, err := DecodeWorkload("ns/web", body); err == nil {
			t.Errorf("%+v is taken", w)
		}
	}
}

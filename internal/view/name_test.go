package view

import (
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// namesOf reads what a session has of names: the kind's first letter, name, and
// the targets.
func namesOf(t *testing.T, s *delta.Session) []string {
	t.Helper()
	var out []string
	for {
		f, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f == nil {
			slices.Sort(out)
			return out
		}
		var r discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(f.Data, &r); err != nil {
			t.Fatal(err)
		}
		for _, res := range r.Resources {
			if f.Type == wire.NameType {
				n, err := wire.DecodeName(res.Name, res.Resource.Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, "name "+n.Name.Name+" "+n.ExternalName)
				continue
			}
			s, err := wire.DecodeNameSlice(res.Name, res.Resource.Value)
			if err != nil {
				t.Fatal(err)
			}
			line := "slice " + s.Name.Name
			for _, target := range s.Targets {
				line += " " + target.Hostname + "=" + target.Domain
				if target.Domain == "" {
					line += target.Addr.String()
				}
			}
			out = append(out, line)
		}
		for _, name := range r.RemovedResources {
			out = append(out, "-"+name)
		}
	}
}

func TestNamesInViews(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	scope, err := b.Scope("a")
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	for _, typ := range []string{wire.NameType, wire.NameSliceType} {
		if err := s.Step(delta.Request{Type: typ}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, namesOf(t, s)); diff != "" {
			t.Error(diff)
		}
	}
	endpoints := viewtest.Slice("web-1", "10.1.0.1", "10.1.0.2", "10.1.0.3") // without the label of headless Services
	endpoints.Endpoints[0].Hostname = new("web-0")
	endpoints.Endpoints[1].Conditions.Ready = new(false)
	fqdn := viewtest.Slice("web-2", "Real.Example.COM.")
	fqdn.AddressType = discoveryv1.AddressTypeFQDN

	replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1"), endpoints))
	check()
	// The slices follow their Service, whichever comes first.
	apply(t, b, viewtest.Delta(2, viewtest.Service("web", "None")))
	check("name web ", "slice web-1 web-0=10.1.0.1 =10.1.0.3")
	apply(t, b, viewtest.Delta(3, fqdn))
	check("slice web-2 =real.example.com")
	apply(t, b, viewtest.Delta(4, "slice/web-2"))
	check("-ns/web-2")
	apply(t, b, viewtest.Delta(5, viewtest.Service("web", "10.0.0.1")))
	check("-ns/web", "-ns/web-1")
	apply(t, b, viewtest.Delta(6, "service/web", "slice/web-1"))
	check()
	if len(b.slices)+len(b.slicesOf)+len(b.names)+len(b.services) != 0 {
		t.Error("state of removed objects is kept")
	}
}

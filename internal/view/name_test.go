package view

import (
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestNameOf(t *testing.T) {
	name := proxy.ServiceName{Namespace: "ns", Name: "web"}
	external := service("web", "")
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "WWW.Example.com."
	theirs := service("web", "10.0.0.1")
	theirs.Labels = map[string]string{labelProxyName: "other"}
	for what, tt := range map[string]struct {
		in   *corev1.Service
		want *records.Name
	}{
		"carried":         {service("web", "10.0.0.1"), nil},
		"without address": {service("web", ""), nil},
		"headless":        {service("web", "None"), &records.Name{Name: name}},
		"external":        {external, &records.Name{Name: name, ExternalName: "www.example.com"}},
		"another proxy's": {theirs, &records.Name{Name: name, ClusterIPs: addrs("10.0.0.1"), Ports: []proxy.Port{{Port: 80, Protocol: proxy.TCP}}}},
	} {
		got, ok := NameOf(tt.in)
		if diff := cmp.Diff(tt.want, got, compareModel); diff != "" || ok != (tt.want != nil) {
			t.Errorf("%s: %v %s", what, ok, diff)
		}
		if got == nil {
			continue
		}
		body, err := encodeName(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeNameOf("ns/web", body)
		if diff := cmp.Diff(got, again, compareModel); err != nil || diff != "" {
			t.Errorf("%s: %v %s", what, err, diff)
		}
	}
}

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
			u := newUpdate()
			if err := decodeInto(&u, f.Type, res.Name, res.Resource.Value); err != nil {
				t.Fatal(err)
			}
			for name, n := range u.Names {
				out = append(out, "name "+name.Name+" "+n.ExternalName)
			}
			for name, s := range u.NameSlices {
				line := "slice " + name.Name
				for _, target := range s.Targets {
					line += " " + target.Hostname + "=" + target.Domain
					if target.Domain == "" {
						line += target.Addr.String()
					}
				}
				out = append(out, line)
			}
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
	for _, typ := range []string{NameType, NameSliceType} {
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
	endpoints := slice("web-1", "10.1.0.1", "10.1.0.2", "10.1.0.3") // without the label of headless Services
	endpoints.Endpoints[0].Hostname = ptr("web-0")
	endpoints.Endpoints[1].Conditions.Ready = ptr(false)
	fqdn := slice("web-2", "Real.Example.COM.")
	fqdn.AddressType = discoveryv1.AddressTypeFQDN

	apply(t, b, reset(deltaOf(1, service("web", "10.0.0.1"), endpoints)))
	check()
	// The slices follow their Service, whichever comes first.
	apply(t, b, deltaOf(2, service("web", "None")))
	check("name web ", "slice web-1 web-0=10.1.0.1 =10.1.0.3")
	apply(t, b, deltaOf(3, fqdn))
	check("slice web-2 =real.example.com")
	apply(t, b, deltaOf(4, "slice/web-2"))
	check("-ns/web-2")
	apply(t, b, deltaOf(5, service("web", "10.0.0.1")))
	check("-ns/web", "-ns/web-1")
	apply(t, b, deltaOf(6, "service/web", "slice/web-1"))
	check()
	if len(b.slices)+len(b.slicesOf)+len(b.names)+len(b.services) != 0 {
		t.Error("something is kept of what is gone")
	}
}

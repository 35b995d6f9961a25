package translate_test

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

func patchable() translate.Resources {
	l := listener("out|10.0.0.1:80", 1080)
	l.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filter("envoy.filters.network.tcp_proxy",
		&tcpv3.TcpProxy{StatPrefix: "a", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "shop/pay:80"}})}}}
	return translate.Resources{
		Clusters:  []*clusterv3.Cluster{cluster("shop/pay:80"), cluster("local|8080"), cluster("passthrough")},
		Listeners: []*listenerv3.Listener{l},
	}
}

func patchOf(item mesh.ProxyPatchItem) []policy.Patch { return []policy.Patch{{ProxyPatchItem: item}} }

// TestPatchesLeaveTheGivenAlone: resources are shared by proxies.
func TestPatchesLeaveTheGivenAlone(t *testing.T) {
	in, before := patchable(), patchable()
	for _, item := range []mesh.ProxyPatchItem{
		{Type: "Cluster", Op: "Merge", Value: "connect_timeout: 1s"}, {Type: "Cluster", Op: "Remove"},
		{Type: "NetworkFilter", Op: "Remove"}, {Type: "NetworkFilter", Op: "Merge", Value: "name: other"},
	} {
		out, patched, refused := translate.ApplyPatches(in, patchOf(item))
		if len(patched) == 0 || len(refused) > 0 {
			t.Errorf("%+v: patched %v, refused %v", item, patched, refused)
		}
		_ = out
		for i := range before.Clusters {
			if !proto.Equal(before.Clusters[i], in.Clusters[i]) {
				t.Errorf("%+v changed cluster %s of the caller", item, in.Clusters[i].Name)
			}
		}
		if !proto.Equal(before.Listeners[0], in.Listeners[0]) {
			t.Errorf("%+v changed the listener of the caller", item)
		}
	}
}

// TestPatchMatches by name, origin, direction and port.
func TestPatchMatches(t *testing.T) {
	for _, test := range []struct {
		match mesh.ProxyPatchMatch
		want  string
	}{
		{mesh.ProxyPatchMatch{}, "shop/pay:80 local|8080 passthrough"},
		{mesh.ProxyPatchMatch{Name: "passthrough"}, "passthrough"},
		{mesh.ProxyPatchMatch{Origin: "Passthrough"}, "passthrough"},
		{mesh.ProxyPatchMatch{Origin: "Inbound"}, "local|8080"},
		{mesh.ProxyPatchMatch{Direction: "Outbound"}, "shop/pay:80 passthrough"},
		{mesh.ProxyPatchMatch{Port: 80}, "shop/pay:80"},
		{mesh.ProxyPatchMatch{Origin: "Inbound", Port: 80}, ""},
	} {
		out, _, _ := translate.ApplyPatches(patchable(), patchOf(mesh.ProxyPatchItem{Type: "Cluster", Op: "Remove", Match: &test.match}))
		left := map[string]bool{}
		for _, c := range out.Clusters {
			left[c.Name] = true
		}
		got := ""
		for _, c := range patchable().Clusters {
			if !left[c.Name] {
				if got != "" {
					got += " "
				}
				got += c.Name
			}
		}
		if got != test.want {
			t.Errorf("%+v removes %q, want %q", test.match, got, test.want)
		}
	}
}

// FuzzPatch: whatever a user writes, the result is valid, or what was there.
func FuzzPatch(f *testing.F) {
	f.Add("Cluster", "Merge", "shop/pay:80", "connectTimeout: 1s")
	f.Add("Cluster", "JSONPatch", "", "[{op: add, path: /lbPolicy, value: RANDOM}]")
	f.Add("NetworkFilter", "Before", "envoy.filters.network.tcp_proxy", "name: a")
	f.Add("Listener", "Add", "", "{name: b, address: {pipe: {path: /a}}}")
	f.Fuzz(func(t *testing.T, typ, op, name, value string) {
		out, _, _ := translate.ApplyPatches(patchable(), patchOf(mesh.ProxyPatchItem{
			Type: typ, Op: op, Value: value, Match: &mesh.ProxyPatchMatch{Name: name},
		}))
		for _, c := range out.Clusters {
			if err := c.ValidateAll(); err != nil {
				t.Error(err)
			}
		}
		for _, l := range out.Listeners {
			if err := l.ValidateAll(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		typ, op, value string
		good           bool
	}{
		{"Cluster", "Add", "{name: a, connectTimeout: 1s}", true},
		{"Cluster", "Add", "{name: a, connectTimeout: -1s}", false},
		{"Cluster", "Merge", "lbPolicy: RANDOM", true},
		{"Cluster", "Merge", "nonsense: 1", false},
		{"HTTPFilter", "First", "{name: a, typed_config: {'@type': type.googleapis.com/nobody.Knows}}", false},
		{"Listener", "Remove", "", true},
	} {
		if err := translate.Check(&mesh.ProxyPatchItem{Type: test.typ, Op: test.op, Value: test.value}); (err == nil) != test.good {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

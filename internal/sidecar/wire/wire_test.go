package wire

import (
	"bytes"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// node has all that Envoy sends, extensions among them.
func node() *corev3.Node {
	return &corev3.Node{
		Id: "default/shop/web", Cluster: "shop/web", Locality: &corev3.Locality{SubZone: "site"}, UserAgentName: "envoy",
		Extensions: []*corev3.Extension{{Name: "envoy.filters.http.router"}, {Name: "envoy.filters.network.tcp_proxy"}},
	}
}

// TestRequest: what is written is what the generated code reads, and the other way round.
func TestRequest(t *testing.T) {
	generated := &discoveryv3.DeltaDiscoveryRequest{
		Node: node(), TypeUrl: Cluster, ResourceNamesSubscribe: []string{"*", "vip|10.0.0.1:80"}, ResourceNamesUnsubscribe: []string{"old"},
		InitialResourceVersions: map[string]string{"a": "1", "b": "2"}, ResponseNonce: "n7",
		ErrorDetail: &status.Status{Code: 13, Message: "malformed IP address"},
	}
	r, err := ParseRequest(marshal(t, generated))
	if err != nil {
		t.Fatal(err)
	}
	if r.Versions["b"] != "2" || r.Nonce != "n7" || r.Error == nil || r.Error.Code != 13 || len(r.Subscribe) != 2 {
		t.Errorf("read %+v", r)
	}
	back := &discoveryv3.DeltaDiscoveryRequest{}
	if err := proto.Unmarshal(r.Append(nil), back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(generated, back, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestResponse(t *testing.T) {
	body, err := anypb.New(&clusterv3.Cluster{Name: "shop/web:80"})
	if err != nil {
		t.Fatal(err)
	}
	generated := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "s", TypeUrl: Cluster, Nonce: "3", RemovedResources: []string{"gone"},
		Resources: []*discoveryv3.Resource{{Name: "shop/web:80", Version: "v1", Resource: body, Aliases: []string{"kept"}}},
	}
	r, err := ParseResponse(marshal(t, generated))
	if err != nil {
		t.Fatal(err)
	}
	back := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(r.Append(nil), back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(generated, back, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if r.Resources[0].Name != "shop/web:80" || r.Resources[0].Version != "v1" {
		t.Errorf("read %+v", r.Resources[0])
	}
	made := NewResource(Cluster, "shop/web:80", "v1", body.Value)
	if got, err := made.Body(); err != nil || !bytes.Equal(got, body.Value) {
		t.Errorf("body %x, %v", got, err)
	}
}

// TestServiceOf: the name is that of eds_cluster_config, if there is one.
func TestServiceOf(t *testing.T) {
	eds := &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	for name, c := range map[string]struct {
		cluster *clusterv3.Cluster
		want    string
		ok      bool
	}{
		"own name": {&clusterv3.Cluster{Name: "shop/web:80", ClusterDiscoveryType: eds}, "shop/web:80", true},
		"service name": {&clusterv3.Cluster{
			Name: "vip|10.0.0.1:80", ClusterDiscoveryType: eds, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "shop/web:80"},
		}, "shop/web:80", true},
		"static": {&clusterv3.Cluster{Name: "blackhole"}, "blackhole", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok, err := ServiceOf(NewResource(Cluster, c.cluster.Name, "1", marshal(t, c.cluster)))
			if err != nil || got != c.want || ok != c.ok {
				t.Errorf("%q, %t, %v", got, ok, err)
			}
		})
	}
}

func TestLoadReport(t *testing.T) {
	full := marshal(t, &loadv3.LoadStatsRequest{Node: node()})
	for _, with := range []bool{true, false} {
		out, had, err := LoadReport(full, with)
		if err != nil || !had {
			t.Fatal(had, err)
		}
		got := &loadv3.LoadStatsRequest{}
		if err := proto.Unmarshal(out, got); err != nil {
			t.Fatal(err)
		}
		want := &loadv3.LoadStatsRequest{}
		if with {
			want.Node = node()
			want.Node.Extensions = nil
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
	if id, err := NodeID(marshal(t, node())); err != nil || id != "default/shop/web" {
		t.Errorf("%q, %v", id, err)
	}
}

// FuzzMessages: damaged bytes are an error, never a panic; what is read can be written and read.
func FuzzMessages(f *testing.F) {
	f.Add(marshal(f, &discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: Cluster, InitialResourceVersions: map[string]string{"a": "1"}}))
	f.Add(marshal(f, &discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "a", Version: "1"}}}))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := ParseRequest(data); err == nil {
			if _, err := ParseRequest(r.Append(nil)); err != nil {
				t.Error(err)
			}
		}
		if r, err := ParseResponse(data); err == nil {
			again, err := ParseResponse(r.Append(nil))
			if err != nil || len(again.Resources) != len(r.Resources) {
				t.Errorf("%v", err)
			}
			for _, resource := range r.Resources {
				_, _, _ = ServiceOf(resource)
			}
		}
		_, _, _ = LoadReport(data, true)
		_, _ = NodeID(data)
	})
}

// FuzzTrust: what a control plane trusts, and issues, is read as it was written, and nothing makes it
// panic.
func FuzzTrust(f *testing.F) {
	bundle := appendBytes(appendString(appendString(nil, 1, "default"), 2, "default.mesh"), 3, []byte("root"))
	f.Add(appendBytes(nil, 1, bundle))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := ParseTrust(data)
		for _, b := range all {
			if err == nil && (b.Mesh == "" || b.Domain == "" || len(b.Roots) > maxRoots) {
				t.Errorf("%+v", b)
			}
		}
		if chain, err := ParseIssued(data); err == nil && len(chain) == 0 {
			t.Error("a chain without a certificate")
		}
	})
}

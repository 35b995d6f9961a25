package xds

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// requests that are acknowledgements and nothing else, or not.
var requests = []struct {
	name    string
	request *discovery.DeltaDiscoveryRequest
	is      bool
}{
	{"acknowledgement", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResponseNonce: "7"}, true},
	{"another type", &discovery.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/x", ResponseNonce: "7"}, false},
	{"no type", &discovery.DeltaDiscoveryRequest{ResponseNonce: "7"}, false},
	{"first request", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType}, false},
	{"subscription", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResponseNonce: "7", ResourceNamesSubscribe: []string{"a"}}, false},
	{"end of one", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResponseNonce: "7", ResourceNamesUnsubscribe: []string{"a"}}, false},
	{"refusal", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResponseNonce: "7", ErrorDetail: &statusProto{}}, false},
	{"node", &discovery.DeltaDiscoveryRequest{TypeUrl: build.EndpointType, ResponseNonce: "7", Node: &core.Node{Id: "a/b/c"}}, false},
}

func TestAcknowledgement(t *testing.T) {
	for _, c := range requests {
		t.Run(c.name, func(t *testing.T) {
			message, err := proto.Marshal(c.request)
			if err != nil {
				t.Fatal(err)
			}
			r, is := acknowledgement(message)
			if is != c.is || is && (r.Type != c.request.GetTypeUrl() || r.Nonce != c.request.GetResponseNonce()) {
				t.Errorf("%v, %+v", is, r)
			}
		})
	}
}

// FuzzAcknowledgement: what is taken for an acknowledgement is one for the generated code, too.
func FuzzAcknowledgement(f *testing.F) {
	for _, c := range requests {
		message, err := proto.Marshal(c.request)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message)
	}
	f.Add([]byte{0x32, 0x01, 0xff})
	f.Fuzz(func(t *testing.T, message []byte) {
		r, is := acknowledgement(message)
		if !is {
			return
		}
		got := &discovery.DeltaDiscoveryRequest{}
		if err := proto.Unmarshal(message, got); err != nil {
			t.Fatal(err)
		}
		if want := (&discovery.DeltaDiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.Nonce}); !proto.Equal(want, got) {
			t.Errorf("want %v, got %v", want, got)
		}
	})
}

package relay

import (
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// TestStrict: a port is strict if each filter chain of its inbound listener has TLS.
func TestStrict(t *testing.T) {
	secured := &listener.FilterChain{Name: "mtls", TransportSocket: &core.TransportSocket{Name: "tls"}}
	plain := &listener.FilterChain{Name: "plain"}
	r := New(Config{Node: "n"})
	for name, l := range map[string]*listener.Listener{
		"in|80":     {FilterChains: []*listener.FilterChain{secured, secured}},
		"in|443":    {FilterChains: []*listener.FilterChain{secured}, DefaultFilterChain: secured},
		"in|81":     {FilterChains: []*listener.FilterChain{secured, plain}},
		"in|82":     {FilterChains: []*listener.FilterChain{secured}, DefaultFilterChain: plain},
		"in|83":     {},
		"in|x":      {FilterChains: []*listener.FilterChain{secured}},
		"out|84":    {FilterChains: []*listener.FilterChain{secured}},
		"in|700000": {FilterChains: []*listener.FilterChain{secured}},
	} {
		body, err := proto.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		r.core.of(wire.Listener).accepted[name] = &entry{Resource: wire.NewResource(wire.Listener, name, "1", body)}
	}
	r.core.of(wire.Listener).accepted["in|85"] = &entry{Resource: wire.NewResource(wire.Listener, "in|85", "1", []byte{0xff})}
	if got := r.Strict(); !slices.Equal(got, []uint16{80, 443}) {
		t.Errorf("strict: %v, want 80 and 443", got)
	}
}

package wire

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

const serverName = "e0b0d4b8780dd5bf.8080.web.shop.default.proxima"

var (
	remote = &sites.Remote{
		Service: proxy.ServiceName{Namespace: "ns", Name: "web"}, Mesh: "default", Spread: true, EgressOnly: true,
		Ports: []sites.RemotePort{{
			Name: "http", Number: 80, SNI: serverName, Target: 443, Split: &sites.Split{Here: 3, Sites: map[string]uint32{"b": 1, "c": 2}},
		}},
		Sites: []sites.Site{{Name: "b", Instances: 3, Ports: []uint16{80},
			Ingresses: []sites.Gateway{{Name: "i", Host: "b.example", Port: 443}}}},
		Egresses: []sites.Gateway{{Name: "e", Host: "10.0.0.1", Port: 10002}}, External: outside, Hosts: []string{"pay.example"},
	}
	outside = &sites.External{
		Places: []sites.Place{{Host: "pay.example", Port: 443, Weight: 3, Near: true}},
		TLS: &sites.ExternalTLS{
			ServerName: "pay.example", SkipAuthority: true, SkipName: true, Names: []sites.NameMatch{{Value: "p", Prefix: true}},
			MinVersion: 0x303, MaxVersion: 0x304, Renegotiation: true, Roots: []byte("pem"), Secrets: true, Generation: 7,
		},
	}
	offer = &sites.Offer{
		Proxied: true, ServiceAccounts: []string{"a", "b"},
		Service: proxy.ServiceName{Namespace: "ns", Name: "web"}, Mesh: "default", ToSites: []string{"b"},
		Ports: []sites.OfferedPort{{Name: "http", SNI: serverName, ProxyProtocol: true, Target: 443}}, External: outside,
	}
)

func TestSitesRoundTrip(t *testing.T) {
	body, err := EncodeRemote(remote)
	if err != nil {
		t.Fatal(err)
	}
	r, err := DecodeRemote("ns/web", body)
	if diff := cmp.Diff(remote, r); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if body, err = EncodeOffer(offer); err != nil {
		t.Fatal(err)
	}
	o, err := DecodeOffer("ns/web", body)
	if diff := cmp.Diff(offer, o); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestInvalidSitesAreRefused(t *testing.T) {
	for what, edit := range map[string]func(*sites.Remote){
		"mesh":        func(r *sites.Remote) { r.Mesh = "" },
		"server name": func(r *sites.Remote) { r.Ports = []sites.RemotePort{{Number: 80, SNI: "x"}} },
		"number":      func(r *sites.Remote) { r.Ports = []sites.RemotePort{{SNI: serverName}} },
		"site":        func(r *sites.Remote) { r.Sites = []sites.Site{{}} },
		"a name":      func(r *sites.Remote) { r.Hosts = []string{"Pay_.example"} },
		"host":        func(r *sites.Remote) { r.Egresses = []sites.Gateway{{Port: 1}} },
		"port":        func(r *sites.Remote) { r.Egresses = []sites.Gateway{{Host: "h"}} },
		"split": func(r *sites.Remote) {
			r.Ports = []sites.RemotePort{{Number: 80, SNI: serverName, Split: &sites.Split{}}}
		},
		"part": func(r *sites.Remote) {
			r.Ports = []sites.RemotePort{{Number: 80, SNI: serverName, Split: &sites.Split{Sites: map[string]uint32{"b": 0, "c": 1}}}}
		},
		"place":   func(r *sites.Remote) { r.External = &sites.External{Places: []sites.Place{{Port: 1}}} },
		"Service": func(r *sites.Remote) { r.Service.Name = "other" },
	} {
		r := *remote
		edit(&r)
		body, err := EncodeRemote(&r)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeRemote("ns/web", body); err == nil {
			t.Errorf("%s: accepted: %+v", what, got)
		}
	}
	for what, edit := range map[string]func(*sites.Offer){
		"mesh":        func(o *sites.Offer) { o.Mesh = "" },
		"server name": func(o *sites.Offer) { o.Ports = []sites.OfferedPort{{SNI: "x"}} },
	} {
		o := *offer
		edit(&o)
		body, err := EncodeOffer(&o)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeOffer("ns/web", body); err == nil {
			t.Errorf("%s: accepted: %+v", what, got)
		}
	}
}

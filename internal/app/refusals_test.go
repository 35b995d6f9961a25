package app

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestWhatIngressesRefuse: over real connections, an ingress serves nobody but workloads of
// the service's mesh, with valid certificates, for the names that it has; and clients
// accept nobody but the ingress of the site. No refused stream reaches an endpoint.
func TestWhatIngressesRefuse(t *testing.T) {
	n := newSharesNet(t)
	other := catest.New(t, "other", nil, nil)
	stranger := catest.New(t, "stranger", nil, nil)
	otherDomain := must[mesh.Domain](t)(mesh.DomainOf("other", ""))
	n.trust = must[*mesh.Trust](t)(mesh.NewTrust(
		mesh.Bundle{Mesh: "default", Domain: n.domain(), Roots: []*x509.Certificate{n.root.Cert}},
		mesh.Bundle{Mesh: "other", Domain: otherDomain, Roots: []*x509.Certificate{other.Cert}},
	))
	n.remote("b", 1, 1)
	remote := n.update(netip.Addr{}).Remotes[sharedDerived]
	gateway := remote.Sites[0].Ingresses[0]
	at := netip.MustParseAddrPort(gateway.Address())
	serverName := remote.Ports[0].SNI

	issue := func(ca *catest.CA, meshName string, id mesh.ID, notAfter time.Time) *sharesIdentities {
		t.Helper()
		return n.issue(ca, meshName, id, "a", notAfter)
	}
	later := time.Now().Add(time.Hour)
	workload := must[mesh.ID](t)(mesh.Workload(n.domain(), "shop", "client"))
	foreign := must[mesh.ID](t)(mesh.Workload(otherDomain, "shop", "client"))
	good := issue(n.root, "default", workload, later)
	forged := func(s mesh.Service) string { return must[string](t)(mesh.SNI(s)) }

	for what, tc := range map[string]struct {
		ids      *sharesIdentities
		sni      string
		identity string
		site     string
		ok       bool
		text     string
	}{
		"a workload of the mesh":       {ids: good, ok: true},
		"a service that is not served": {ids: good, sni: forged(mesh.Service{Mesh: "default", Namespace: "shop", Name: "db", Port: "8080"})},
		"another port of it":           {ids: good, sni: forged(mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: "22"})},
		"the labels with another hash": {ids: good, sni: "0123456789abcdef" + serverName[16:]},
		"its name in another mesh":     {ids: good, sni: forged(mesh.Service{Mesh: "other", Namespace: "shop", Name: "web", Port: "8080"})},
		"no server name of ours":       {ids: good, sni: "b.example"},
		"a workload of another mesh":   {ids: issue(other, "other", foreign, later)},
		"a mesh that is not its own":   {ids: issue(other, "default", workload, later)},
		"an authority of nobody":       {ids: issue(stranger, "default", workload, later)},
		"an expired certificate":       {ids: issue(n.root, "default", workload, time.Now().Add(-time.Minute))},
		"somebody else's identity":     {ids: good, identity: "spiffe://default.mesh/ns/shop/sa/admin"},
		"an ingress of another site":   {ids: good, site: "c", text: "verify gateway"},
	} {
		t.Run(what, func(t *testing.T) {
			c := tunnel.NewClient(tunnel.Config{Site: "a"})
			defer c.Close()
			creds := outbound.CredentialsOf(tc.ids.svid, "default", func() *mesh.Trust { return n.trust })
			request := tunnel.Request{
				SNI: serverName, Credentials: creds,
				Peers:  []tunnel.Peer{{Name: gateway.Name, Address: at, Role: tunnel.RoleIngress, Site: "b", Weight: 1}},
				Stream: frame.Stream{Client: netip.MustParseAddrPort("10.1.0.5:4000"), Node: "n1", Identity: creds.Identity},
			}
			if tc.sni != "" {
				request.SNI = tc.sni
			}
			if tc.identity != "" {
				request.Stream.Identity = tc.identity
			}
			if tc.site != "" {
				request.Peers[0].Site = tc.site
			}
			conn, err := c.Open(context.Background(), request, []byte{1})
			if conn != nil {
				conn.Finish(false)
			}
			var failure *tunnel.OpenError
			switch {
			case (err == nil) != tc.ok:
				t.Errorf("%v, want success %t", err, tc.ok)
			case err != nil && (!errors.As(err, &failure) || !strings.Contains(err.Error(), tc.text)):
				t.Errorf("%v, want a reason with %q", err, tc.text)
			case err != nil && failure.Reason == frame.Unspecified:
				t.Errorf("no reason is given: %v", err)
			}
		})
	}
	if got := n.accepted.Load(); got != 1 {
		t.Errorf("%d streams reached the endpoint, want the one of a workload of the mesh", got)
	}
}

// TestWhatClientsRefuse: a gateway with an expired certificate, of another site or role, or of
// an authority that the mesh does not have, gets no byte.
func TestWhatClientsRefuse(t *testing.T) {
	n := newSharesNet(t)
	later := time.Now().Add(time.Hour)
	ingressID := must[mesh.ID](t)(mesh.Ingress(n.domain(), "b"))
	workload := n.issue(n.root, "default", must[mesh.ID](t)(mesh.Workload(n.domain(), "shop", "client")), "a", later)
	for what, tc := range map[string]struct {
		ids *sharesIdentities
		ok  bool
	}{
		"the ingress of the site": {n.issue(n.root, "default", ingressID, "b", later), true},
		"an expired certificate":  {n.issue(n.root, "default", ingressID, "b", time.Now().Add(-time.Minute)), false},
		"another authority":       {n.issue(catest.New(t, "stranger", nil, nil), "default", ingressID, "b", later), false},
		"another site's ingress":  {n.issue(n.root, "default", must[mesh.ID](t)(mesh.Ingress(n.domain(), "c")), "b", later), false},
		"an egress":               {n.issue(n.root, "default", must[mesh.ID](t)(mesh.Egress(n.domain(), "b")), "b", later), false},
		"a workload":              {n.issue(n.root, "default", workload.svid.ID, "b", later), false},
	} {
		t.Run(what, func(t *testing.T) {
			before := n.accepted.Load()
			at, serverName := n.ingress("b", tc.ids)
			c := tunnel.NewClient(tunnel.Config{Site: "a"})
			defer c.Close()
			creds := outbound.CredentialsOf(workload.svid, "default", func() *mesh.Trust { return n.trust })
			conn, err := c.Open(t.Context(), tunnel.Request{
				SNI: serverName, Credentials: creds,
				Peers:  []tunnel.Peer{{Name: "i", Address: at, Role: tunnel.RoleIngress, Site: "b", Weight: 1}},
				Stream: frame.Stream{Client: netip.MustParseAddrPort("10.1.0.5:4000"), Node: "n1", Identity: creds.Identity},
			}, []byte{1})
			if conn != nil {
				conn.Finish(false)
			}
			reached := n.accepted.Load() > before
			if (err == nil) != tc.ok || reached != tc.ok {
				t.Errorf("%v, reached %t, want %t", err, reached, tc.ok)
			}
		})
	}
}

// TestPoliciesComeFromGlobal: a zone does not write them, but those that it labels as its own.
func TestPoliciesComeFromGlobal(t *testing.T) {
	cfg := ControlPlaneConfig{Zone: "a", Global: "global.example:6444", Role: RoleZone}
	policy := &access.WritePolicy{Site: cfg.accessSite()}
	admin := &user.DefaultInfo{Name: "root", Groups: []string{identity.GroupAdmins}}
	for d, object := range map[*resource.Descriptor]resource.Object{
		kind.Mesh: &meshv1alpha1.Mesh{}, kind.ZoneCosts: &meshv1alpha1.ZoneCosts{},
		kind.ExternalService: &meshv1alpha1.ExternalService{}, kind.TopologyHeuristic: &meshv1alpha1.TopologyHeuristic{},
	} {
		object.SetName("x")
		if d.Namespaced {
			object.SetNamespace("shop")
		}
		w := access.Write{User: admin, Kind: d.GVK.GroupKind(), Object: object}
		if err := policy.Allow(t.Context(), w); err == nil || !strings.Contains(err.Error(), "global.example:6444") {
			t.Errorf("%s: %v, want a refusal that names global", d.GVK.Kind, err)
		}
		object.SetLabels(map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone})
		if err := policy.Allow(t.Context(), w); err != nil {
			t.Errorf("%s of the zone itself: %v", d.GVK.Kind, err)
		}
	}
}

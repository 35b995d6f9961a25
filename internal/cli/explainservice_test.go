package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func TestParseServiceName(t *testing.T) {
	for name, want := range map[string]string{
		"web":                             "default/web",
		"shop/web":                        "shop/web",
		"web.shop.svc":                    "shop/web",
		"web.shop.svc.cluster.local.":     "shop/web",
		"web.shop.svc.clusterset.local":   "shop/" + mcs.DerivedServiceName("shop", "web"),
		"a.web.shop.svc.clusterset.local": "",
		"web.shop":                        "",
		"www.example.com":                 "",
	} {
		namespace, service, err := parseServiceName("default", name)
		got := namespace + "/" + service
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%s: %q %v, want %q", name, got, err, want)
		}
	}
}

// TestMeshNames: names below mesh are found in every form in which clients write them, in the
// mesh that is meant.
func TestMeshNames(t *testing.T) {
	long := strings.Repeat("t", 70)
	longHost, err := meshname.OfTag(long)
	if err != nil {
		t.Fatal(err)
	}
	var objects []resource.Object
	for _, spec := range []meshv1alpha1.VirtualIPSpec{
		{Mesh: "default", Hostname: "web_shop_svc_8080", Service: "web", Port: 8080},
		{Mesh: "default", Hostname: "backend", Service: "tag-backend"},
		{Mesh: "default", Hostname: "both", Service: "of-default"},
		{Mesh: "other", Hostname: "both", Service: "of-other"},
		{Mesh: "other", Hostname: longHost, Service: "long"},
	} {
		objects = append(objects, &meshv1alpha1.VirtualIP{Spec: spec})
	}
	for _, test := range []struct{ name, mesh, want, wrong string }{
		{"web_shop_svc_8080.mesh", "", "web", ""},
		{"Web.shop.svc.8080.mesh.", "", "web", ""},
		{"backend.mesh", "default", "tag-backend", ""},
		{"both.mesh", "", "", "a name of the meshes default, other: choose one with --mesh"},
		{"both.mesh", "other", "of-other", ""},
		{long + ".mesh", "", "long", ""},
		{"backend.mesh", "other", "", "there is no name backend.mesh in mesh other"},
		{"none.mesh", "", "", "there is no name none.mesh"},
	} {
		host, ok := hostBelowMesh(test.name)
		if !ok {
			t.Fatalf("%s is no name below mesh", test.name)
		}
		vip, err := findMeshName(objects, host, test.mesh)
		switch {
		case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
			t.Errorf("%s in mesh %q: %v, want %q", test.name, test.mesh, err, test.wrong)
		case test.wrong == "" && (err != nil || vip.Spec.Service != test.want):
			t.Errorf("%s in mesh %q: %+v, %v, want %s", test.name, test.mesh, vip, err, test.want)
		}
	}
	for _, name := range []string{"web", "shop/web.mesh", ".mesh", "mesh", "web.shop.svc.cluster.local"} {
		if host, ok := hostBelowMesh(name); ok {
			t.Errorf("%s is taken for the name %s of a mesh", name, host)
		}
	}
}

// TestPrintMeshName: of a name of a mesh its own addresses are shown.
func TestPrintMeshName(t *testing.T) {
	var out bytes.Buffer
	since := time.Now().Add(-10 * time.Minute)
	err := printExplanation(&out, &diag.Service{
		Service: "proxima-tags-default/backend", Address: []string{"10.96.0.7"},
		MeshName: &diag.MeshName{Name: "backend.mesh", Mesh: "default", Addresses: []string{"240.0.0.3"}, UnusedSince: &since},
	})
	want := "backend.mesh of mesh default, proxima-tags-default/backend at 240.0.0.3, from anywhere: give --from-zone or --from-node to see " +
		"a place's own choice\nnothing has answered by this name for 10m; its addresses are kept for an hour\n"
	if diff := cmp.Diff(want, out.String()); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// TestPrintElsewhere: the whole way of connections to other zones is on the page.
func TestPrintElsewhere(t *testing.T) {
	var out bytes.Buffer
	err := printExplanation(&out, &diag.Service{
		Service: "shop/web-x", ImportOf: "web.shop.svc.clusterset.local", Address: []string{"10.96.0.7"},
		Hosts: []string{"web.example"}, NotEnforced: []string{"TLSEnforced: there is no Secret s"},
		Ports: []diag.Port{{
			Port: 80, Protocol: "TCP", Families: []diag.Family{{Family: "IPv4", Rule: "other sites", Outcome: "through the tunnel", Elsewhere: 1}},
			Elsewhere: &diag.Elsewhere{
				Mesh: "default", ServerName: "sni", Why: "no endpoint of this site is ready",
				Sites: []diag.Site{
					{Name: "b", Instances: 3, Share: 0.75, Ingresses: []diag.Gateway{{Name: "i1", Address: "203.0.113.7:10001"}}},
					{Name: "c", Instances: 1, Share: 0.25, Ingresses: []diag.Gateway{{Name: "i2", Address: "203.0.113.8:10001"}}},
				},
				Failure: &diag.Failure{At: time.Now().Add(-time.Minute), Count: 4, Reason: "no route", Error: "peer i1: no route"},
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `web.shop.svc.clusterset.local (Service shop/web-x) at 10.96.0.7, from anywhere: give --from-zone or --from-node to see a place's own choice
also by web.example, for workloads of its mesh that ask an agent
does not hold: TLSEnforced: there is no Secret s

port 80/TCP IPv4: through the tunnel
  decided by: other sites
  out of this zone: 100 %: no endpoint of this site is ready
  way: virtual IP > tunnel of the node > ingress of the other zone > its endpoint
  ZONE  INSTANCES  SHARE  INGRESSES
  b     3          75 %   i1 (203.0.113.7:10001)
  c     1          25 %   i2 (203.0.113.8:10001)
  last failure on this machine, 60s ago, one of 4: peer i1: no route
`
	if diff := cmp.Diff(want, strings.ReplaceAll(out.String(), "61s", "60s")); diff != "" {
		t.Error(diff)
	}
}

package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/diag"
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

package app

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// observedIn is what global shows of a policy in a zone: TYPE=STATUS, in order.
func (s *sites) observedIn(zone string, k *resource.Descriptor, name string) string {
	s.t.Helper()
	var zones []meshv1alpha1.PolicyZoneStatus
	switch o := s.global.displayed(k)[name].(type) {
	case *meshv1alpha1.Mesh:
		zones = o.Status.Zones
	case *meshv1alpha1.ExternalService:
		zones = o.Status.Zones
	case *meshv1alpha1.ZoneCosts:
		zones = o.Status.Zones
	case *meshv1alpha1.TopologyHeuristic:
		zones = o.Status.Zones
	}
	for _, z := range zones {
		if z.Zone != zone {
			continue
		}
		var out []string
		for _, c := range z.Conditions {
			out = append(out, c.Type+"="+string(c.Status))
		}
		return strings.Join(out, " ")
	}
	return ""
}

// TestPolicyStatusOfZones: global shows what each zone observes of its policies, and what a
// zone observes of its own ones stays there.
func TestPolicyStatusOfZones(t *testing.T) {
	s := startSites(t)
	s.global.create(kind.ExternalService, &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pay"},
		Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"pay.example"}, Ports: []meshv1alpha1.ExternalServicePort{{Port: 443}},
		},
	})
	m := namedMesh("shop")
	m.Spec.MTLS = builtin("one", "one")
	s.global.create(kind.Mesh, m)
	s.global.create(kind.ZoneCosts, &meshv1alpha1.ZoneCosts{ObjectMeta: metav1.ObjectMeta{Name: "cheap"}})
	s.global.create(kind.TopologyHeuristic, &meshv1alpha1.TopologyHeuristic{
		ObjectMeta: metav1.ObjectMeta{Name: "home"}, Spec: meshv1alpha1.TopologyHeuristicSpec{Zones: "[endpoint.zone]"},
	})
	for _, zone := range []string{"a", "b"} {
		until(t, "the status of the ExternalService in zone "+zone, func() bool {
			return strings.Contains(s.observedIn(zone, kind.ExternalService, "pay"), "Addressed=")
		})
		until(t, "the status of the Mesh in zone "+zone, func() bool {
			return strings.Contains(s.observedIn(zone, kind.Mesh, "shop"), "CertificatesReady=True")
		})
		for name, k := range map[string]*resource.Descriptor{"cheap": kind.ZoneCosts, "home": kind.TopologyHeuristic} {
			until(t, "the status of "+name+" in zone "+zone, func() bool {
				return s.observedIn(zone, k, name) == "Accepted=True Resolved=True"
			})
		}
	}
	s.b.stop()
	s.enable("b", false)
	if err := s.global.client.Delete(t.Context(), kind.Zone, resource.Key{Name: "b"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the deleted zone is forgotten", func() bool {
		return s.observedIn("b", kind.Mesh, "shop") == "" && s.observedIn("b", kind.ExternalService, "pay") == ""
	})
	if s.observedIn("a", kind.Mesh, "shop") == "" {
		t.Error("zone a is forgotten, too")
	}
	own := namedMesh("own")
	own.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	s.a.create(kind.Mesh, own)
	obj, err := s.a.client.Get(t.Context(), kind.Mesh, resource.Key{Name: "shop"})
	if err != nil || len(obj.(*meshv1alpha1.Mesh).Status.Zones) > 0 {
		t.Errorf("what global knows of zones is in a zone: %v", err)
	}
}

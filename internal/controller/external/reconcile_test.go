package external

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func input(edit func(*Input)) Input {
	in := Input{
		Site: "a", Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{meshv1alpha1.LabelMesh: "retail"}}},
		External: &meshv1alpha1.ExternalService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay", UID: "u", Generation: 3},
			Spec: meshv1alpha1.ExternalServiceSpec{
				Hosts: []string{"pay.example"}, Ports: []meshv1alpha1.ExternalServicePort{{Name: "https", Port: 443}},
			},
		},
		Ingresses: map[string]bool{},
	}
	if edit != nil {
		edit(&in)
	}
	return in
}

func TestService(t *testing.T) {
	in := input(nil)
	p := Reconcile(in)
	s := p.Service
	if s == nil || s.Name != "pay" || !Owned(s) || s.Labels[meshv1alpha1.LabelMesh] != "retail" || len(s.Spec.Selector) != 0 ||
		len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "u" || s.Spec.Ports[0].Port != 443 {
		t.Fatalf("%+v", s)
	}
	if c := meta.FindStatusCondition(p.Status.Conditions, meshv1alpha1.ExternalServiceAddressed); c.Reason != "NoAddress" {
		t.Errorf("%+v", c)
	}
	s.Spec.ClusterIPs = []string{"10.96.0.4"}
	in.Service = s
	again := Reconcile(in)
	if again.Service != s {
		t.Error("a Service that is as it should be is written again")
	}
	if len(again.Status.VirtualIPs) != 1 || again.Status.ObservedGeneration != 3 ||
		!meta.IsStatusConditionTrue(again.Status.Conditions, meshv1alpha1.ExternalServiceAddressed) {
		t.Errorf("%+v", again.Status)
	}
}

func TestConditions(t *testing.T) {
	addressed := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay", Labels: map[string]string{meshv1alpha1.LabelExternalService: "pay"}},
		Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.4"}}}
	egress := func(in *Input) {
		in.Mesh = &meshv1alpha1.Mesh{Spec: meshv1alpha1.MeshSpec{
			Routing: &meshv1alpha1.MeshRouting{ZoneEgress: new(true)}, MTLS: &meshv1alpha1.MeshMTLS{EnabledBackend: "b"},
		}}
	}
	for what, tc := range map[string]struct {
		edit      func(*Input)
		condition string
		status    bool
		reason    string
	}{
		"a Service of the name": {func(in *Input) { in.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "pay"}} },
			meshv1alpha1.ExternalServiceAddressed, false, "NameTaken"},
		"another zone": {func(in *Input) { in.External.Spec.Zones = []string{"b"} }, meshv1alpha1.ExternalServiceAddressed, false, "NoIngress"},
		"another zone's ingress": {func(in *Input) { in.External.Spec.Zones = []string{"b"}; in.Ingresses["b"] = true },
			meshv1alpha1.ExternalServiceAddressed, true, "ByOtherZones"},
		"this zone": {func(in *Input) { in.External.Spec.Zones = []string{"a", "b"} }, meshv1alpha1.ExternalServiceAddressed, true, "Reached"},
		"UDP":       {func(in *Input) { in.External.Spec.Ports[0].Protocol = "UDP" }, meshv1alpha1.ExternalServiceAddressed, false, "UDP"},
		"hosts":     {nil, meshv1alpha1.ExternalServiceHostsEnforced, true, "Enforced"},
		"a host of another": {func(in *Input) { in.Rivals = map[string]string{"pay.example": "shop/old"} },
			meshv1alpha1.ExternalServiceHostsEnforced, false, "HostTaken"},
		"hosts without addresses": {func(in *Input) { in.Service = nil }, meshv1alpha1.ExternalServiceHostsEnforced, false, "NoAddress"},
		"hosts without a way":     {func(in *Input) { in.External.Spec.Zones = []string{"b"} }, meshv1alpha1.ExternalServiceHostsEnforced, false, "NoWay"},
		"hosts of a UDP service":  {func(in *Input) { in.External.Spec.Ports[0].Protocol = "UDP" }, meshv1alpha1.ExternalServiceHostsEnforced, false, "NoWay"},
		"a host of a mesh":        {func(in *Input) { in.External.Spec.Hosts = []string{"x.mesh"} }, meshv1alpha1.ExternalServiceHostsEnforced, false, "Reserved"},
		"no hosts":                {func(in *Input) { in.External.Spec.Hosts = nil }, meshv1alpha1.ExternalServiceHostsEnforced, true, "NotAskedFor"},
		"no TLS":                  {nil, meshv1alpha1.ExternalServiceTLSEnforced, true, "NotAskedFor"},
		"TLS": {func(in *Input) { in.External.Spec.TLS = &meshv1alpha1.ExternalServiceTLS{} },
			meshv1alpha1.ExternalServiceTLSEnforced, true, "Enforced"},
		"a Secret": {func(in *Input) {
			in.External.Spec.TLS = &meshv1alpha1.ExternalServiceTLS{ClientKey: &meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "s"}}}
		}, meshv1alpha1.ExternalServiceTLSEnforced, true, "Enforced"},
		"a Secret that is missing": {func(in *Input) {
			in.External.Spec.TLS, in.Secrets = &meshv1alpha1.ExternalServiceTLS{}, errors.New("there is no Secret s")
		}, meshv1alpha1.ExternalServiceTLSEnforced, false, "NotEnforced"},
		"no zone egress":          {nil, meshv1alpha1.ExternalServiceZoneEgressEnforced, true, "NotAskedFor"},
		"zone egress without one": {egress, meshv1alpha1.ExternalServiceZoneEgressEnforced, true, "NoEgress"},
		"zone egress":             {func(in *Input) { egress(in); in.Egresses = []string{"e"} }, meshv1alpha1.ExternalServiceZoneEgressEnforced, true, "Enforced"},
	} {
		in := input(func(in *Input) { in.Service = addressed })
		if tc.edit != nil {
			tc.edit(&in)
		}
		c := meta.FindStatusCondition(Reconcile(in).Status.Conditions, tc.condition)
		if c == nil || c.Reason != tc.reason || (c.Status == metav1.ConditionTrue) != tc.status || c.ObservedGeneration != 3 {
			t.Errorf("%s: %+v", what, c)
		}
	}
	in := input(func(in *Input) { in.Service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "pay"}} })
	if p := Reconcile(in); p.Service != nil {
		t.Error("a user's Service is taken over")
	}
	if p := Reconcile(Input{Site: "a"}); p.Service != nil || p.Status.ObservedGeneration != 0 {
		t.Errorf("without an ExternalService: %+v", p)
	}
}

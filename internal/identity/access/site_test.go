package access

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func siteDirection(gk schema.GroupKind) resource.Direction {
	switch gk.Kind {
	case "Mesh", "ExternalService":
		return resource.GlobalToZone
	case "Dataplane":
		return resource.ZoneToGlobal
	}
	return resource.Stays
}

func labelledAs(origin, zone string) map[string]string {
	out := map[string]string{}
	if origin != "" {
		out[meshv1alpha1.LabelOrigin] = origin
	}
	if zone != "" {
		out[meshv1alpha1.LabelZone] = zone
	}
	return out
}

func meshOf(origin, zone string) resource.Object {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: labelledAs(origin, zone)}}
}

func dataplaneOf(origin, zone string) resource.Object {
	return &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "m", Labels: labelledAs(origin, zone)}}
}

func externalIn(namespace string) resource.Object {
	return &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e", Labels: labelledAs("zone", "")}}
}

// TestSite: who writes what, an administrator too.
func TestSite(t *testing.T) {
	zone := Site{Zone: "a", Global: "g:6443", Direction: siteDirection}
	global := Site{AtGlobal: true, Direction: siteDirection}
	for name, test := range map[string]struct {
		site     Site
		kind     string
		obj, old resource.Object
		want     string // part of the refusal; empty: it is allowed
	}{
		"alone":                         {Site{Direction: siteDirection}, "Mesh", meshOf("zone", "b"), meshOf("global", ""), ""},
		"zone: a policy":                {zone, "Mesh", meshOf("", ""), nil, "written at the global control plane (g:6443)"},
		"zone: its own policy":          {zone, "Mesh", meshOf("zone", ""), nil, ""},
		"zone: its own policy, named":   {zone, "Mesh", meshOf("zone", "a"), nil, ""},
		"zone: one of its own changed":  {zone, "Mesh", meshOf("zone", ""), meshOf("zone", ""), ""},
		"zone: one of its own deleted":  {zone, "Mesh", nil, meshOf("zone", ""), ""},
		"zone: one from before":         {zone, "Mesh", nil, meshOf("", ""), ""},
		"zone: in global's namespace":   {zone, "ExternalService", externalIn(SystemNamespace), nil, "is global's"},
		"zone: in another namespace":    {zone, "ExternalService", externalIn("shop"), nil, ""},
		"zone: as global's":             {zone, "Mesh", meshOf("global", ""), nil, "are set by control planes"},
		"zone: a copy changed":          {zone, "Mesh", meshOf("global", ""), meshOf("global", ""), "a copy of an object of global (g:6443)"},
		"zone: a copy made its own":     {zone, "Mesh", meshOf("zone", ""), meshOf("global", ""), "a copy of an object of global"},
		"zone: a copy deleted":          {zone, "Mesh", nil, meshOf("global", ""), "a copy of an object of global"},
		"zone: a workload":              {zone, "Dataplane", dataplaneOf("", ""), nil, ""},
		"zone: as another zone's":       {zone, "Dataplane", dataplaneOf("zone", "b"), nil, "are set by control planes"},
		"zone: another zone's label":    {zone, "Dataplane", dataplaneOf("", "b"), nil, "are set by control planes"},
		"zone: another's copy":          {zone, "Dataplane", nil, dataplaneOf("zone", "b"), "a copy of an object of zone b"},
		"zone: a Zone":                  {zone, "Zone", &meshv1alpha1.Zone{}, nil, "are made at the global control plane (g:6443)"},
		"zone: another kind":            {zone, "ConfigMap", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: labelledAs("zone", "b")}}, nil, ""},
		"alone: a Zone":                 {Site{}, "Zone", &meshv1alpha1.Zone{}, nil, "stands alone"},
		"global: a Zone":                {global, "Zone", &meshv1alpha1.Zone{}, nil, ""},
		"global: a policy":              {global, "Mesh", meshOf("", ""), nil, ""},
		"global: as a zone's":           {global, "Mesh", meshOf("zone", ""), nil, "are set by control planes"},
		"global: with a zone":           {global, "Mesh", meshOf("", "b"), nil, "are set by control planes"},
		"global: a workload":            {global, "Dataplane", dataplaneOf("", ""), nil, "at the control plane of its zone"},
		"global: a zone's object":       {global, "Dataplane", dataplaneOf("zone", "b"), dataplaneOf("zone", "b"), "a copy of an object of zone b"},
		"global: a zone's object freed": {global, "Dataplane", dataplaneOf("", ""), dataplaneOf("zone", "b"), "a copy of an object of zone b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := Write{
				User: &user.DefaultInfo{Name: "root", Groups: []string{identity.GroupAdmins}},
				Kind: schema.GroupKind{Group: meshGroup, Kind: test.kind}, Object: test.obj, Old: test.old,
			}
			err := (&WritePolicy{Site: test.site}).Allow(t.Context(), w)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestSiteStamps: a zone names itself on what is registered in it.
func TestSiteStamps(t *testing.T) {
	p := &WritePolicy{Site: Site{Zone: "a", Direction: siteDirection}}
	dp := dataplaneOf("", "")
	p.Prepare(Write{Object: dp})
	if l := dp.GetLabels(); l[meshv1alpha1.LabelZone] != "a" || l[meshv1alpha1.LabelOrigin] != meshv1alpha1.OriginZone {
		t.Errorf("labels of a Dataplane: %v", l)
	}
	forged := dataplaneOf("zone", "b")
	p.Prepare(Write{Object: forged})
	if forged.GetLabels()[meshv1alpha1.LabelZone] != "b" {
		t.Error("a forged label is corrected, and not refused")
	}
	for given, want := range map[string]string{"": "a", "rack-1": "rack-1"} {
		node := &corev1.Node{}
		if given != "" {
			node.Labels = map[string]string{corev1.LabelTopologyZone: given}
		}
		p.Prepare(Write{Object: node})
		if got := node.Labels[corev1.LabelTopologyZone]; got != want {
			t.Errorf("topology zone %q of a node with %q", got, given)
		}
	}
}

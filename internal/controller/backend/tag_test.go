package backend

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// TestPortsOfTags: behind the Service of a tag a workload has only the ports with the tag.
func TestPortsOfTags(t *testing.T) {
	d := &meshv1alpha1.Dataplane{Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"192.0.2.1"}, Ports: []meshv1alpha1.DataplanePort{
		{Name: "http", Port: 8080, Tags: map[string]string{meshv1alpha1.LabelService: "web"}}, {Name: "admin", Port: 9090},
		{Port: 7070, Tags: map[string]string{meshv1alpha1.LabelKumaService: "api"}},
	}}}
	for host, want := range map[string][]int32{"web": {8080, 8080}, "api": {7070, 7070}, "none": nil} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: servicetag.Namespace("default")}}
		s.Spec.Selector = servicetag.Selector(host)
		s.Spec.Ports = servicetag.Ports([][]servicetag.Inbound{servicetag.DataplaneInbounds(d, host)})
		var got []int32
		b := OfDataplane(d, "")
		for _, p := range b.Ports(s) {
			got = append(got, *p.Port)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}

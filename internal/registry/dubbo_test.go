package registry

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMetadataOf(t *testing.T) {
	of := func(annotations map[string]string) (*ApplicationMetadata, error) {
		return MetadataOf(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: annotations}})
	}
	if m, err := of(map[string]string{AnnotationApplication: "shop-orders"}); m != nil || err != nil {
		t.Errorf("without an interface: %v, %v", m, err)
	}
	m, err := of(map[string]string{AnnotationInterface: "blue/shop.Orders:1.0, shop.Pay"})
	if err != nil {
		t.Fatal(err)
	}
	if m.Application != "orders" || strings.Join(m.Interfaces(), " ") != "shop.Orders shop.Pay" {
		t.Errorf("metadata %+v", m)
	}
	if s, ok := m.Services["blue/shop.Orders:1.0:tri"]; !ok || s.Group != "blue" || s.Version != "1.0" || s.Params["group"] != "blue" {
		t.Errorf("services %+v", m.Services)
	}
	same, _ := of(map[string]string{AnnotationInterface: "shop.Pay,blue/shop.Orders:1.0", AnnotationRPCProtocol: "triple"})
	other, _ := of(map[string]string{AnnotationInterface: "shop.Pay,blue/shop.Orders:1.1"})
	if same.Revision != m.Revision || other.Revision == m.Revision {
		t.Errorf("revisions %s, %s, %s", m.Revision, same.Revision, other.Revision)
	}
	for _, bad := range []map[string]string{
		{AnnotationInterface: "shop.Pay,"}, {AnnotationInterface: "a/b/c"}, {AnnotationInterface: "shop.Pay", AnnotationRPCProtocol: "rest"},
	} {
		if m, err := of(bad); err == nil {
			t.Errorf("%v: %+v, want an error", bad, m)
		}
	}
}

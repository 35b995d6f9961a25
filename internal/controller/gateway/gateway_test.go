package gateway_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/gateway"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func labels(component string) map[string]string {
	return map[string]string{gateway.LabelName: gateway.Name, gateway.LabelComponent: component}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "proxima-system", Name: name, Labels: labels(gateway.Ingress)},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "ingress", Image: "none"}}},
		Status:     corev1.PodStatus{PodIP: "10.244.1.2", Phase: corev1.PodRunning},
	}
}

func service(kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "proxima-system", Name: "proxima-ingress", Labels: labels(gateway.Ingress)},
		Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{
			{Name: "tunnel", Port: 443, NodePort: 30001, TargetPort: intstr.FromString("tunnel")},
		}},
	}
}

// TestReconcile: how a gateway is reached from elsewhere, in the order of what is preferred.
func TestReconcile(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "198.51.100.7"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.7"},
	}}}
	annotated, balanced := service(corev1.ServiceTypeLoadBalancer), service(corev1.ServiceTypeLoadBalancer)
	annotated.Annotations = map[string]string{gateway.AnnotationAdvertised: "gate.example:8443"}
	annotated.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
	plain := service(corev1.ServiceTypeClusterIP)
	bare := service(corev1.ServiceTypeNodePort)
	bare.Annotations = map[string]string{gateway.AnnotationAdvertised: "2001:db8::1"}
	gone, noAddress := pod("a"), pod("a")
	gone.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	noAddress.Status.PodIP = ""
	own := meshv1alpha1.ZoneGatewaySpec{Zone: "east", Address: "10.244.1.2", Port: 10001}
	at := func(host string, port int32) *meshv1alpha1.ZoneGatewaySpec {
		out := own
		out.AdvertisedAddress, out.AdvertisedPort = host, port
		return &out
	}
	for name, tt := range map[string]struct {
		pod     *corev1.Pod
		service *corev1.Service
		node    *corev1.Node
		want    *meshv1alpha1.ZoneGatewaySpec
	}{
		"annotation":                       {pod("a"), annotated, node, at("gate.example", 8443)},
		"annotation without a port":        {pod("a"), bare, node, at("2001:db8::1", 443)},
		"load balancer":                    {pod("a"), balanced, node, at("lb.example", 443)},
		"load balancer without an address": {pod("a"), service(corev1.ServiceTypeLoadBalancer), node, at("203.0.113.7", 30001)},
		"node port":                        {pod("a"), service(corev1.ServiceTypeNodePort), node, at("203.0.113.7", 30001)},
		"node port of a node without one":  {pod("a"), service(corev1.ServiceTypeNodePort), nil, &own},
		"cluster IP":                       {pod("a"), plain, node, &own},
		"no Service":                       {pod("a"), nil, node, &own},
		"no Pod":                           {nil, plain, node, nil},
		"terminating":                      {gone, plain, node, nil},
		"no address yet":                   {noAddress, plain, node, nil},
	} {
		got := gateway.Reconcile(gateway.Input{Site: "east", Pod: tt.pod, Node: tt.node, Service: tt.service, Port: 10001})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestController: an object comes with its Pod, follows it, and goes with it; those of gateways
// that register themselves stay.
func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		kinds := append(resourcetest.Descriptors(), kind.ZoneIngress, kind.ZoneEgress)
		client := resourcetest.New(kinds...)
		tables := catalog.New(catalog.Config{Client: client, Descriptors: kinds})
		running.Go(func() { _ = tables.Run(ctx) })
		c := gateway.New(gateway.Config{
			Client: client, Catalog: tables, Site: "east", Namespace: "proxima-system", IngressPort: 10001, EgressPort: 10002,
		})
		running.Go(func() { _ = c.Run(ctx) })
		own := &meshv1alpha1.ZoneIngress{ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: meshv1alpha1.ZoneGatewaySpec{Address: "192.0.2.7", Port: 10001}}
		if _, err := client.Create(ctx, kind.ZoneIngress, own); err != nil {
			t.Fatal(err)
		}
		made, err := client.Create(ctx, kind.Pod, pod("a"))
		if err != nil {
			t.Fatal(err)
		}
		made.(*corev1.Pod).Status = pod("a").Status
		if made, err = client.UpdateStatus(ctx, kind.Pod, made); err != nil {
			t.Fatal(err)
		}
		want := func(what, address string, there bool) {
			t.Helper()
			time.Sleep(5 * time.Second)
			obj, err := client.Get(ctx, kind.ZoneIngress, resource.Key{Name: "a"})
			if (err == nil) != there {
				t.Fatalf("%s: %v", what, err)
			}
			if there && obj.(*meshv1alpha1.ZoneIngress).Spec.Address != address {
				t.Errorf("%s: %+v", what, obj.(*meshv1alpha1.ZoneIngress).Spec)
			}
		}
		want("a Pod", "10.244.1.2", true)
		moved := made.DeepCopyObject().(*corev1.Pod)
		moved.Status.PodIP = "10.244.1.3"
		if _, err := client.UpdateStatus(ctx, kind.Pod, moved); err != nil {
			t.Fatal(err)
		}
		want("another address", "10.244.1.3", true)
		if err := client.Delete(ctx, kind.Pod, resource.Key{Namespace: "proxima-system", Name: "a"}, resource.Preconditions{Now: true}); err != nil {
			t.Fatal(err)
		}
		want("no Pod any more", "", false)
		if _, err := client.Get(ctx, kind.ZoneIngress, resource.Key{Name: "m1"}); err != nil {
			t.Errorf("a gateway that registered itself: %v", err)
		}
	})
}

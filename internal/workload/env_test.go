package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func envService(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

func TestServiceEnv(t *testing.T) {
	tcp := func(name string, port int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolTCP}
	}
	external := envService("shop", "elsewhere", "")
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	for _, tc := range []struct {
		name     string
		services []*corev1.Service
		want     []string
	}{
		{"none", nil, nil},
		{"without a virtual IP", []*corev1.Service{envService("shop", "db", "None", tcp("", 5432)), external, envService("shop", "new", "", tcp("", 80))}, nil},
		{"one unnamed port", []*corev1.Service{envService("shop", "web", "10.96.0.7", tcp("", 80))}, []string{
			"WEB_SERVICE_HOST=10.96.0.7", "WEB_SERVICE_PORT=80", "WEB_PORT=tcp://10.96.0.7:80",
			"WEB_PORT_80_TCP=tcp://10.96.0.7:80", "WEB_PORT_80_TCP_PROTO=tcp", "WEB_PORT_80_TCP_PORT=80", "WEB_PORT_80_TCP_ADDR=10.96.0.7",
		}},
		{"ports with names, a dash, UDP, IPv6", []*corev1.Service{envService("shop", "big-web", "fd00::7",
			tcp("http-main", 80), corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})}, []string{
			"BIG_WEB_SERVICE_HOST=fd00::7", "BIG_WEB_SERVICE_PORT=80", "BIG_WEB_SERVICE_PORT_HTTP_MAIN=80", "BIG_WEB_SERVICE_PORT_DNS=53",
			"BIG_WEB_PORT=tcp://[fd00::7]:80",
			"BIG_WEB_PORT_80_TCP=tcp://[fd00::7]:80", "BIG_WEB_PORT_80_TCP_PROTO=tcp", "BIG_WEB_PORT_80_TCP_PORT=80", "BIG_WEB_PORT_80_TCP_ADDR=fd00::7",
			"BIG_WEB_PORT_53_UDP=udp://[fd00::7]:53", "BIG_WEB_PORT_53_UDP_PROTO=udp", "BIG_WEB_PORT_53_UDP_PORT=53", "BIG_WEB_PORT_53_UDP_ADDR=fd00::7",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ServiceEnv(tc.services)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A Service of one's own that is called kubernetes comes after the API's, and a
// process sees the last of two.
func TestServiceEnvOwnKubernetesWins(t *testing.T) {
	port := corev1.ServicePort{Port: 443}
	got := ServiceEnv([]*corev1.Service{envService("shop", "kubernetes", "10.96.0.9", port), envService("default", "kubernetes", "10.96.0.1", port)})
	last := ""
	for _, v := range got {
		if v == "KUBERNETES_SERVICE_HOST=10.96.0.1" || v == "KUBERNETES_SERVICE_HOST=10.96.0.9" {
			last = v
		}
	}
	if last != "KUBERNETES_SERVICE_HOST=10.96.0.9" {
		t.Errorf("the last is %q", last)
	}
}

func TestWithout(t *testing.T) {
	got := Without([]string{"A=1", "B=2", "C=x=y"}, []string{"B=", "AA=3", "c=1"})
	if diff := cmp.Diff([]string{"A=1", "C=x=y"}, got); diff != "" {
		t.Error(diff)
	}
}

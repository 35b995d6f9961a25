package kube_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

// dnsService gives the Service proxima-dns the agents as endpoints, which are no Pods here, and returns
// its virtual IP.
func (s *sites) dnsService() string {
	s.t.Helper()
	var service corev1.Service
	s.object(&service, "service", "proxima-dns")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "proxima-dns-test", Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range service.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(p.TargetPort.IntVal)})
	}
	for name, node := range s.nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{node.Addr}, NodeName: new(name)})
	}
	if _, err := s.client.DiscoveryV1().EndpointSlices(manifests.Namespace).Create(s.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return service.Spec.ClusterIP
}

// namesInPods: a program in a Pod's namespace, with the file that kubelet writes where clusterDNS is the
// virtual IP of proxima-dns, resolves the names of other zones and of the cluster by its own libc. It asks
// the agent of any node, by UDP and by TCP.
func (s *sites) namesInPods() {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "resolv.conf")
	text := "nameserver " + s.dnsService() + "\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5"
	resolve := func(options, name string) (netip.Addr, error) {
		if err := os.WriteFile(file, []byte(text+options+"\n"), 0o600); err != nil {
			s.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), commandTimeout)
		defer cancel()
		ns := s.inEast().ns
		// The mounts are of the program alone.
		out, err := ns.Output(ctx, "unshare", "--mount", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && exec getent -s dns ahostsv4 "$2"`, "sh", file, name)
		if err != nil {
			return netip.Addr{}, err
		}
		first, _, _ := strings.Cut(string(out), " ")
		return netip.ParseAddr(first)
	}
	own := s.kubectl("", "--namespace", "shop", "get", "service", "from-east", "-o", "jsonpath={.spec.clusterIP}")
	for _, options := range []string{"", " use-vc"} {
		for _, name := range namesOf("from-west") {
			s.until(fmt.Sprintf("%s is resolved in a Pod, and answers (%q)", name, options), func() bool {
				addr, err := resolve(options, name)
				if err != nil {
					return false
				}
				who, err := s.inEast().connect(addr)
				return err == nil && who == "west"
			})
		}
		for _, name := range []string{"from-east", "from-east.shop.svc.cluster.local"} {
			s.until(fmt.Sprintf("%s is resolved in a Pod (%q)", name, options), func() bool {
				addr, err := resolve(options, name)
				return err == nil && addr.String() == own
			})
		}
	}
	if addr, err := resolve("", "nobody_shop_svc_80.mesh"); err == nil {
		s.t.Errorf("a name that does not exist is %s", addr)
	}
}

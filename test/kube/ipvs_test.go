package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// lightRig has the nodes and pods of a rig without Kubernetes: our control plane serves the objects, EndpointSlices among them.
type lightRig struct {
	bench // without a cluster
	prober
	net    *cluster.Cluster
	nodes  map[string]*cluster.Node
	client kubernetes.Interface
	pods   []lightPod
}

type lightPod struct{ name, app, node, addr string }

func newLightRig(t *testing.T, mode string, six bool) *lightRig {
	t.Helper()
	r := &lightRig{
		bench: bench{t: t}, net: cluster.Bare(t, six), nodes: map[string]*cluster.Node{},
		prober: prober{mode: mode, six: six, places: map[string]place{}},
	}
	for _, node := range []string{"ours", "theirs", "third"} {
		n := r.net.AddBareNode(t, node)
		at := place{node: n.NS.NS, addr: n.Addr}
		if six {
			at.addr = n.Addr6
		}
		r.nodes[node], r.places[node] = n, at
		r.pod("web-"+node, "web", node)
	}
	r.pod("only-third", "third", "third")
	for _, node := range []string{"ours", "theirs"} {
		r.pod("client-"+node, "client-"+node, node)
	}
	r.plane()
	for _, n := range r.nodes {
		r.register(n)
	}
	for text := range strings.SplitSeq(r.prober.services(), "\n---\n") {
		s := &corev1.Service{}
		if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		r.create(s)
	}
	return r
}

// pod runs where TestBesideKubeProxy's does.
func (r *lightRig) pod(name, app, node string) {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{podVariable + "=" + name}
	ns, addr, addr6 := r.nodes[node].RunPod(r.t, name, cmd)
	if r.six {
		addr = addr6
	}
	if strings.HasPrefix(name, "client-") {
		at := r.places[node]
		at.pod, at.podAddr = ns, addr
		r.places[node] = at
	}
	r.pods = append(r.pods, lightPod{name, app, node, addr})
}

// plane is our control plane, on the network of the nodes.
func (r *lightRig) plane() {
	r.t.Helper()
	dir := r.t.TempDir()
	ranges := "10.96.0.0/16"
	if r.six {
		ranges += "," + cluster.ServiceCIDR6
	}
	r.net.RunOn(r.t, nil, "control-plane", testkit.Binary(r.t), nil, "control-plane", "--role", "standalone", "--data-dir", dir,
		"--api-address", r.net.Bridge()+":6443", "--service-cidr", ranges)
	r.kubeconfig = filepath.Join(dir, "kubeconfig")
	r.until("the control plane serves", func() bool {
		cfg, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig)
		if err != nil {
			return false
		}
		cfg.QPS = -1
		if r.client, err = kubernetes.NewForConfig(cfg); err != nil {
			return false
		}
		_, err = r.client.CoreV1().Namespaces().Get(r.t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

// register a Node.
func (r *lightRig) register(n *cluster.Node) {
	r.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr}}},
	}
	if r.six {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Addr6})
	}
	_, err := r.client.CoreV1().Nodes().Create(r.t.Context(), node, metav1.CreateOptions{})
	if err == nil {
		_, err = r.client.CoreV1().Nodes().UpdateStatus(r.t.Context(), node, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// create a Service, without its selector, and the EndpointSlice that a controller would make of it.
func (r *lightRig) create(s *corev1.Service) {
	r.t.Helper()
	ctx := r.t.Context()
	app := s.Spec.Selector["app"]
	s.Spec.Selector = nil
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if r.six {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		p.TargetPort = intstr.FromInt32(8080)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: new(int32(8080)), Protocol: &p.Protocol})
	}
	for _, p := range r.pods {
		if p.app == app {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.addr}, NodeName: new(p.node)})
		}
	}
	_, err := r.client.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{})
	if err == nil {
		_, err = r.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	}
	if err == nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		_, err = r.client.CoreV1().Services("default").Patch(ctx, s.Name, types.MergePatchType,
			[]byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"`+r.address("203.0.113.10")+`"}]}}}`), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		r.t.Fatalf("Service %s: %v", s.Name, err)
	}
}

// start kube-proxy and, once it has written all, our agent: both at once take an emulated machine too long.
func (r *lightRig) start() {
	r.t.Helper()
	pods := cluster.PodCIDR
	if r.six {
		pods += "," + cluster.PodCIDR6
	}
	r.nodes["theirs"].Run(r.t, "kube-proxy", cluster.Binary(r.t, "kube-proxy"), "--kubeconfig="+r.kubeconfig, "--hostname-override=theirs",
		"--proxy-mode="+r.mode, "--cluster-cidr="+pods, "--conntrack-max-per-core=0",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249")
	// It writes services of IPVS first, and what masquerades much later, by one process for each address.
	transport := &http.Transport{DialContext: r.places["theirs"].node.DialContext, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: commandTimeout}
	r.until("kube-proxy has written all", func() bool {
		answer, err := client.Get("http://127.0.0.1:10249/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		family := "IPv4"
		if r.six {
			family = "IPv6"
		}
		found := regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="` + family + `"\} ([^0].*)$`).Find(text)
		return err == nil && found != nil
	})
	r.nodes["ours"].Run(r.t, "agent", testkit.Binary(r.t), "node", "--kubeconfig", r.kubeconfig, "--node-name", "ours",
		"--mode", r.mode, "--workload-cidr", pods, "--data-dir", r.t.TempDir(), "--spiffe-socket", "none", "--dns-port", "0")
}

// TestBesideKubeProxyIPVS: what TestBesideKubeProxy compares, in mode ipvs. It needs a kernel with IPVS: tools/interop-kernels
// boots one, which is too slow for Kubernetes' control plane.
func TestBesideKubeProxyIPVS(t *testing.T) {
	need(t)
	if missing := new(ipvs.MissingError); errors.As(ipvs.Check(ipvs.Default), &missing) {
		t.Skipf("%v: SUITES=kubeproxy make interop-kernels", missing)
	}
	for name, six := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			r := newLightRig(t, "ipvs", six)
			r.start()
			n := r.prober.compare(t, r.until)
			t.Logf("%d probes compared with %s", n, version(t))
		})
	}
}

// version of kube-proxy, as it says itself.
func version(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, cluster.Binary(t, "kube-proxy"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("kube-proxy %s", strings.TrimSpace(string(out)))
}

package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// The cluster that planner-only is tried on.
const (
	zones    = 3
	nodes    = 60
	services = 500
)

// world makes the objects of a cluster: nodes in zones, and Services with endpoints in them.
// A Service has as many endpoints in a zone as its number says, so that they differ.
func world(services int) (all []*corev1.Node, of []*corev1.Service, slicesOf []*discoveryv1.EndpointSlice) {
	for i := range nodes {
		zone := fmt.Sprintf("zone-%c", 'a'+i%zones)
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("node-%02d", i), Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "r"},
			},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}},
			},
		})
	}
	for i := range services {
		name := fmt.Sprintf("svc-%03d", i)
		of = append(of, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		}
		for n := range 3 + i%7 {
			at := (i + n) % nodes
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, 1+n)}, NodeName: new(all[at].Name),
				Zone: new(all[at].Labels[corev1.LabelTopologyZone]), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		slicesOf = append(slicesOf, slice)
	}
	return all, of, slicesOf
}

// fill creates the objects of the world by an API, ours or Kubernetes'.
func fill(t *testing.T, client kubernetes.Interface) { t.Helper(); fillWith(t, client, services) }

// fillWith is fill with another number of Services.
func fillWith(t *testing.T, client kubernetes.Interface, services int) {
	t.Helper()
	ctx := context.Background()
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, shop, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, of, slicesOf := world(services)
	errs := each(all, func(n *corev1.Node) error {
		made, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status, made.ResourceVersion = n.Status, "" // controllers taint a new node meanwhile
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
	errs = append(errs, each(of, func(s *corev1.Service) error {
		_, err := client.CoreV1().Services("shop").Create(ctx, s, metav1.CreateOptions{})
		return err
	})...)
	errs = append(errs, each(slicesOf, func(s *discoveryv1.EndpointSlice) error {
		_, err := client.DiscoveryV1().EndpointSlices("shop").Create(ctx, s, metav1.CreateOptions{})
		return err
	})...)
	for _, err := range errs {
		t.Fatal(err)
	}
}

// trafficFile states what each Service carries: the larger its number, the more.
func trafficFile(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("namespace,service,gbPerMonth,connectionsPerMonth\n")
	for i := range services {
		fmt.Fprintf(&b, "shop,svc-%03d,%d,\n", i, 10+i)
	}
	path := filepath.Join(t.TempDir(), "traffic.csv")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// podArgs are the arguments of the control plane as the API server has them, but for what a
// kubelet would have provided: the address and the volume of a pod.
func (b *bench) podArgs(dir, listen string) []string {
	b.t.Helper()
	var d appsv1.Deployment
	b.object(&d, "deployment", "proxima")
	return replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--api-address": listen, "--data-dir": dir, "--advertise-address": address,
	})
}

// object of Proxima's namespace, as the API server has it.
func (b *bench) object(into any, kind, name string) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.kubectl("", "--namespace", manifests.Namespace, "get", kind, name, "-o", "json")), into); err != nil {
		b.t.Fatal(err)
	}
}

// replaced are arguments with other values of some flags.
func replaced(args []string, with map[string]string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		name, _, _ := strings.Cut(a, "=")
		if value, ok := with[name]; ok {
			out[i] = name + "=" + value
		}
	}
	return out
}

// TestPlannerOnly: from kubectl apply to a report, with the chart's service account and
// manifests alone, and the answer is that of a control plane outside Kubernetes.
func TestPlannerOnly(t *testing.T) {
	b := newBench(t)
	if !strings.Contains(b.proxima("control-plane", "--help"), "--preset") {
		t.Skip("this build has no planner-only")
	}
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, client)
	traffic := trafficFile(t)

	began := time.Now()
	b.kubectl(b.manifests("planner-only"), "apply", "-f", "-")
	dir := t.TempDir()
	plane := testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + b.kubeconfigOf("proxima")}, testkit.Binary(t),
		b.podArgs(dir, address+":7443")...)
	if line := plane.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		t.Fatalf("planner-only says %q", line)
	}
	question := []string{"simulate", "--all", "--top", "10", "--traffic", traffic, "--price-per-gb", "0.02"}
	report := b.proxima(append(question, "--kubeconfig", filepath.Join(dir, "kubeconfig"))...)
	took := time.Since(began)
	t.Logf("%s from kubectl apply to this report:\n%s", took.Round(time.Millisecond), report)
	if took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if n := strings.Count(report, "\nshop/svc-"); n != 10 {
		t.Errorf("the report has %d Services, not ten", n)
	}
	b.wantAllUsed("planner-only", "proxima", lists("services", "nodes", "namespaces", "endpointslices.discovery.k8s.io"))

	outside := t.TempDir()
	other := testkit.Start(t, nil, testkit.Binary(t), "control-plane", "--store", "memory", "--data-dir", outside,
		"--api-address", address+":8443", "--grpc-port", "0", "--service-cidr", "10.96.0.0/16")
	other.FirstLine()
	b.fillOutside(filepath.Join(outside, "kubeconfig"))
	want := b.proxima(append(question, "--kubeconfig", filepath.Join(outside, "kubeconfig"))...)
	if compared(report) != compared(want) {
		t.Errorf("outside Kubernetes the report is\n%s", want)
	}
}

// compared is a report without what it leaves out: Proxima's own Service is in the cluster alone.
func compared(report string) string {
	var b strings.Builder
	for line := range strings.Lines(report) {
		if !strings.HasPrefix(line, "not compared:") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// fillOutside creates the same objects in our own API.
func (b *bench) fillOutside(kubeconfig string) {
	b.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		b.t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = -1, -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	fill(b.t, client)
}

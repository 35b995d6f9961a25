package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// guided is what the page's commands run with.
type guided struct {
	t   *testing.T
	dir string
}

// run a command line of the page, and return what it prints.
func (g *guided) run(ctx context.Context, want int, line string) (out, errs string) {
	g.t.Helper()
	args := strings.Fields(line)[1:]
	for i := range args {
		if file := filepath.Join(g.dir, args[i]); i > 0 && strings.HasPrefix(args[i-1], "--") {
			switch args[i-1] {
			case "--kubeconfig", "--data-dir", "--traffic":
				args[i] = file
			case "--api-address":
				args[i] = "127.0.0.1:0"
			}
		}
	}
	var stdout, stderr bytes.Buffer
	s := &settings{io: IO{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Env: func(string) (string, bool) { return "", false }}}
	if code := execute(ctx, s, args); code != want {
		g.t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, want, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}

// start the control plane of the page in the background, until the test ends.
func (g *guided) start(line string) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.run(ctx, 0, line)
	}()
	g.t.Cleanup(func() { cancel(); <-done })
	client := func() string {
		out, _ := runStatus(g)
		return out
	}
	for late := time.After(time.Minute); !strings.Contains(client(), "no problems found"); {
		select {
		case <-late:
			g.t.Fatalf("planner-only does not become ready: %s", client())
		case <-done:
			g.t.Fatal("planner-only ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func runStatus(g *guided) (string, int) {
	var stdout, stderr bytes.Buffer
	s := &settings{io: IO{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Env: func(string) (string, bool) { return "", false }}}
	code := execute(g.t.Context(), s, []string{"status", "--kubeconfig", filepath.Join(g.dir, "planner", "kubeconfig"), "--data-dir", g.dir})
	return stdout.String() + stderr.String(), code
}

// guideCluster are the objects behind the page's answers: three zones, three Services that can be
// compared, and a headless one.
func guideCluster(t *testing.T, kubeconfig string) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		t.Fatal(err)
	}
	create := func(d *resource.Descriptor, obj resource.Object) resource.Object {
		made, err := client.Create(t.Context(), d, obj)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	create(kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for _, zone := range []string{"zone-a", "zone-b", "zone-c"} {
		n := create(kind.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: zone + "-1", Labels: map[string]string{corev1.LabelTopologyZone: zone}}}).(*corev1.Node)
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}}
		if _, err := client.UpdateStatus(t.Context(), kind.Node, n); err != nil {
			t.Fatal(err)
		}
	}
	for name, zones := range map[string]string{"web": "aaabbbccc", "cart": "abc", "search": "aa", "db": "a"} {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
		switch name {
		case "db":
			service.Spec.ClusterIP = corev1.ClusterIPNone
		case "cart":
			service.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferSameZone)
		}
		create(kind.Service, service)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test",
			}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		}
		for i, z := range zones {
			e := discoveryv1.Endpoint{
				Addresses: []string{"10.1." + string('0'+rune(len(name))) + "." + string('1'+rune(i))}, Zone: ptr.To("zone-" + string(z)),
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			}
			if name == "cart" { // as Kubernetes' own controller does
				e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: *e.Zone}}}
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		create(kind.EndpointSlice, slice)
	}
}

// TestPlannerGuide does what docs/how-to/kubernetes-planner.md says, on a cluster that the
// project's own API server stands for.
func TestPlannerGuide(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "kubernetes-planner.md"))
	if err != nil {
		t.Fatal(err)
	}
	g := &guided{t: t, dir: t.TempDir()}
	kubeconfig := startControlPlane(t, app.RoleStandalone, "memory")
	guideCluster(t, kubeconfig)
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	files := regexp.MustCompile("(?ms)^```csv\n(.*?)^```").FindAllSubmatch(doc, -1)
	if len(files) != 2 {
		t.Fatalf("the page has %d files", len(files))
	}
	for name, content := range map[string][]byte{"cluster.kubeconfig": data, "traffic.csv": files[0][1], "zones.csv": files[1][1]} {
		if err := os.WriteFile(filepath.Join(g.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	printed := map[string]string{}
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllSubmatch(doc, -1) {
		for line := range strings.Lines(string(block[1])) {
			switch line = strings.TrimSpace(line); {
			case strings.HasSuffix(line, " &"):
				g.start(strings.TrimSuffix(line, " &"))
			case strings.Contains(line, "--traffic-from"): // there is no such server here
			default:
				printed[line], _ = g.run(t.Context(), 0, line)
			}
		}
	}
	answer := ""
	for line, out := range printed {
		switch {
		case strings.HasPrefix(line, "proxima simulate --all --top 10"):
			answer = out
		case strings.Contains(line, "-o json"):
			var survey topology.Survey
			if err := json.Unmarshal([]byte(out), &survey); err != nil || survey.Total.Currency != "EUR" || survey.Total.WithMoney != 2 || survey.Total.Saving <= 0 {
				t.Errorf("%s\n%v", out, err)
			}
		case strings.Contains(line, "--price-per-gb"):
			if !strings.Contains(out, "6.67 → 0.00 USD") || !strings.Contains(out, "2e+06 connections") {
				t.Errorf("%s:\n%s", line, out)
			}
		}
	}
	for _, want := range []string{"shop/web     9          3      33.3 % → 100.0 %    +66.7", "shop/cart    3          3      100.0 %* → 100.0 %  +0.0", "3 services compared", "1 service headless", "volumes are unknown"} {
		if !strings.Contains(answer, want) {
			t.Errorf("the answer does not say %q:\n%s", want, answer)
		}
	}
	out, _ := g.run(t.Context(), 0, "proxima simulate --all --traffic zones.csv --price-per-gb 0.02 --kubeconfig planner/kubeconfig")
	if !strings.Contains(out, "500 GB") || !strings.Contains(out, "6.00 → ") {
		t.Errorf("with zones:\n%s", out)
	}
	if out, _ := g.run(t.Context(), 0, "proxima doctor --kubeconfig planner/kubeconfig -o json"); !strings.Contains(out, "cluster of the control plane") {
		t.Errorf("doctor says nothing of the cluster:\n%s", out)
	}
}

// TestSurveyFlags: mistakes are found before a server is asked.
func TestSurveyFlags(t *testing.T) {
	g := &guided{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(g.dir, "t.csv"), []byte("namespace,service,gb\nshop,web,many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "k"), []byte("apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
		"contexts: [{name: x, context: {cluster: x}}]\ncurrent-context: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"proxima simulate --traffic t.csv":                                                          "go with --all",
		"proxima simulate --all --fail-zone a":                                                      "--all compares Services as they are",
		"proxima simulate --all --traffic t.csv --traffic-from http://p:1 --traffic-query x":        "give one of them",
		"proxima simulate --all --traffic-from http://p:1":                                          "go together",
		"proxima simulate --all --traffic-unit packets":                                             "bytes or connections",
		"proxima simulate --all --price-per-gb cheap":                                               "--price-per-gb \"cheap\"",
		"proxima simulate --all --price-per-gb 1 --price USD:1:1":                                   "give one of them",
		"proxima simulate --all --traffic t.csv --kubeconfig k":                                     "t.csv: line 2: gb: \"many\" is no number",
		"proxima simulate --all --traffic none.csv --kubeconfig k":                                  "no such file",
		"proxima control-plane --store kubernetes --data-dir d":                                     "choose planner-only, kube-proxy-replacement, zone or global",
		"proxima control-plane --store kubernetes --preset zone --data-dir d":                       "--role zone and --preset zone go together",
		"proxima control-plane --store kubernetes --preset planner-only --external-ip-ranges none":  "DenyServiceExternalIPs",
		"proxima up --external-ip-ranges 10.0.0.0 --data-dir d":                                     "--external-ip-ranges \"10.0.0.0\": not a CIDR",
		"proxima control-plane --preset planner-only --data-dir d":                                  "goes with --store kubernetes",
		"proxima control-plane --store kubernetes --preset planner-only --role global --data-dir d": "--role global and --preset global",
	} {
		if _, errs := g.run(t.Context(), 2, line); !strings.Contains(errs, want) {
			t.Errorf("%s: %s, want %q", line, errs, want)
		}
	}
}

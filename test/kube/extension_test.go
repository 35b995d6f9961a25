package kube_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/tools/crds/crd"
)

// virtualIP is that of a Service in the namespace of the API server, which no node routes: each
// connection goes to one of the backends that answer.
type virtualIP struct {
	mu       sync.Mutex
	backends []string
	next     int
}

// virtualIP serves the extension's Service.
func (b *bench) virtualIP(backends ...string) *virtualIP {
	b.t.Helper()
	ip := b.kubectl("", "--namespace", manifests.Namespace, "get", "service", "proxima-extension", "-o", "jsonpath={.spec.clusterIP}")
	if out, err := exec.Command("ip", "address", "add", ip+"/32", "dev", "lo").CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
	b.t.Cleanup(func() { _ = exec.Command("ip", "address", "del", ip+"/32", "dev", "lo").Run() })
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "6443"))
	if err != nil {
		b.t.Fatal(err)
	}
	v := &virtualIP{backends: backends}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { v.connect(c) })
		}
	})
	b.t.Cleanup(func() {
		_ = l.Close()
		v.set()
	})
	return v
}

func (v *virtualIP) set(backends ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.backends = backends
}

// dial one of the backends.
func (v *virtualIP) dial() (net.Conn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := errors.New("no backend")
	for range v.backends {
		v.next++
		var c net.Conn
		if c, err = net.Dial("tcp", v.backends[v.next%len(v.backends)]); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (v *virtualIP) connect(c net.Conn) {
	defer c.Close()
	to, err := v.dial()
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, c)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, to)
}

// extendedRig is a cluster with two replicas, whose API server calls them.
type extendedRig struct {
	*bench
	ip       *virtualIP
	dynamic  dynamic.Interface
	client   kubernetes.Interface
	replicas []*testkit.Process
	dirs     []string // data directories of the replicas
}

func newExtended(t *testing.T) *extendedRig {
	b := newBench(t)
	r := &extendedRig{bench: b}
	var err error
	if r.dynamic, err = dynamic.NewForConfig(b.Admin(t)); err != nil {
		t.Fatal(err)
	}
	if r.client, err = kubernetes.NewForConfig(b.Admin(t)); err != nil {
		t.Fatal(err)
	}
	b.kubectl(b.manifests("kube-proxy-replacement", append(extended, "--set", "createNamespace=true", "--set", "feed.enabled=true")...), "apply", "--server-side", "-f", "-")
	b.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	b.kubectl("", "create", "namespace", "shop")
	var backends []string
	for i := range 2 {
		port := planePort + 2*i
		backends = append(backends, fmt.Sprintf("%s:%d", address, port))
		r.dirs = append(r.dirs, t.TempDir())
		p := testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + b.kubeconfigOf("proxima")}, testkit.Binary(t),
			append(b.podArgs(r.dirs[i], backends[i]), fmt.Sprintf("--grpc-port=%d", port+1))...)
		if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
			t.Fatalf("the control plane says %q", line)
		}
		r.replicas = append(r.replicas, p)
	}
	r.ip = b.virtualIP(backends...)
	r.endpoints()
	b.until("the API server is given the authority", func() bool {
		return len(r.bundles()) == 3 && r.bundles()[0] != ""
	})
	return r
}

// endpoints of the Service, which has no pods here: the API server wants some before it asks an
// aggregated API.
func (r *extendedRig) endpoints() {
	r.t.Helper()
	_, err := r.client.DiscoveryV1().EndpointSlices(manifests.Namespace).Create(r.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "proxima-extension-test", Labels: map[string]string{
			discoveryv1.LabelServiceName: "proxima-extension", discoveryv1.LabelManagedBy: "test",
		}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(planePort))}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// bundles that the API server has: of the two webhooks, and of the APIService.
func (r *extendedRig) bundles() []string {
	return strings.Split(r.kubectl("", "get", "validatingwebhookconfiguration", "proxima", "-o",
		`jsonpath={.webhooks[0].clientConfig.caBundle} {.webhooks[1].clientConfig.caBundle}`)+" "+
		r.kubectl("", "get", "apiservice", "v1.control.mesh.proxima.dev", "-o", "jsonpath={.spec.caBundle}"), " ")
}

// zoneCosts makes one that is valid.
func (r *extendedRig) zoneCosts(name string) *unstructured.Unstructured {
	r.t.Helper()
	obj := decode(r.t, descriptor("ZoneCosts"), kindtest.Valid()["ZoneCosts"])
	obj.SetName(name)
	return obj
}

func descriptor(kind string) *resource.Descriptor {
	for _, d := range crd.Descriptors() {
		if d.GVK.Kind == kind {
			return d
		}
	}
	return nil
}

// TestExtension: what the API server asks of the replicas: admission, and the aggregated API.
func TestExtension(t *testing.T) {
	r := newExtended(t)
	t.Run("gaps", func(t *testing.T) { r.gaps(t) })
	t.Run("kube-system", func(t *testing.T) { r.kubeSystem(t) })
	t.Run("rotation", func(t *testing.T) { r.rotation(t) })
	t.Run("aggregated", func(t *testing.T) { r.aggregated(t) })
	t.Run("agent", func(t *testing.T) { r.agent(t) })
	t.Run("permissions", func(t *testing.T) { r.permissions(t) })
	t.Run("nobody", func(t *testing.T) { r.nobody(t) })
}

// further mistakes that the schemas let through, for gaps that kindtest.Mistakes does not have.
func further() []kindtest.Mistake {
	return []kindtest.Mistake{
		{Kind: "Dataplane", With: `{spec: {ports: [{name: http, port: 8080, tags: {"a b": c}}]}}`, Want: "spec.ports[0].tags: "},
		{Kind: "Dataplane", Want: "spec.proxy.probes[1].path: ",
			With: `{spec: {proxy: {probes: [{path: /ready, port: 8080, targetPath: /a}, {path: /ready, port: 8080, targetPath: /b}]}}}`},
		{Kind: "ProxyPatch", With: `{spec: {selector: null, targetRefs: [{kind: Pod, name: a}, {kind: Pod, name: a}]}}`, Want: "spec.targetRefs[1]: "},
		{Kind: "WorkloadPolicy", With: `{spec: {selector: null, targetRefs: [{kind: Pod, name: a}, {kind: Pod, name: a}]}}`, Want: "spec.targetRefs[1]: "},
		{Kind: "WorkloadPolicy", With: `{spec: {metrics: {exclude: "("}}}`, Want: "spec.metrics.exclude: "},
		{Kind: "WorkloadPolicy", Want: "spec.rateLimit[0].from[0].addresses[0]: ",
			With: `{spec: {rateLimit: [{from: [{addresses: [10.1.2.3/16]}], http: {requests: 1, per: 1s}}]}}`},
		{Kind: "WorkloadPolicy", With: `{spec: {faults: [{from: [{addresses: [10.1.2.3/16]}], delay: 1s}]}}`, Want: "spec.faults[0].from[0].addresses[0]: "},
		{Kind: "TrafficPermission", With: `{spec: {deny: [{from: [{addresses: [10.1.2.3/16]}]}]}}`, Want: "spec.deny[0].from[0].addresses[0]: "},
		{Kind: "TrafficPermission", Want: "spec.deny[0].to[0].paths[0].value: ",
			With: `{spec: {deny: [{to: [{paths: [{type: RegularExpression, value: "("}]}]}]}}`},
		{Kind: "ServiceExport", With: `{spec: {exportedLabels: {"a b": c}}}`, Want: "spec.exportedLabels: "},
		{Kind: "ServiceExport", With: `{spec: {exportedAnnotations: {"a b": c}}}`, Want: "spec.exportedAnnotations: "},
		{Kind: "ServiceExport", Want: "status.available.endpoints[0].hosts[0].address: ", With: `{status: {available: {mesh: default, type: Headless,
			exportTime: "2026-01-02T03:04:05Z", endpoints: [{addressType: IPv4, hosts: [{address: "2001:db8::1"}]}]}}}`},
	}
}

// gaps: each mistake that the schemas let through is refused in the words that are used outside
// Kubernetes.
func (r *extendedRig) gaps(t *testing.T) {
	examples := kindtest.Valid()
	open := map[string]crd.Gap{}
	for _, g := range crd.Beyond() {
		open[g.Kind+" "+g.Field] = g
	}
	bySchema, byWebhook := 0, 0
	for _, m := range append(kindtest.Mistakes(), further()...) {
		d := descriptor(m.Kind)
		if d == nil || !gap(m) {
			continue
		}
		text, err := kindtest.Overlay(examples[m.Kind], m.With)
		if err != nil {
			t.Fatal(err)
		}
		obj := decode(t, d, text)
		api, status := interfaceOf(r.dynamic, d, obj), strings.HasPrefix(m.Want, "status.")
		if status {
			err = r.withStatus(t, d, api, obj)
		} else {
			_, err = api.Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		switch want := outside(t, d, obj, status); {
		case !apierrors.IsInvalid(err):
			t.Errorf("%s %s: %v, want\n%s", m.Kind, m.With, err, want)
		case !strings.Contains(err.Error(), "admission webhook"):
			bySchema++ // a part of the field that it can check
		case !strings.Contains(err.Error(), want):
			t.Errorf("%s %s:\n%v, want\n%s", m.Kind, m.With, err, want)
		default:
			byWebhook++
			path := index.ReplaceAllString(strings.SplitN(m.Want, ": ", 2)[0], "")
			for name, g := range open {
				if g.Kind == m.Kind && (path == g.Field || strings.HasPrefix(path, g.Field+".")) {
					delete(open, name)
				}
			}
		}
	}
	t.Logf("of %d gaps %d are closed: the webhook refuses %d mistakes, the schemas %d others", len(crd.Beyond()), len(crd.Beyond())-len(open),
		byWebhook, bySchema)
	for name := range open {
		t.Errorf("gap %s: no mistake was refused by the webhook", name)
	}
}

// withStatus creates the object without its status, and writes that.
func (r *extendedRig) withStatus(t *testing.T, d *resource.Descriptor, api dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
	t.Helper()
	plain := obj.DeepCopy()
	delete(plain.Object, "status")
	made, err := api.Create(t.Context(), plain, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = api.Delete(context.Background(), made.GetName(), metav1.DeleteOptions{}) }()
	made.Object["status"] = obj.Object["status"]
	_, err = api.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	return err
}

// outside is what a control plane outside Kubernetes says of an object.
func outside(t *testing.T, d *resource.Descriptor, obj *unstructured.Unstructured, status bool) string {
	t.Helper()
	typed := d.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, typed); err != nil {
		t.Fatal(err)
	}
	if d.Default != nil {
		d.Default(typed)
	}
	if !status {
		return apierrors.NewInvalid(d.GVK.GroupKind(), typed.GetName(), d.Validate(typed, nil)).Error()
	}
	typed.SetResourceVersion("7")
	return apierrors.NewInvalid(d.GVK.GroupKind(), typed.GetName(), d.ValidateStatus(typed, typed.DeepCopyObject().(resource.Object))).Error()
}

// kubeSystem is left alone.
func (r *extendedRig) kubeSystem(t *testing.T) {
	d := descriptor("Dataplane")
	text, err := kindtest.Overlay(kindtest.Valid()["Dataplane"], further()[0].With)
	if err != nil {
		t.Fatal(err)
	}
	obj := decode(t, d, text)
	for namespace, refused := range map[string]bool{"shop": true, metav1.NamespaceSystem: false} {
		obj.SetNamespace(namespace)
		_, err = interfaceOf(r.dynamic, d, obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) != refused || !refused && err != nil {
			t.Errorf("in %s: %v", namespace, err)
		}
	}
}

// record of the authorities, and a change of the times in it: the test does not wait for days.
func (r *extendedRig) record(t *testing.T, age time.Duration) extension.Authorities {
	t.Helper()
	api := r.client.CoreV1().Secrets(manifests.Namespace)
	for {
		secret, err := api.Get(t.Context(), extension.SecretName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := extension.Parse(secret.Data["authorities.json"])
		if err != nil {
			t.Fatal(err)
		}
		if age == 0 {
			return all
		}
		last := &all[len(all)-1]
		last.Published = time.Now().Add(-age)
		if secret.Data["authorities.json"], err = all.Encode(); err != nil {
			t.Fatal(err)
		}
		if _, err = api.Update(t.Context(), secret, metav1.UpdateOptions{}); err == nil {
			return all
		} else if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}

// served says whether all replicas have a certificate that only an authority signed.
func (r *extendedRig) served(by []byte) bool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(by)
	for _, backend := range r.ip.backends {
		c, err := tls.Dial("tcp", backend, &tls.Config{RootCAs: pool, ServerName: "proxima-extension." + manifests.Namespace + ".svc"})
		if err != nil {
			return false
		}
		_ = c.Close()
	}
	return true
}

// rotation of the authority, while objects are written all the time: none is refused.
func (r *extendedRig) rotation(t *testing.T) {
	api := r.dynamic.Resource(descriptor("ZoneCosts").GVK.GroupVersion().WithResource("zonecosts"))
	costs, err := api.Create(t.Context(), r.zoneCosts("rotated"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	var written, refused atomic.Int64
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			change := fmt.Sprintf(`{"metadata": {"annotations": {"example.com/count": "%d"}}}`, i)
			_, err := api.Patch(ctx, costs.GetName(), types.MergePatchType, []byte(change), metav1.PatchOptions{})
			switch {
			case ctx.Err() != nil:
			case err != nil:
				refused.Add(1)
				t.Errorf("write %d: %v", i, err)
				return
			default:
				written.Add(1)
			}
		}
	})
	before := r.record(t, 0)
	r.kubectl("", "--namespace", manifests.Namespace, "annotate", "secret", extension.SecretName, extension.RotateAnnotation+"=now")
	r.until("another authority is trusted", func() bool {
		all := r.record(t, 0)
		return len(all) == 2 && !all[1].Published.IsZero()
	})
	if !r.served(before.Bundle()) {
		t.Error("the new authority signs at once")
	}
	all := r.record(t, extension.Settle)
	r.until("the new authority signs", func() bool { return r.served(all[1].Cert) })
	r.record(t, extension.Settle+extension.Retire)
	want := base64.StdEncoding.EncodeToString(all[1].Cert)
	r.until("the old authority is gone", func() bool {
		b := r.bundles()
		return b[0] == want && b[1] == want && b[2] == want
	})
	at := written.Load()
	r.until("writes go on", func() bool { return written.Load() > at+20 || refused.Load() > 0 })
	cancel()
	writing.Wait()
	t.Logf("%d writes during the rotation, %d refused", written.Load(), refused.Load())
	// A write that the webhook refuses shows that it was asked until the end.
	if err := r.badCosts(); !apierrors.IsInvalid(err) {
		t.Errorf("a pair twice: %v", err)
	}
}

func (r *extendedRig) badCosts() error {
	bad := r.zoneCosts("bad")
	pairs := []any{map[string]any{"from": "a", "to": "b", "cost": int64(1)}, map[string]any{"from": "a", "to": "b", "cost": int64(2)}}
	if err := unstructured.SetNestedSlice(bad.Object, pairs, "spec", "pairs"); err != nil {
		r.t.Fatal(err)
	}
	_, err := r.dynamic.Resource(descriptor("ZoneCosts").GVK.GroupVersion().WithResource("zonecosts")).Create(context.Background(), bad, metav1.CreateOptions{})
	return err
}

// aggregated: the roles of the cluster say who may ask.
func (r *extendedRig) aggregated(t *testing.T) {
	r.until("the API is available", func() bool {
		return r.kubectl("", "get", "apiservice", "v1.control.mesh.proxima.dev", "-o",
			`jsonpath={.status.conditions[?(@.type=="Available")].status}`) == "True"
	})
	r.User(t, "alice", "alice")
	r.User(t, "bob", "bob")
	_, err := r.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "proxima-viewer"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := r.Kubeconfig(t, "alice"), r.Kubeconfig(t, "bob")
	var answer string
	r.until("alice may ask", func() bool {
		answer, err = r.run("", testkit.Kubectl(t), "--kubeconfig", alice, "get", "--raw", extension.GroupPath("/proxima/v1/status"))
		return err == nil
	})
	var status struct{ Preset string }
	if err := json.Unmarshal([]byte(answer), &status); err != nil || status.Preset != "kube-proxy-replacement" {
		t.Errorf("status %s: %v", answer, err)
	}
	if out, err := r.run("", testkit.Kubectl(t), "--kubeconfig", bob, "get", "--raw", extension.GroupPath("/proxima/v1/status")); err == nil ||
		!strings.Contains(err.Error(), "orbidden") {
		t.Errorf("bob: %s, %v", out, err)
	}
	r.kubectl("", "--namespace", "shop", "create", "service", "clusterip", "web", "--tcp=80")
	if out, err := r.run("", testkit.Kubectl(t), "--kubeconfig", alice, "get", "--raw", extension.GroupPath("/proxima/v1/explain/service?namespace=shop&name=web")); err == nil ||
		!strings.Contains(err.Error(), "may not list Services of namespace") {
		t.Errorf("explain of alice, who may list no Services: %s, %v", out, err)
	}
	r.rows(t)
	r.history(t, alice)
	r.until("alice may list Services, and this is noticed", func() bool {
		_, err := r.run("", testkit.Binary(t), "explain", "service", "shop/web", "--kubeconfig", alice)
		return err == nil
	})
	for _, args := range [][]string{{"status"}, {"explain", "service", "shop/web"}, {"simulate", "--all"}} {
		out, err := r.run("", testkit.Binary(t), append(args, "--kubeconfig", alice)...)
		if err != nil || out == "" {
			t.Errorf("proxima %v: %v", args, err)
		}
		if _, err := r.run("", testkit.Binary(t), append(args, "--kubeconfig", bob)...); err == nil {
			t.Errorf("proxima %v of bob is answered", args)
		}
	}
	r.certificate(t)
	r.pretends(t)
}

// rows: a user who may list the Services of two namespaces gets their rows and totals alone, in each view and from both replicas.
func (r *extendedRig) rows(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{"stock", "secret-project"} {
		r.kubectl("", "create", "namespace", namespace)
		r.kubectl("", "--namespace", namespace, "create", "service", "clusterip", "items", "--tcp=80")
	}
	r.User(t, "carol", "carol")
	r.kubectl("", "create", "clusterrolebinding", "carol", "--clusterrole=proxima-viewer", "--user=carol")
	for _, namespace := range []string{"shop", "stock"} {
		r.kubectl("", "--namespace", namespace, "create", "rolebinding", "carol", "--clusterrole=view", "--user=carol")
	}
	carol := r.Kubeconfig(t, "carol")
	get := func(path string) (string, error) {
		return r.run("", testkit.Kubectl(t), "--kubeconfig", carol, "get", "--raw", extension.GroupPath(path))
	}
	var services struct {
		Total    int
		Services []struct{ Namespace, Name string }
	}
	r.until("carol sees her Services", func() bool {
		text, err := get("/proxima/v1/summary/services")
		return err == nil && json.Unmarshal([]byte(text), &services) == nil && len(services.Services) == 2
	})
	if services.Services[0].Namespace+services.Services[1].Namespace != "shopstock" && services.Services[0].Namespace+services.Services[1].Namespace != "stockshop" {
		t.Errorf("carol sees %+v", services)
	}
	for range 4 { // both replicas
		for _, path := range []string{
			"/proxima/v1/summary/zones", "/proxima/v1/summary/services?namespace=secret-project", "/proxima/v1/problems", "/proxima/v1/plot/zones",
		} {
			if text, err := get(path); err != nil || strings.Contains(text, "secret-project/") || strings.Contains(text, `"secret-project"`) {
				t.Errorf("%s: %s, %v", path, text, err)
			}
		}
		for _, path := range []string{
			"/proxima/v1/summary/service?namespace=secret-project&name=items", "/proxima/v1/plot/service?namespace=secret-project&name=items",
			"/proxima/v1/explain/service?namespace=secret-project&name=items", "/proxima/v1/series", "/proxima/v1/simulate?demand=secret-project/items:a:x2",
			"/proxima/v1/feed/history?resource=services&namespace=secret-project&name=items", "/proxima/v1/feed/state?resource=services&namespace=secret-project&name=items&at=0s",
		} {
			if text, err := get(path); err == nil {
				t.Errorf("%s: %s", path, text)
			}
		}
	}
	var zones struct{ Total struct{ Services int } }
	if text, err := get("/proxima/v1/summary/zones"); err != nil || json.Unmarshal([]byte(text), &zones) != nil || zones.Total.Services != 2 {
		t.Errorf("totals %s, %v", text, err)
	}
	survey, err := r.run("", testkit.Binary(t), "simulate", "--all", "--kubeconfig", carol)
	if err != nil || strings.Contains(survey, "secret-project") || strings.Contains(survey, "kube-system") {
		t.Errorf("simulate --all: %s, %v", survey, err)
	}
	if text, err := r.run("", testkit.Binary(t), "history", "services", "--namespace", "stock", "--kubeconfig", carol); err != nil || !strings.Contains(text, "items") {
		t.Errorf("history of stock: %s, %v", text, err)
	}
	if first := r.firstFrame(t, carol); !strings.Contains(first, "zones") || strings.Contains(first, "secret-project") {
		t.Errorf("the stream begins with %s", first)
	}
}

// firstFrame of the stream of views.
func (r *extendedRig) firstFrame(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+extension.GroupPath("/proxima/v1/stream")+"?topics=zones,problems", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil {
		t.Fatalf("%d: %s: %v", answer.StatusCode, line, err)
	}
	return line
}

// history of objects, which alice sees where the roles of the cluster let her list them.
func (r *extendedRig) history(t *testing.T, alice string) {
	t.Helper()
	ask := func(args ...string) (string, error) {
		return r.run("", testkit.Binary(t), append(args, "--namespace", "shop", "--kubeconfig", alice)...)
	}
	if out, err := ask("history", "services"); err == nil || !strings.Contains(err.Error(), "cannot list them in the change feed") {
		t.Errorf("alice, without a role: %s, %v", out, err)
	}
	r.kubectl("", "--namespace", "shop", "create", "rolebinding", "alice", "--clusterrole=view", "--user=alice")
	r.kubectl("", "--namespace", "shop", "annotate", "service", "web", "example.com/owner=ann")
	var text string
	r.until("alice sees who annotated the Service", func() bool {
		var err error
		text, err = ask("history", "service", "web")
		return err == nil && strings.Contains(text, "example.com/owner") && strings.Contains(text, "kubectl-annotate")
	})
	if !strings.Contains(text, "create") {
		t.Errorf("history: %s", text)
	}
	if out, err := ask("get", "service", "web", "--at", "0s", "-o", "yaml"); err != nil || !strings.Contains(out, "owner: ann") {
		t.Errorf("get --at: %s, %v", out, err)
	}
	if out, err := ask("get", "service", "web", "--at", "1"); err == nil || !strings.Contains(err.Error(), "give a time") {
		t.Errorf("get --at 1: %s, %v", out, err)
	}
	if out, err := ask("history", "namespaces"); err == nil {
		t.Errorf("alice sees namespaces: %s", out)
	}
	for _, dir := range r.dirs {
		if out := r.proxima("feed", "status", "--kubeconfig", filepath.Join(dir, "kubeconfig")); !strings.Contains(out, "changes") {
			t.Errorf("feed status: %s", out)
		}
	}
	r.proxima("feed", "sink", "add", "webhook", "http://127.0.0.1:9/", "--name", "cmdb", "--kubeconfig", filepath.Join(r.dirs[0], "kubeconfig"))
	r.until("the other replica has the sink, too", func() bool {
		return strings.Contains(r.proxima("feed", "sink", "list", "--kubeconfig", filepath.Join(r.dirs[1], "kubeconfig")), "cmdb")
	})
}

// certificate of a node, for the token of a pod there, by which an agent is known to the API server.
func (r *extendedRig) certificate(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := r.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := r.client.CoreV1().Pods(manifests.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-one"},
		Spec: corev1.PodSpec{
			NodeName: "one", ServiceAccountName: "proxima-agent", Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound := r.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-agent",
		"--bound-object-kind=Pod", "--bound-object-name="+pod.Name, "--bound-object-uid="+string(pod.UID))
	loose := r.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-agent")
	path := extension.GroupPath("/proxima/v1/certificates")
	body := filepath.Join(t.TempDir(), "request.pem")
	writeRequest(t, body)
	// A kubeconfig of an administrator has a certificate, which goes before a token.
	ask := func(token string) (string, error) {
		return r.run("", testkit.Kubectl(t), "--kubeconfig", "/dev/null", "--server", r.URL(), "--certificate-authority", r.CAFile(),
			"--token", strings.TrimSpace(token), "create", "--raw", path, "-f", body)
	}
	var out string
	r.until("the node gets a certificate", func() bool {
		out, err = ask(bound)
		return err == nil
	})
	if !strings.Contains(out, "certificate") {
		t.Errorf("the answer is %.200s", out)
	}
	if out, err := ask(loose); err == nil || !strings.Contains(err.Error(), "with the token of a pod") {
		t.Errorf("a token of no pod: %s, %v", out, err)
	}
}

// writeRequest of a certificate, with a key that nobody keeps.
func writeRequest(t *testing.T, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pretends to be the API server: nobody is believed without its certificate.
func (r *extendedRig) pretends(t *testing.T) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.record(t, 0).Bundle())
	c, err := tls.Dial("tcp", r.ip.backends[0], &tls.Config{RootCAs: pool, ServerName: "proxima-extension." + manifests.Namespace + ".svc"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nX-Remote-User: test-admin\r\nX-Remote-Group: system:masters\r\nConnection: close\r\n\r\n",
		extension.GroupPath("/proxima/v1/status"))
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") {
		t.Errorf("without a certificate: %.200s, %v", answer, err)
	}
}

// permissions: what was asked is allowed, and what the extension was granted was used.
func (r *extendedRig) permissions(t *testing.T) {
	parts := []string{"webhook", "aggregatedAPI", "feed"}
	allowed, plain := granted(t, "kube-proxy-replacement", "proxima", parts...), granted(t, "kube-proxy-replacement", "proxima")
	asked := r.asked("proxima")
	for p := range asked {
		if !allowed[p] {
			t.Errorf("%s was asked, and the chart does not grant it", p)
		}
	}
	for p := range allowed {
		if !plain[p] && p.verb != "list" && asked[p] == 0 {
			t.Errorf("%s is granted with %v, and was not used", p, parts)
		}
	}
}

// nobody answers any more: the other replica does until both are gone; then our own kinds are
// refused, and nothing else is.
func (r *extendedRig) nobody(t *testing.T) {
	api := r.dynamic.Resource(descriptor("ZoneCosts").GVK.GroupVersion().WithResource("zonecosts"))
	r.replicas[0].Kill()
	if _, err := api.Create(t.Context(), r.zoneCosts("one-left"), metav1.CreateOptions{}); err != nil {
		t.Errorf("one replica is left: %v", err)
	}
	if err := r.badCosts(); !apierrors.IsInvalid(err) {
		t.Errorf("one replica is left, a mistake: %v", err)
	}
	r.replicas[1].Kill()
	_, err := api.Create(t.Context(), r.zoneCosts("nobody"), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), `failed calling webhook "validate.mesh.proxima.dev"`) {
		t.Errorf("nobody is left: %v", err)
	}
	t.Logf("nobody is left: %v", err)
	if err := api.Delete(t.Context(), "one-left", metav1.DeleteOptions{}); err != nil {
		t.Errorf("nobody is left, delete: %v", err)
	}
	r.kubectl("", "--namespace", "shop", "create", "service", "clusterip", "other", "--tcp=80")
	d := descriptor("ServiceExport")
	export := decode(t, d, kindtest.Valid()["ServiceExport"])
	export.SetNamespace("shop")
	if _, err := interfaceOf(r.dynamic, d, export).Create(t.Context(), export, metav1.CreateOptions{}); err != nil {
		t.Errorf("nobody is left, a kind of others: %v", err)
	}
}

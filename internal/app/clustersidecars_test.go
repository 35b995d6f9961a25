package app

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	sidecarsecret "github.com/proxima-mesh/proxima/internal/sidecar/secret"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// podToken is the projected token of a Pod as reviews know it.
func podToken(pod *corev1.Pod) string {
	return pod.Namespace + "/" + pod.Name + "/" + string(pod.UID) + ".of.pods"
}

// startSidecarKeeper has the certificate of Pod shop/web of mesh red, as its sidecar does.
func startSidecarKeeper(t *testing.T, authorities, token string, servers ...string) (k *sidecarsecret.Keeper, stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := sidecarsecret.NewKeeper(sidecarsecret.Config{Dir: t.TempDir(), Authorities: authorities, Source: sidecarsecret.Token{
		File: file, Servers: servers, Authorities: authorities, Mesh: "red", Namespace: "shop", Name: "web", Account: "seller",
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return k, stop
}

// TestSidecarOfAPod: a Pod gets its certificate by its projected token, at the port of xDS, and with it
// its configuration, from each replica; nobody else does. What is observed of it goes with the Pod. A
// Pod that should have a sidecar and has none is counted.
func TestSidecarOfAPod(t *testing.T) {
	global := startPlane(t, planeConfig(t, RoleGlobal), memory.New(memory.Options{}))
	global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "east"}})
	global.create(kind.Mesh, meshWithMTLS("red"))
	zoneToken, _, err := global.global.storage.tokens.Create(t.Context(), identity.Zone, "east", 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(zoneToken.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	start := func(name string) (*replica, string) {
		port := testkit.FreePort(t)
		r := c.startReplicaOf(name, ControlPlaneConfig{
			Preset: PresetZone, Role: RoleZone, Zone: "east", Global: global.global.api.address.String(), ZoneTokenFile: file,
			XDSPort: port, XDSPortChosen: true,
			Injection: &inject.Config{Image: "proxima-sidecar", Envoy: "envoy"},
		})
		return r, "127.0.0.1:" + strconv.Itoa(port)
	}
	a, at := start("a")
	_, other := start("b")
	eventually(t, "the mesh has certificates here", func() bool { _, ok := a.p.meshes.identities.mesh("red"); return ok })

	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{
		meshv1alpha1.LabelMesh: "red", meshv1alpha1.LabelSidecarInjection: "enabled",
	}}}
	if _, err := c.client.Create(t.Context(), kind.Namespace, shop); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is known", func() bool {
		_, ok := a.p.instance.catalog.Snapshot().Namespaces.Get(resource.Key{Name: "shop"})
		return ok
	})

	// What the webhook makes of a Pod.
	bare := clusterPod(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "web", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}}
	})
	result, err := a.p.inject(t.Context(), bare)
	if err != nil || len(result.Patch) == 0 {
		t.Fatalf("injection: %+v, %v", result, err)
	}
	create := func(name string, annotations map[string]string) *corev1.Pod {
		t.Helper()
		p := clusterPod(func(p *corev1.Pod) {
			p.Name, p.Annotations, p.Spec.Containers = name, annotations, []corev1.Container{{Name: "web", Image: "web"}}
		})
		made, err := c.client.Create(t.Context(), kind.Pod, p)
		if err != nil {
			t.Fatal(err)
		}
		p.ResourceVersion, p.UID = made.GetResourceVersion(), made.GetUID()
		if _, err := c.client.UpdateStatus(t.Context(), kind.Pod, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	web := create("web", map[string]string{meshv1alpha1.AnnotationSidecar: `{"mesh":"red","ports":[{"port":8080}]}`})
	create("late", nil)
	eventually(t, "the pod without a sidecar is counted", func() bool {
		s := a.p.following()
		return s != nil && s.Missing == 1 && s.Without[0] == "shop/late"
	})

	authorities := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(authorities, a.p.storage.ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	source := func(token string, servers ...string) (*sidecarsecret.Keeper, func()) {
		t.Helper()
		return startSidecarKeeper(t, authorities, token, servers...)
	}
	k, stop := source(podToken(web), at, other)
	eventually(t, "the pod has a certificate", func() bool { return k.Current() != nil })
	if got, want := k.Current().ID(), "spiffe://red.mesh/ns/shop/sa/seller"; got != want {
		t.Errorf("the certificate is of %s, want %s", got, want)
	}
	shown, err := k.TLS("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{at, other} {
		if code, text := askProxy(t, server, shown, "red/shop/web"); code != codes.OK {
			t.Errorf("%s: %s %s", server, code, text)
		}
	}
	if code, text := askProxy(t, at, shown, "red/shop/late"); code != codes.NotFound && code != codes.PermissionDenied {
		t.Errorf("another pod's configuration: %s %s", code, text)
	}
	anonymous := shown.Clone()
	anonymous.Certificates = nil
	if code, text := askProxy(t, at, anonymous, "red/shop/web"); code != codes.Unauthenticated {
		t.Errorf("without a certificate: %s %s", code, text)
	}
	eventually(t, "an insight of the pod", func() bool {
		obj, err := c.client.Get(t.Context(), kind.DataplaneInsight, resource.Key{Namespace: "shop", Name: "web"})
		return err == nil && len(obj.GetOwnerReferences()) == 1 && obj.GetOwnerReferences()[0].UID == web.UID
	})
	for name, token := range map[string]string{
		"there is no Pod shop/web": "shop/web/another-uid.of.pods", "the cluster refuses the token": "x.y.z", "the token of a Pod is needed": "x",
	} {
		k, stop := source(token, at)
		eventually(t, name, func() bool { err := k.Problem(); return err != nil && strings.Contains(err.Error(), name) })
		stop()
	}

	// The pod goes: nobody waits for it in a change of authorities.
	holds := func() bool {
		for _, p := range a.p.meshes.identities.board.Peers("red") {
			if p.Name == "node/"+podPeer(resource.KeyOf(web)) {
				return true
			}
		}
		return false
	}
	if !holds() {
		t.Error("the pod is no holder of a certificate")
	}
	stop()
	if err := c.client.Delete(t.Context(), kind.Pod, resource.KeyOf(web), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is forgotten", func() bool { return !holds() })
}

// TestSidecarsOfAClusterAlone: without a global control plane the leader makes the roots of meshes, which
// are in a Secret: every replica signs by them, another leader and a replica that starts goes on with
// them, and they are replaced as anywhere. The configuration of a Pod with a sidecar is served.
func TestSidecarsOfAClusterAlone(t *testing.T) {
	c := startCluster(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	red := meshWithMTLS("red")
	red.Spec.MTLS.Backends = append(red.Spec.MTLS.Backends, meshv1alpha1.MeshCertificateBackend{Name: "next", Type: meshv1alpha1.BackendBuiltin})
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{
		meshv1alpha1.LabelMesh: "red", meshv1alpha1.LabelSidecarInjection: "enabled",
	}}}
	if _, err := c.client.Create(t.Context(), kind.Mesh, red); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Create(t.Context(), kind.Namespace, shop); err != nil {
		t.Fatal(err)
	}
	start := func(name string) (*replica, string) {
		port := testkit.FreePort(t)
		r := c.startReplicaOf(name, ControlPlaneConfig{
			Preset: PresetKubeProxyReplacement, XDSPort: port, XDSPortChosen: true,
			Injection: &inject.Config{Image: "proxima-sidecar", Envoy: "envoy"},
		})
		return r, "127.0.0.1:" + strconv.Itoa(port)
	}
	issuer := func(r *replica) string {
		i, _ := r.p.meshes.identities.authorities.Issuer("red")
		return i.ID
	}
	a, at := start("a")
	b, other := start("b")
	eventually(t, "both sign by the same authority", func() bool { return issuer(a) != "" && issuer(a) == issuer(b) })
	first := issuer(a)
	obj := c.getIn(kind.Mesh, "", "red")
	obj.(*meshv1alpha1.Mesh).Spec.MTLS.EnabledBackend = "next"
	if _, err := c.client.Update(t.Context(), kind.Mesh, obj); err != nil {
		t.Fatal(err)
	}
	var next string
	eventually(t, "both sign by the next authority", func() bool {
		next = issuer(a)
		return next != first && next != "" && next == issuer(b)
	})

	web := clusterPod(func(p *corev1.Pod) {
		p.Name, p.Annotations = "web", map[string]string{meshv1alpha1.AnnotationSidecar: `{"mesh":"red","ports":[{"port":8080}]}`}
		p.Spec.Containers = []corev1.Container{{Name: "web", Image: "web"}}
	})
	made, err := c.client.Create(t.Context(), kind.Pod, web)
	if err != nil {
		t.Fatal(err)
	}
	web.ResourceVersion, web.UID = made.GetResourceVersion(), made.GetUID()
	if _, err := c.client.UpdateStatus(t.Context(), kind.Pod, web); err != nil {
		t.Fatal(err)
	}
	authorities := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(authorities, a.p.storage.ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	k, _ := startSidecarKeeper(t, authorities, podToken(web), at, other)
	eventually(t, "the pod has a certificate", func() bool { return k.Current() != nil })
	shown, err := k.TLS("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{at, other} {
		if code, text := askProxy(t, server, shown, "red/shop/web"); code != codes.OK {
			t.Errorf("%s: %s %s", server, code, text)
		}
	}

	leader, left := a, b
	if b.leads() {
		leader, left = b, a
	}
	leader.stop()
	eventually(t, "another leader", left.leads)
	if got := issuer(left); got != next {
		t.Errorf("the other replica signs by %s, not by %s", got, next)
	}
	late, _ := start("late")
	eventually(t, "a replica that starts signs by the same authority", func() bool { return issuer(late) == next })
}

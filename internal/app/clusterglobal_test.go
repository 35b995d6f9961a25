package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	"github.com/proxima-mesh/proxima/internal/federation/zones"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubeclient/lease"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	resourcememory "github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// globalReplica is a replica of global in a cluster.
type globalReplica struct {
	dir     string
	address string // of the API
	g       *clusterGlobal
	stop    func() // as SIGTERM does
}

// startGlobal at an address of the loopback interface, with ports that all replicas have: zones
// reach them by one Service.
func (c *fakeCluster) startGlobal(host string, apiPort, grpcPort int) *globalReplica {
	c.t.Helper()
	ballot, err := lease.New(lease.Config{
		REST: c.rest, Lease: resource.Key{Namespace: access.SystemNamespace, Name: leaseName}, Identity: host,
		LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 200 * time.Millisecond,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	r := &globalReplica{dir: c.t.TempDir(), address: net.JoinHostPort(host, strconv.Itoa(apiPort))}
	ctx, cancel := context.WithCancel(context.Background())
	r.g, err = newClusterGlobal(ctx, ControlPlaneConfig{
		Feed: FeedConfig{Off: true}, Store: StoreKubernetes, Preset: PresetGlobal, Role: RoleGlobal, Cluster: c.rest, Namespace: access.SystemNamespace,
		DataDir: r.dir, APIAddress: r.address, GRPCPort: grpcPort, ballot: ballot, ZoneTimeout: 2 * time.Second,
	})
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, r.g.election, append(r.g.components(), announce(func(Serving) { close(ready) }, r.g.serving())))
	}()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				c.t.Error(err)
			}
			r.g.close()
		})
	}
	c.t.Cleanup(r.stop)
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		c.t.Fatalf("replica %s does not become ready: %v", host, r.g.reads.problem())
	}
	return r
}

// has reports whether a zone is connected to this replica.
func (r *globalReplica) has(zone string) bool {
	_, err := r.g.zones.Confirm(context.Background(), zone, "none", "")
	var elsewhere *zones.NotHereError
	return !errors.As(err, &elsewhere)
}

// TestGlobalInACluster: policies of a cluster go to a zone, what the zone has comes to the cluster, at
// whichever replica the zone is; and goes with the Zone.
func TestGlobalInACluster(t *testing.T) {
	c := startCluster(t)
	apiPort, grpcPort := testkit.FreePort(t), testkit.FreePort(t)
	a, b := c.startGlobal("127.0.0.1", apiPort, grpcPort), c.startGlobal("127.0.0.2", apiPort, grpcPort)
	if _, err := c.client.Create(t.Context(), kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "west"}}); err != nil {
		t.Fatal(err)
	}

	// A token of one replica is known to the others.
	if code := ask(t, a.dir, http.MethodPost, access.TokensPath, access.TokenRequest{Kind: identity.Node, Name: "n"}, nil); code != http.StatusForbidden {
		t.Errorf("a token for a node: %d", code)
	}
	token, _, err := a.g.storage.tokens.Create(t.Context(), identity.Zone, "west", 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	cfg := planeConfig(t, RoleZone)
	cfg.Zone, cfg.Global, cfg.OtherGlobals = "west", b.address, []string{a.address}
	cfg.ZoneTokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(cfg.ZoneTokenFile, []byte(token.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	zone := startPlane(t, cfg, memory.New(memory.Options{}))
	eventually(t, "the zone is connected", func() bool { return a.has("west") || b.has("west") })

	if _, err := c.client.Create(t.Context(), kind.Mesh, meshWithMTLS("shop")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Mesh of the cluster", func() bool { return zone.has(kind.Mesh, "shop") })
	zone.create(kind.Dataplane, workloadAt("web", "10.1.0.1"))
	copies := func(d *resource.Descriptor) int {
		objects, _, err := c.client.List(t.Context(), d, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, obj := range objects {
			if owner, copied := federation.OwnerOf(obj.GetLabels()); copied && owner.Zone == "west" {
				n++
			}
		}
		return n
	}
	eventually(t, "the workload in the cluster", func() bool { return copies(kind.Dataplane) == 1 })
	eventually(t, "what the zone observes of the Mesh", func() bool {
		m := c.getIn(kind.Mesh, "", "shop").(*meshv1alpha1.Mesh)
		return slices.ContainsFunc(m.Status.Zones, func(z meshv1alpha1.PolicyZoneStatus) bool { return z.Zone == "west" })
	})

	// A GlobalSecret is a Secret of the cluster; what a Mesh refers to of it is sent. The API that is
	// the cluster here keeps others from noting what, so that is done already.
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: access.SystemNamespace, Name: "roots", Annotations: map[string]string{
			secrets.AnnotationZones: secrets.AnyZone, secrets.AnnotationValues: "value=public",
		}}, Type: globalSecretType,
		Data: map[string][]byte{"value": []byte("x"), "other": []byte("y")},
	}
	if _, err := c.client.Create(t.Context(), kind.Secret, secret); err != nil {
		t.Fatal(err)
	}
	refers := namedMesh("refers")
	refers.Spec.MTLS = &meshv1alpha1.MeshMTLS{Backends: []meshv1alpha1.MeshCertificateBackend{{
		Name: "ca", Type: meshv1alpha1.BackendExternal, External: &meshv1alpha1.MeshExternalAuthority{
			SignerName: "example.com/ca",
			Roots:      meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Kind: meshv1alpha1.KindGlobalSecret, Name: "roots"}},
		},
	}}}
	if _, err := c.client.Create(t.Context(), kind.Mesh, refers); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the secret in the zone", func() bool {
		got, _ := zone.displayed(kind.GlobalSecret)["roots"].(*meshv1alpha1.GlobalSecret)
		return got != nil && len(got.Data) == 1 && string(got.Data["value"]) == "x"
	})

	body, err := typed(meshes()).Marshal(namedMesh("other"))
	if err != nil {
		t.Fatal(err)
	}
	// Whichever replica is asked, the one with the stream answers.
	for _, r := range []*globalReplica{a, b} {
		eventually(t, "an answer of the zone", func() bool {
			return ask(t, r.dir, http.MethodPost, admin.CheckPath, admin.CheckRequest{
				Zone: "west", Type: "mesh.proxima.dev/Mesh", Object: body,
			}, nil) == http.StatusOK
		})
	}

	// A replica ends: the zone goes on at the other one, which gets what comes.
	first, other := a, b
	if b.has("west") {
		first, other = b, a
	}
	first.stop()
	eventually(t, "the zone is at the other replica", func() bool { return other.has("west") })
	if _, err := c.client.Create(t.Context(), kind.Mesh, namedMesh("late")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Mesh of after", func() bool { return zone.has(kind.Mesh, "late") })
	insight := func() *meshv1alpha1.ZoneInsightStatus {
		return &c.getIn(kind.ZoneInsight, "", "west").(*meshv1alpha1.ZoneInsight).Status
	}
	eventually(t, "the insight names the replica", func() bool {
		i := insight()
		n := len(i.Subscriptions)
		return i.Online && n > 0 && i.Subscriptions[n-1].Instance == other.address && i.Subscriptions[n-1].DisconnectTime == nil
	})
	if other.g.answers(first.address) || !other.g.answers(other.address) {
		t.Error("who answers is not known")
	}

	// With its Zone go the copies, the insight and the tokens.
	if err := c.client.Delete(t.Context(), kind.Zone, resource.Key{Name: "west"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Zone is gone", func() bool {
		c.collect(kind.Dataplane)
		_, err := c.client.Get(t.Context(), kind.Zone, resource.Key{Name: "west"})
		return apierrors.IsNotFound(err)
	})
	if n := copies(kind.Dataplane); n != 0 || other.has("west") {
		t.Errorf("%d copies are left; connected: %v", n, other.has("west"))
	}
	tokens, err := other.g.storage.tokens.List(t.Context())
	if err != nil || len(tokens) != 1 || tokens[0].Revoked.IsZero() {
		t.Errorf("tokens: %+v, %v", tokens, err)
	}
	if !zone.has(kind.Mesh, "shop") {
		t.Error("the zone has lost what it had")
	}
}

// collect does what the garbage collector of a cluster does: what is deleted without its dependents
// goes.
func (c *fakeCluster) collect(d *resource.Descriptor) {
	c.t.Helper()
	objects, _, err := c.client.List(c.t.Context(), d, resource.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, obj := range objects {
		if !slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents) {
			continue
		}
		obj.SetFinalizers(nil)
		if _, err := c.client.Update(c.t.Context(), d, obj); err != nil && !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
}

// meshWithMTLS has an authority of its own.
func meshWithMTLS(name string) *meshv1alpha1.Mesh {
	m := namedMesh(name)
	m.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Type: meshv1alpha1.BackendBuiltin}}}
	return m
}

// TestClusterSecrets: Secrets of one type are GlobalSecrets, and no other one is touched.
func TestClusterSecrets(t *testing.T) {
	in := resourcememory.New(kind.Secret)
	c := &clusterSecrets{secrets: in, namespace: "ns"}
	for _, s := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "own"}, Data: map[string][]byte{"a": []byte("1")}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "far"}, Type: globalSecretType},
	} {
		if _, err := in.Create(t.Context(), kind.Secret, s); err != nil {
			t.Fatal(err)
		}
	}
	events, err := c.Watch(t.Context(), kind.GlobalSecret, resource.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	made, err := c.Create(t.Context(), kind.GlobalSecret, &meshv1alpha1.GlobalSecret{
		ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: map[string]string{"l": "1"}}, Data: map[string][]byte{"a": []byte("2")},
	})
	if err != nil || made.GetNamespace() != "" || made.GetLabels()["l"] != "1" {
		t.Fatalf("%+v, %v", made, err)
	}
	for seen := false; !seen; {
		e := <-events.ResultChan()
		if e.Type == watch.Bookmark {
			continue
		}
		if g, ok := e.Object.(*meshv1alpha1.GlobalSecret); !ok || g.Name != "g" || string(g.Data["a"]) != "2" {
			t.Fatalf("%s of %+v", e.Type, e.Object)
		}
		seen = true
	}
	made.(*meshv1alpha1.GlobalSecret).Data["a"] = []byte("3")
	if _, err := c.Update(t.Context(), kind.GlobalSecret, made); err != nil {
		t.Fatal(err)
	}
	stored, err := in.Get(t.Context(), kind.Secret, resource.Key{Namespace: "ns", Name: "g"})
	if err != nil || stored.(*corev1.Secret).Type != globalSecretType || string(stored.(*corev1.Secret).Data["a"]) != "3" {
		t.Errorf("%+v, %v", stored, err)
	}
	if all, _, err := c.List(t.Context(), kind.GlobalSecret, resource.ListOptions{}); err != nil || len(all) != 1 || all[0].GetName() != "g" {
		t.Errorf("%+v, %v", all, err)
	}
	// A Secret of another type is not there, and keeps its name.
	own := resource.Key{Name: "own"}
	if _, err := c.Get(t.Context(), kind.GlobalSecret, own); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v", err)
	}
	if err := c.Delete(t.Context(), kind.GlobalSecret, own, resource.Preconditions{}); !apierrors.IsNotFound(err) {
		t.Errorf("delete: %v", err)
	}
	if _, err := c.Create(t.Context(), kind.GlobalSecret, &meshv1alpha1.GlobalSecret{ObjectMeta: metav1.ObjectMeta{Name: "own"}}); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v", err)
	}
	if err := c.Delete(t.Context(), kind.GlobalSecret, resource.Key{Name: "g"}, resource.Preconditions{}); err != nil {
		t.Error(err)
	}
}

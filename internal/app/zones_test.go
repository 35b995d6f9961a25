package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// plane is a control plane of any role, over real TCP on loopback.
type plane struct {
	// crashed: a part of it was ended by the test.
	crashed bool
	t       *testing.T
	cfg     ControlPlaneConfig
	store   store.Store
	// client as an administrator, over HTTP.
	client resource.Client
	global *global
	cp     *standalone
	stop   func()
}

func planeConfig(t *testing.T, role Role) ControlPlaneConfig {
	return ControlPlaneConfig{
		Store: "memory", DataDir: t.TempDir(), APIAddress: "127.0.0.1:0", GRPCPort: testkit.FreePort(t), MachineID: t.Name(), Role: role,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	}
}

// start runs a control plane on a store until the test ends, or stop is called.
func startPlane(t *testing.T, cfg ControlPlaneConfig, s store.Store) *plane {
	t.Helper()
	open := func(context.Context, string, string, *slog.Logger) (store.Store, error) { return keptOpen{s}, nil }
	ctx, cancel := context.WithCancel(context.Background())
	p := &plane{t: t, cfg: cfg, store: s}
	var components []component
	var e election
	var closing func()
	var err error
	if cfg.role() == RoleGlobal {
		if p.global, err = newGlobalOn(ctx, cfg, open); err == nil {
			components, e, closing = p.global.components(), p.global.election, p.global.close
		}
	} else if p.cp, err = newStandaloneOn(ctx, cfg, open, nil); err == nil {
		components, e, closing = p.cp.components(), p.cp.election, p.cp.close
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- run(ctx, e, append(components, announce(func(Serving) { close(ready) }, Serving{}))) }()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !p.crashed {
			t.Error(err)
		}
		closing()
	}
	t.Cleanup(p.stop)
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		t.Fatalf("the %s control plane does not become ready", cfg.role())
	}
	rest, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cfg.DataDir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = kubeclient.New(rest, kind.All()); err != nil {
		t.Fatal(err)
	}
	return p
}

// keptOpen is a store that outlives the control plane.
type keptOpen struct{ store.Store }

func (keptOpen) Close() error { return nil }

func (p *plane) create(k *resource.Descriptor, obj resource.Object) resource.Object {
	p.t.Helper()
	out, err := p.client.Create(p.t.Context(), k, obj)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// displayed names of the objects of a kind, as their owners name them.
func (p *plane) displayed(k *resource.Descriptor) map[string]resource.Object {
	p.t.Helper()
	objects, _, err := p.client.List(p.t.Context(), k, resource.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]resource.Object{}
	for _, obj := range objects {
		name := obj.GetLabels()[meshv1alpha1.LabelDisplayName]
		if name == "" {
			name = obj.GetName()
		}
		out[name] = obj
	}
	return out
}

func (p *plane) has(k *resource.Descriptor, name string) bool { return p.displayed(k)[name] != nil }

// until waits for a condition: connections take their time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Timeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

// sites are global and two zones that are connected to it.
type sites struct {
	t            *testing.T
	global, a, b *plane
	globalStore  store.Store
}

func startSites(t *testing.T) *sites {
	t.Helper()
	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	// A restart has the same addresses.
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	s.a, s.b = s.startZone("a"), s.startZone("b")
	return s
}

func (s *sites) zoneConfig(zone, tokenOf string) ControlPlaneConfig {
	s.t.Helper()
	token, _, err := s.global.global.storage.tokens.Create(s.t.Context(), identity.Zone, tokenOf, 0, "test")
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := planeConfig(s.t, RoleZone)
	if zone == "b" {
		cfg.FederationProtocol = 1
	}
	cfg.Zone, cfg.Global = zone, s.global.cfg.APIAddress
	cfg.ZoneTokenFile = filepath.Join(s.t.TempDir(), "token")
	if err := os.WriteFile(cfg.ZoneTokenFile, []byte(token.Reveal()+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

func (s *sites) startZone(name string) *plane {
	s.t.Helper()
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: name}})
	p := startPlane(s.t, s.zoneConfig(name, name), memory.New(memory.Options{}))
	until(s.t, "zone "+name+" is online", func() bool { return s.online(name) })
	return p
}

func (s *sites) insight(zone string) *meshv1alpha1.ZoneInsightStatus {
	s.t.Helper()
	obj, err := s.global.client.Get(s.t.Context(), kind.ZoneInsight, resource.Key{Name: zone})
	if apierrors.IsNotFound(err) {
		return &meshv1alpha1.ZoneInsightStatus{}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return &obj.(*meshv1alpha1.ZoneInsight).Status
}

func (s *sites) online(zone string) bool { return s.insight(zone).Online }

func namedMesh(name string) *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func workloadAt(name, address string) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{address}},
	}
}

func export(name string, zones string) *mcs.ServiceExport {
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if zones != "" {
		e.Annotations = map[string]string{meshv1alpha1.AnnotationToZones: zones}
	}
	return e
}

// TestZones: what global and zones have of each other.
func TestZones(t *testing.T) {
	s := startSites(t)
	s.global.create(kind.Mesh, namedMesh("shop"))
	for _, p := range []*plane{s.a, s.b} {
		until(t, "Meshes of global", func() bool { return p.has(kind.Mesh, "shop") && p.has(kind.Mesh, "default") })
	}
	s.a.create(kind.Dataplane, workloadAt("web", "10.1.0.1"))
	s.a.create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	})
	s.a.create(kind.ServiceExport, export("web", ""))
	s.a.create(kind.ServiceExport, export("internal", "c"))
	until(t, "the export in zone b", func() bool { return s.b.has(kind.ServiceExport, "web") })
	until(t, "the workload at global", func() bool {
		return s.global.has(kind.Dataplane, "web") && s.global.has(kind.ServiceExport, "internal")
	})
	until(t, "the Service at global", func() bool { return s.global.has(kind.Service, "web") })
	copied := s.global.displayed(kind.Dataplane)["web"]
	if labels := copied.GetLabels(); labels[meshv1alpha1.LabelZone] != "a" || labels[meshv1alpha1.LabelSourceNamespace] != "default" {
		t.Errorf("labels of the copy: %v", labels)
	}
	if s.b.has(kind.Dataplane, "web") || s.b.has(kind.Service, "web") || s.b.has(kind.ServiceExport, "internal") {
		t.Error("zone b has what is not for it")
	}
	until(t, "counts in the insight", func() bool {
		for _, typ := range s.insight("a").Types {
			if typ.Type == "mesh.proxima.dev/Dataplane" && typ.Direction == meshv1alpha1.SyncToGlobal {
				return typ.Objects == 1
			}
		}
		return false
	})
	for zone, protocol := range map[string]int32{"a": 2, "b": 1} {
		if all := s.insight(zone).Subscriptions; len(all) == 0 || all[len(all)-1].Protocol != protocol || all[len(all)-1].Version == "" {
			t.Errorf("connections of zone %s: %+v, want protocol %d", zone, all, protocol)
		}
	}
	s.testNewExport()
	s.testWrites()
	s.testDisabled()
	s.testDeleted()
}

// testNewExport: a new export is one message and one commit in each control plane, which has
// what it offers; not an empty one first.
func (s *sites) testNewExport() {
	s.t.Helper()
	events, err := s.b.client.Watch(s.t.Context(), kind.ServiceExport, resource.WatchOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer events.Stop()
	for n := range 5 { // whether the controller is faster than the stream is a matter of luck
		name := fmt.Sprintf("new-%d", n)
		s.a.create(kind.Service, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		})
		// Kinds have no order among each other: an export that is known before its Service has
		// nothing to offer yet, rightly.
		until(s.t, "the Service in the tables", func() bool {
			_, ok := s.a.cp.instance.catalog.Snapshot().Services.Get(resource.Key{Namespace: "default", Name: name})
			return ok
		})
		s.a.create(kind.ServiceExport, export(name, ""))
		until(s.t, "the export in zone b", func() bool { return s.b.has(kind.ServiceExport, name) })
	}
	seen := map[string]bool{}
	for len(seen) < 5 {
		event := <-events.ResultChan()
		e, ok := event.Object.(*mcs.ServiceExport)
		if !ok || !strings.HasPrefix(e.Labels[meshv1alpha1.LabelDisplayName], "new-") {
			continue
		}
		seen[e.Labels[meshv1alpha1.LabelDisplayName]] = true
		if event.Type != watch.Added || e.Status.Available == nil {
			s.t.Errorf("%s of an export of another zone, with %+v", event.Type, e.Status.Available)
		}
	}
}

// testWrites: who may write what, where.
func (s *sites) testWrites() {
	own := namedMesh("own")
	own.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	s.a.create(kind.Mesh, own)
	forged := workloadAt("forged", "10.1.0.2")
	forged.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: "b"}
	for _, test := range []struct {
		name string
		at   *plane
		kind *resource.Descriptor
		obj  resource.Object
		want string
	}{
		{"policy in a zone", s.a, kind.Mesh, namedMesh("other"), "written at the global control plane (" + s.global.cfg.APIAddress},
		{"forged zone", s.a, kind.Dataplane, forged, "are set by control planes"},
		{"forged zone at global", s.global, kind.Mesh, labelledMesh("x", "zone", "a"), "are set by control planes"},
		{"workload at global", s.global, kind.Dataplane, workloadAt("here", "10.1.0.3"), "at the control plane of its zone"},
		{"zone in a zone", s.a, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, "are made at the global control plane"},
	} {
		_, err := test.at.client.Create(s.t.Context(), test.kind, test.obj)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want) {
			s.t.Errorf("%s: %v, want 403 with %q", test.name, err, test.want)
		}
	}
	for _, p := range []*plane{s.b, s.global} {
		copied := p.displayed(kind.ServiceExport)["web"]
		err := p.client.Delete(s.t.Context(), kind.ServiceExport, resource.KeyOf(copied), resource.Preconditions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "copy of an object of zone a") {
			s.t.Errorf("deletion of a copy: %v", err)
		}
	}
	if s.global.has(kind.Mesh, "own") {
		s.t.Error("a zone's own Mesh left it")
	}
}

func labelledMesh(name, origin, zone string) *meshv1alpha1.Mesh {
	m := namedMesh(name)
	m.Labels = map[string]string{meshv1alpha1.LabelOrigin: origin, meshv1alpha1.LabelZone: zone}
	return m
}

func (s *sites) enable(zone string, enabled bool) {
	s.t.Helper()
	until(s.t, "the Zone is written", func() bool {
		obj, err := s.global.client.Get(s.t.Context(), kind.Zone, resource.Key{Name: zone})
		if err != nil {
			s.t.Fatal(err)
		}
		obj.(*meshv1alpha1.Zone).Spec.Enabled = &enabled
		_, err = s.global.client.Update(s.t.Context(), kind.Zone, obj)
		return err == nil
	})
}

// testDisabled: what a disabled zone offers leaves the others, and comes back.
func (s *sites) testDisabled() {
	err := s.global.client.Delete(s.t.Context(), kind.Zone, resource.Key{Name: "a"}, resource.Preconditions{})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "--force") {
		s.t.Errorf("deletion of a zone that is online: %v", err)
	}
	s.enable("a", false)
	until(s.t, "the export leaves zone b", func() bool { return !s.b.has(kind.ServiceExport, "web") })
	until(s.t, "zone a is offline", func() bool { return !s.online("a") })
	if !s.global.has(kind.ServiceExport, "web") || !s.a.has(kind.Mesh, "shop") {
		s.t.Error("global or the zone itself lost something")
	}
	s.enable("a", true)
	until(s.t, "the export is back in zone b", func() bool { return s.b.has(kind.ServiceExport, "web") })
	until(s.t, "zone a is online", func() bool { return s.online("a") })
}

// testDeleted: with a zone go its copies and its tokens, and nothing of its own.
func (s *sites) testDeleted() {
	s.enable("a", false)
	if err := s.global.client.Delete(s.t.Context(), kind.Zone, resource.Key{Name: "a"}, resource.Preconditions{}); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "the Zone is gone", func() bool { return !s.global.has(kind.Zone, "a") })
	if s.global.has(kind.Dataplane, "web") || s.global.has(kind.ServiceExport, "web") || s.global.has(kind.ZoneInsight, "a") {
		s.t.Error("something of the deleted zone is left at global")
	}
	if !s.a.has(kind.Dataplane, "web") || !s.a.has(kind.Mesh, "shop") {
		s.t.Error("the deleted zone lost something of its own")
	}
	tokens, err := s.global.global.storage.tokens.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, token := range tokens {
		if token.Name == "a" && token.Revoked.IsZero() {
			s.t.Error("a token of the deleted zone is valid")
		}
	}
}

// TestZoneToken: a control plane does not start with another zone's token, and global has
// none for nodes.
func TestZoneToken(t *testing.T) {
	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	_, err := newStandalone(t.Context(), s.zoneConfig("a", "b"))
	if err == nil || !strings.Contains(err.Error(), "the credentials are for zone b, and this is zone a") {
		t.Errorf("another zone's token: %v", err)
	}
	if err := allowAtGlobal(identity.Node); err == nil || !strings.Contains(err.Error(), "control plane of the zone") {
		t.Errorf("a node's token at global: %v", err)
	}
	token, _, err := s.global.global.storage.tokens.Create(t.Context(), identity.Node, "n1", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	renewer := identity.NewRenewer(identity.RenewerConfig{
		Dir: t.TempDir(), Server: s.global.cfg.APIAddress, Logger: slog.New(slog.DiscardHandler),
		Token: func() (string, error) { return token.Reveal(), nil },
	})
	if _, err := renewer.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := (&planeLink{renewer: renewer, server: s.global.cfg.APIAddress, serves: "node views"}).connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Invoke(t.Context(), "/proxima.node.v1.View/Follow", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "joins the control plane of its own zone") {
		t.Errorf("a node's agent at global: %v", err)
	}
}

// restartEmpty is global, come back at the same address with nothing in its store.
func (s *sites) restartEmpty() {
	s.t.Helper()
	s.global.stop()
	s.globalStore = memory.New(memory.Options{})
	s.global = startPlane(s.t, s.global.cfg, s.globalStore)
}

// held deletions of a type in a zone, and the names that it shows.
func (p *plane) held(typ string) (int, []string) {
	p.t.Helper()
	state, err := p.cp.zone.State(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, one := range state.Types {
		if one.Type == typ && one.Direction == meshv1alpha1.SyncToZone {
			return int(one.Held), one.HeldNames
		}
	}
	return 0, nil
}

// TestGlobalEmptied: zones keep what they have when global comes back without anything, and
// say what is held.
func TestGlobalEmptied(t *testing.T) {
	s := startSites(t)
	s.global.create(kind.Mesh, namedMesh("shop"))
	s.a.create(kind.Dataplane, workloadAt("web", "10.1.0.1"))
	s.a.create(kind.ServiceExport, export("web", ""))
	until(t, "the Mesh in zone a", func() bool { return s.a.has(kind.Mesh, "shop") })
	until(t, "the export in zone b", func() bool { return s.b.has(kind.ServiceExport, "web") })
	s.restartEmpty()
	for _, zone := range []string{"a", "b"} {
		s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: zone}})
	}
	until(t, "zone a holds the deletion", func() bool {
		n, names := s.a.held("mesh.proxima.dev/Mesh")
		return n == 1 && names[0] == "/shop"
	})
	until(t, "the inventory is back", func() bool { return s.global.has(kind.Dataplane, "web") })
	if !s.a.has(kind.Mesh, "shop") || !s.a.has(kind.Dataplane, "web") || !s.b.has(kind.ServiceExport, "web") {
		t.Error("a zone lost something")
	}
	until(t, "the deletion is confirmed", func() bool {
		n, err := s.a.cp.zone.Confirm(t.Context(), "a", "mesh", "")
		return err == nil && n == 1
	})
	until(t, "the Mesh goes", func() bool { return !s.a.has(kind.Mesh, "shop") })
	if s.a.has(kind.Mesh, "default") != true {
		t.Error("the Mesh that global has is gone, too")
	}
}

// TestZoneWithoutGlobal: a zone starts and serves while global does not answer.
func TestZoneWithoutGlobal(t *testing.T) {
	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	cfg := s.zoneConfig("a", "a")
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	s.global.stop()
	a := startPlane(t, cfg, memory.New(memory.Options{}))
	a.create(kind.Dataplane, workloadAt("web", "10.1.0.1"))
	state, err := a.cp.zone.State(t.Context())
	if err != nil || state.Connected || state.Problem == "" {
		t.Errorf("state without global: %+v, %v", state, err)
	}
}

// TestStandaloneBecomesZone: a control plane that stood alone goes on as that of a zone, with
// its objects. The default mesh that it made then is global's.
func TestStandaloneBecomesZone(t *testing.T) {
	kept := memory.New(memory.Options{})
	alone := startPlane(t, planeConfig(t, RoleStandalone), kept)
	alone.create(kind.Dataplane, workloadAt("web", "10.1.0.1"))
	alone.stop()

	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	cfg := s.zoneConfig("a", "a")
	cfg.DataDir = alone.cfg.DataDir
	a := startPlane(t, cfg, kept)
	until(t, "the default mesh is that of global", func() bool {
		obj := a.displayed(kind.Mesh)["default"]
		return obj != nil && obj.GetLabels()[meshv1alpha1.LabelOrigin] == meshv1alpha1.OriginGlobal
	})
	until(t, "global lists the workload", func() bool { return s.global.has(kind.Dataplane, "web") })
	if !a.has(kind.Dataplane, "web") {
		t.Error("the workload is gone")
	}
}

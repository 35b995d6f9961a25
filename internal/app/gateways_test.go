package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// testSite is a control plane with an authority that other sites share.
type testSite struct{ *meshPlane }

func startSite(t *testing.T, name, cidr string, ca *catest.CA) testSite {
	t.Helper()
	s := testSite{startMeshPlaneOf(t, name, cidr)}
	s.create(kind.GlobalSecret, &meshv1alpha1.GlobalSecret{
		ObjectMeta: metav1.ObjectMeta{Name: "corp"},
		Data:       map[string][]byte{"tls.crt": catest.PEM(ca), "tls.key": ca.KeyPEM(t)},
	})
	ref := func(key string) meshv1alpha1.DataSource {
		return meshv1alpha1.DataSource{SecretRef: &meshv1alpha1.SecretKeyReference{Name: "corp", Key: key}}
	}
	m := builtin("corp", "corp")
	m.Backends[0].Type = meshv1alpha1.BackendProvided
	m.Backends[0].Provided = &meshv1alpha1.MeshProvidedAuthority{Certificate: ref("tls.crt"), Key: ref("tls.key")}
	s.editMesh("an authority", func(spec *meshv1alpha1.MeshSpec) { spec.MTLS = m })
	return s
}

// create writes as the control plane itself: copies are written by nobody else.
func (s testSite) create(d *resource.Descriptor, object resource.Object) resource.Object {
	s.t.Helper()
	made, err := s.cp.api.client.Create(s.t.Context(), d, object)
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}

// editMesh changes the default mesh, as global does.
func (s testSite) editMesh(what string, edit func(*meshv1alpha1.MeshSpec)) {
	s.t.Helper()
	var err error
	testkit.Eventually(s.t, "the mesh has "+what, func() bool {
		var obj resource.Object
		if obj, err = s.cp.api.client.Get(s.t.Context(), kind.Mesh, resource.Key{Name: "default"}); err != nil {
			return false
		}
		edit(&obj.(*meshv1alpha1.Mesh).Spec)
		_, err = s.cp.api.client.Update(s.t.Context(), kind.Mesh, obj)
		return err == nil
	})
}

// start runs a node, or gateway, of the site until stop is called.
func (s testSite) start(name string, edit func(*NodeConfig)) (serving Serving, stop func()) {
	s.t.Helper()
	token, _, err := s.cp.storage.tokens.CreateBounded(s.t.Context(), identity.Node, name,
		identity.Bounds{Namespaces: []string{identity.EveryNamespace}}, time.Hour, "test")
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := NodeConfig{
		Server: reachable(s.cp.api.address), Token: token.Reveal(), Name: name, Mode: "userspace", DataDir: s.t.TempDir(),
		MachineID: s.t.Name(), certificateSpread: -1, TunnelPort: testkit.FreePort(s.t),
	}
	edit(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan Serving, 1), make(chan error, 1)
	go func() { done <- RunNode(ctx, cfg, func(s Serving) { ready <- s }) }()
	select {
	case serving = <-ready:
	case err := <-done:
		s.t.Fatal(err)
	case <-time.After(testkit.Timeout):
		s.t.Fatalf("%s does not become ready", name)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(stop)
	return serving, stop
}

func (s testSite) startIngress(name string) (at netip.AddrPort, stop func()) {
	s.t.Helper()
	serving, stop := s.start(name, func(c *NodeConfig) {
		c.Gateway = &GatewayConfig{Address: netip.MustParseAddr("127.0.0.1")}
	})
	return netip.MustParseAddrPort(serving.Gateway), stop
}

// export offers an echo server of this process as default/web.
func (s testSite) export() {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	port := int32(l.Addr().(*net.TCPAddr).Port)
	s.create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 8080}}},
	})
	w := s.create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{meshv1alpha1.AnnotationMachineID: s.t.Name()}},
		Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"127.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: port}}},
	}).(*meshv1alpha1.Dataplane)
	w.Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
	}}
	if _, err := s.cp.api.client.UpdateStatus(s.t.Context(), kind.Dataplane, w); err != nil {
		s.t.Fatal(err)
	}
	svc, err := s.cp.api.client.Get(s.t.Context(), kind.Service, resource.Key{Namespace: "default", Name: "web"})
	if err != nil {
		s.t.Fatal(err)
	}
	svc.(*corev1.Service).Spec.Ports[0].TargetPort.IntVal = port
	if _, err := s.cp.api.client.Update(s.t.Context(), kind.Service, svc); err != nil {
		s.t.Fatal(err)
	}
	s.create(kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
}

// copyFrom makes the copies that federation would make of another site's export.
func (s testSite) copyFrom(zone string, other testSite) {
	s.t.Helper()
	var available *mcs.AvailableService
	testkit.Eventually(s.t, "the export is available", func() bool {
		e := getOrNil[*mcs.ServiceExport](other.meshPlane, kind.ServiceExport, resource.Key{Namespace: "default", Name: "web"})
		if e != nil {
			available = e.Status.Available
		}
		return available != nil
	})
	available.Instances = 1 // endpoints at loopback addresses do not count
	labels := map[string]string{
		meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone,
		meshv1alpha1.LabelDisplayName: "web", meshv1alpha1.LabelSourceNamespace: "default",
	}
	e := s.create(kind.ServiceExport, &mcs.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-of-" + zone, Labels: labels},
	}).(*mcs.ServiceExport)
	e.Status.Available = available
	if _, err := s.cp.api.client.UpdateStatus(s.t.Context(), kind.ServiceExport, e); err != nil {
		s.t.Fatal(err)
	}
}

func (s testSite) copyIngress(zone, name string, at netip.AddrPort) {
	s.t.Helper()
	s.create(kind.ZoneIngress, &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-of-" + zone, Labels: map[string]string{
			meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone, meshv1alpha1.LabelDisplayName: name,
		}},
		Spec: meshv1alpha1.ZoneGatewaySpec{Zone: zone, Address: at.Addr().String(), Port: int32(at.Port())},
	})
}

// virtualAddress of the import default/web.
func (s testSite) virtualAddress() string {
	s.t.Helper()
	var ip string
	testkit.Eventually(s.t, "the import has a virtual IP", func() bool {
		i := getOrNil[*mcs.ServiceImport](s.meshPlane, kind.ServiceImport, resource.Key{Namespace: "default", Name: "web"})
		if i == nil || len(i.Spec.IPs) == 0 {
			return false
		}
		ip = i.Spec.IPs[0]
		return true
	})
	return net.JoinHostPort(ip, strconv.Itoa(8080))
}

// echoed reports whether a new connection carries bytes both ways.
func echoed(at string) error {
	c, err := net.DialTimeout("tcp", at, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	return exchange(c)
}

func exchange(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	got := make([]byte, 5)
	_, err := io.ReadFull(c, got)
	return err
}

// TestOtherSiteIsReached: a client of site a reaches an endpoint of site b, which has none
// here, by mutual TLS through the ingress of b; when that one is killed, by another.
func TestOtherSiteIsReached(t *testing.T) {
	mode, cidr, from := os.Getenv("PROXIMA_TEST_MODE"), "10.96.77.0/24", kernelAddress
	if mode == "" {
		mode, cidr, from = "userspace", "127.96.77.0/24", "127.0.0.1"
		l, err := net.Listen("tcp", "127.96.77.1:0")
		if err != nil {
			t.Skip("this system has one loopback address only")
		}
		l.Close()
	}
	ca := catest.New(t, "corp root", nil, nil)
	a, b := startSite(t, "a", cidr, ca), startSite(t, "b", "127.96.78.0/24", ca)
	b.export()
	first, stopFirst := b.startIngress("ingress-1")
	second, _ := b.startIngress("ingress-2")
	testkit.Eventually(t, "the ingress is registered with its zone", func() bool {
		i := getOrNil[*meshv1alpha1.ZoneIngress](b.meshPlane, kind.ZoneIngress, resource.Key{Name: "ingress-1"})
		return i != nil && i.Spec.Zone == "b" && kind.GatewayAddress(&i.Spec) == first.String()
	})
	b.gatewayIs(insight.Gateway(insight.OfIngress, "ingress-1"))
	b.gatewayAnswers("ingress-1")
	a.copyFrom("b", b)
	a.copyIngress("b", "ingress-1", first)
	a.start("n1", func(c *NodeConfig) { c.Mode = mode })
	a.create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "client",
			Annotations: map[string]string{meshv1alpha1.AnnotationMachineID: t.Name()}},
		Spec: meshv1alpha1.DataplaneSpec{NodeName: "n1", Addresses: []string{from}},
	})
	at := a.virtualAddress()
	var last error
	defer func() {
		if t.Failed() {
			t.Log("last:", last)
		}
	}()
	reached := func() bool { last = echoed(at); return last == nil }
	testkit.Eventually(t, "the endpoint of site b is reached", reached)

	open, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := exchange(open); err != nil {
		t.Fatal(err)
	}
	stopFirst() // open streams are cut after a while
	_ = open.SetDeadline(time.Now().Add(2 * gatewayGrace))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection through the ingress that has ended: %v, want a reset", err)
	}
	if err := echoed(at); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("without an ingress: %v, want a reset", err)
	}
	a.copyIngress("b", "ingress-2", second)
	testkit.Eventually(t, "the other ingress is used", reached)

	a.editMesh("an egress", func(spec *meshv1alpha1.MeshSpec) { spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)} })
	testkit.Eventually(t, "there is no way out without an egress", func() bool { return echoed(at) != nil })
	a.start("egress-1", func(c *NodeConfig) {
		c.Gateway = &GatewayConfig{Egress: true, Address: netip.MustParseAddr("127.0.0.1")}
	})
	testkit.Eventually(t, "the egress is used", reached)
	a.gatewayIs(insight.Gateway(insight.OfEgress, "egress-1"))
}

// gatewayIs waits until the insight of a gateway without Envoy says that it is connected, that it has accepted its
// view, and that it has a certificate in the default mesh.
func (s testSite) gatewayIs(of insight.Subject) {
	s.t.Helper()
	var last any
	defer func() {
		if s.t.Failed() {
			s.t.Logf("insight of %s: %+v", of, last)
		}
	}()
	testkit.Eventually(s.t, "the insight of "+of.String()+" says how it is", func() bool {
		var found *meshv1alpha1.ClientInsightStatus
		if of.Role == insight.OfIngress {
			if i := getOrNil[*meshv1alpha1.ZoneIngressInsight](s.meshPlane, kind.ZoneIngressInsight, of.Key); i != nil {
				found = &i.Status
			}
		} else if i := getOrNil[*meshv1alpha1.ZoneEgressInsight](s.meshPlane, kind.ZoneEgressInsight, of.Key); i != nil {
			found = &i.Status
		}
		if last = found; found == nil || len(found.Certificates) != 1 || found.Versions.Proxy != "proxima" {
			return false
		}
		return meta.IsStatusConditionTrue(found.Conditions, meshv1alpha1.DataplaneProxyConnected) && meta.IsStatusConditionTrue(found.Conditions, meshv1alpha1.DataplaneProxyReady) &&
			meta.IsStatusConditionTrue(found.Conditions, meshv1alpha1.DataplaneCertificateValid) && found.Certificates[0].Mesh == "default"
	})
}

// gatewayAnswers checks what "proxima proxy" has of a gateway without Envoy.
func (s testSite) gatewayAnswers(name string) {
	s.t.Helper()
	ask := func(q admin.ProxyQuestion) ([]byte, error) {
		ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Timeout)
		defer cancel()
		return s.cp.calls.Call(ctx, admin.ProxyCall{Question: q, Namespace: xds.GatewayNamespace, Name: name})
	}
	body, err := ask(admin.ProxyStatus)
	var state admin.ProxyState
	if err == nil {
		err = json.Unmarshal(body, &state)
	}
	if err != nil || state.Kind != "ingress" || state.Program != "proxima" || state.Peer == "" || len(state.Types) == 0 || state.Types[0].Acknowledged == 0 {
		s.t.Errorf("status of the gateway: %+v, %v", state, err)
	}
	if body, err := ask(admin.ProxyConfig); err != nil || !json.Valid(body) {
		s.t.Errorf("what the gateway carries: %.100s, %v", body, err)
	}
	if _, err := ask(admin.ProxyDiff); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no Envoy") {
		s.t.Errorf("the difference at a gateway without Envoy: %v", err)
	}
	if _, err := s.cp.calls.Call(s.t.Context(), admin.ProxyCall{Question: admin.ProxyStatus, Namespace: xds.GatewayNamespace, Name: "none"}); status.Code(err) != codes.NotFound {
		s.t.Errorf("a gateway that is not there: %v", err)
	}
}

// kernelAddress of the machine in tests of kernel modes.
const kernelAddress = "10.99.0.1"

// TestOtherSiteIsReachedInKernelModes: the same, where the kernel redirects to the tunnel,
// in a network of its own.
func TestOtherSiteIsReachedInKernelModes(t *testing.T) {
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Setenv("PROXIMA_TEST_MODE", mode)
			n, outside := netns.New(t, "site"), netns.New(t, "outside")
			netns.Connect(n, outside, [2]string{kernelAddress + "/24", "10.99.0.2/24"})
			n.Route("0.0.0.0/0", "10.99.0.2")
			n.Run(os.Args[0], "-test.run", "^TestOtherSiteIsReached$")
		})
	}
}

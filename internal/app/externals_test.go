package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// outsideServer is a server outside every mesh: it echoes over TLS, as localhost.
type outsideServer struct {
	ca   *catest.CA
	port int32
	// names that were asked for are counted.
	named atomic.Int64
}

func startOutside(t *testing.T) *outsideServer {
	t.Helper()
	o := &outsideServer{ca: catest.New(t, "public root", nil, nil)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := o.ca.Sign(&x509.Certificate{
		DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if hello.ServerName == "localhost" {
				o.named.Add(1)
			}
			return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	o.port = int32(l.Addr().(*net.TCPAddr).Port)
	return o
}

// service that is reached at port 8443.
func (o *outsideServer) service(name string, ca *catest.CA, zones ...string) *meshv1alpha1.ExternalService {
	return &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: meshv1alpha1.ExternalServiceSpec{
			Hosts: []string{"localhost"}, Zones: zones,
			Ports: []meshv1alpha1.ExternalServicePort{{Port: 8443, TargetPort: &o.port}},
			TLS:   &meshv1alpha1.ExternalServiceTLS{CACertificates: &meshv1alpha1.DataSource{Inline: catest.PEM(ca)}},
		},
	}
}

// external is the virtual address of an ExternalService, and its status.
func (s testSite) external(name string) (at string, status meshv1alpha1.ExternalServiceStatus) {
	s.t.Helper()
	testkit.Eventually(s.t, "the external service has a virtual IP", func() bool {
		e := getOrNil[*meshv1alpha1.ExternalService](s.meshPlane, kind.ExternalService, resource.Key{Namespace: "default", Name: name})
		if e == nil || len(e.Status.VirtualIPs) == 0 {
			return false
		}
		at, status = net.JoinHostPort(e.Status.VirtualIPs[0], strconv.Itoa(8443)), e.Status
		return true
	})
	return at, status
}

// TestExternalService: workloads call a service outside every mesh in plain text at its
// virtual IP; TLS begins at the agent, at the egress where the mesh has one, and at the
// ingress of another zone where only that one reaches the service.
func TestExternalService(t *testing.T) {
	l, err := net.Listen("tcp", "127.96.87.1:0")
	if err != nil {
		t.Skip("this system has one loopback address only")
	}
	l.Close()
	outside, ca := startOutside(t), catest.New(t, "corp root", nil, nil)
	a, b := startSite(t, "a", "127.96.87.0/24", ca), startSite(t, "b", "127.96.88.0/24", ca)
	for _, s := range []testSite{a, b} {
		s.create(kind.ExternalService, outside.service("far", outside.ca, "b"))
	}
	a.create(kind.ExternalService, outside.service("api", outside.ca))
	a.create(kind.ExternalService, outside.service("forged", ca))
	a.start("n1", func(*NodeConfig) {})
	a.create(kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "client",
			Annotations: map[string]string{meshv1alpha1.AnnotationMachineID: t.Name()}},
		Spec: meshv1alpha1.DataplaneSpec{NodeName: "n1", Addresses: []string{"127.0.0.1"}},
	})
	var last error
	defer func() {
		if t.Failed() {
			t.Log("last:", last)
		}
	}()
	reached := func(at string) func() bool { return func() bool { last = echoed(at); return last == nil } }

	at, status := a.external("api")
	testkit.Eventually(t, "the service is reached by the agent", reached(at))
	if outside.named.Load() == 0 {
		t.Error("the server was not asked for by its name")
	}
	if !meta.IsStatusConditionTrue(status.Conditions, meshv1alpha1.ExternalServiceTLSEnforced) {
		t.Errorf("conditions: %+v", status.Conditions)
	}
	forged, _ := a.external("forged")
	if err := echoed(forged); err == nil {
		t.Error("a certificate of another authority is accepted")
	}

	far, status := a.external("far")
	if c := meta.FindStatusCondition(status.Conditions, meshv1alpha1.ExternalServiceAddressed); c == nil || c.Reason != "NoIngress" {
		t.Errorf("without an ingress of zone b: %+v", status.Conditions)
	}
	if err := echoed(far); err == nil {
		t.Error("zone a reaches by itself what only zone b reaches")
	}
	ingress, stopIngress := b.startIngress("ingress-1")
	a.copyIngress("b", "ingress-1", ingress)
	testkit.Eventually(t, "the service is reached through zone b", reached(far))

	a.editMesh("an egress", func(spec *meshv1alpha1.MeshSpec) { spec.Routing = &meshv1alpha1.MeshRouting{ZoneEgress: new(true)} })
	testkit.Eventually(t, "there is no way out without an egress", func() bool { return echoed(at) != nil && echoed(far) != nil })
	a.start("egress-1", func(c *NodeConfig) {
		c.Gateway = &GatewayConfig{Egress: true, Address: netip.MustParseAddr("127.0.0.1")}
	})
	testkit.Eventually(t, "the service is reached through the egress", reached(at))
	testkit.Eventually(t, "the service is reached through egress and zone b", reached(far))
	testkit.Eventually(t, "the status says so", func() bool {
		_, status := a.external("api")
		c := meta.FindStatusCondition(status.Conditions, meshv1alpha1.ExternalServiceZoneEgressEnforced)
		return c != nil && c.Reason == "Enforced" && c.Status == metav1.ConditionTrue
	})
	stopIngress()
	if err := echoed(far); err == nil {
		t.Error("the service is reached without the ingress of zone b")
	}

	if err := a.cp.api.client.Delete(t.Context(), kind.ExternalService, resource.Key{Namespace: "default", Name: "api"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the address is gone with the external service", func() bool {
		return getOrNil[resource.Object](a.meshPlane, kind.Service, resource.Key{Namespace: "default", Name: "api"}) == nil
	})
}

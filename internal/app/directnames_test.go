package app

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestDirectNames: a control plane answers for machines without an agent, by the addresses of
// endpoints.
func TestDirectNames(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := ControlPlaneConfig{
		Store: "memory", DataDir: t.TempDir(), APIAddress: "127.0.0.1:0", DNSAddress: "127.0.0.1:0", MachineID: t.Name(),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	}
	cp, err := newStandalone(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan Serving, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(s Serving) { ready <- s }, cp.serving())))
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cp.close()
	}()
	serving := <-ready

	if _, err := cp.api.client.Create(ctx, kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.api.client.Create(ctx, kind.EndpointSlice, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}); err != nil {
		t.Fatal(err)
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, serving.DNS)
	}}
	eventually(t, "the address of the endpoint", func() bool {
		found, err := resolver.LookupHost(ctx, "web.default.svc.cluster.local.")
		return err == nil && len(found) == 1 && found[0] == "192.0.2.7"
	})
	_, records, err := resolver.LookupSRV(ctx, "http", "tcp", "web.default.svc.cluster.local.")
	if err != nil || len(records) != 1 || records[0].Port != 8080 {
		t.Errorf("SRV: %v, %v", records, err)
	}
	if _, err := resolver.LookupHost(ctx, "www.example.com."); err == nil {
		t.Error("a name of others was resolved")
	}

	for address, want := range map[string]string{"here:53": "want ADDRESS:PORT", serving.DNS: "choose another port"} {
		cfg.DNSAddress, cfg.DataDir = address, t.TempDir()
		other, err := newStandalone(ctx, cfg)
		if err == nil {
			other.close()
		}
		var told *problem.Error
		if !errors.As(err, &told) || !strings.Contains(told.Error()+told.Hint, want) {
			t.Errorf("--dns-address %s: %v", address, err)
		}
	}
}

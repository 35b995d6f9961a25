package app

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// served reports whether an agent serves a Service's port.
func served(a *agent, service string) bool {
	for _, s := range a.agent.AllStates() {
		if s.Name.Name == service {
			return true
		}
	}
	return false
}

// serviceWith creates a Service, with one endpoint.
func (p *meshPlane) serviceWith(name string) {
	p.t.Helper()
	_, err := p.client.Create(p.t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	if err == nil {
		_, err = p.client.Create(p.t.Context(), kind.EndpointSlice, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}},
		})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// startInCluster runs an agent until the test ends.
func startInCluster(t *testing.T, node NodeConfig) *agent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a, err := newAgent(ctx, node)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	components, err := a.components()
	if err != nil {
		cancel()
		a.close()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- run(ctx, unopposed{}, components) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.close()
	})
	return a
}

// TestInClusterAlone: an agent starts without a control plane, as it makes the virtual IPs work
// by which that may be reached.
func TestInClusterAlone(t *testing.T) {
	cluster := startMeshPlaneOf(t, "", "127.96.0.0/24")
	cluster.serviceWith("of-the-cluster")
	rest, err := ClusterREST(filepath.Join(cluster.cp.cfg.DataDir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	node := cluster.node
	node.Server, node.Cluster = "127.0.0.1:1", &ClusterConfig{REST: rest}
	a := startInCluster(t, node)
	eventually(t, "the cluster's Service", func() bool { return served(a, "of-the-cluster") })
	if status := (agentState{a}).Status(); !status.Fallback.Direct || status.View.Connected {
		t.Errorf("%+v", status.Fallback)
	}
}

// TestInCluster: an agent in a cluster serves by the view of its control plane. Without one it
// goes on with that, until something changes in the cluster. The kubelet keeps the Node.
func TestInCluster(t *testing.T) {
	cluster, plane := startMeshPlaneOf(t, "", "127.96.0.0/24"), startMeshPlaneOf(t, "", "127.96.1.0/24")
	plane.serviceWith("of-the-view")
	cluster.serviceWith("of-the-cluster")
	rest, err := ClusterREST(filepath.Join(cluster.cp.cfg.DataDir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	node := plane.node
	node.Cluster, node.DirectAfter = &ClusterConfig{REST: rest}, 100*time.Millisecond
	node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("127.96.0.0/16")}
	a := startInCluster(t, node)
	eventually(t, "the view's Service", func() bool { return served(a, "of-the-view") })
	status := agentState{a}.Status()
	if served(a, "of-the-cluster") || status.Fallback.Direct || !status.View.Connected ||
		status.Certificate == nil || status.Membership != nil || status.API != "https://"+node.Server {
		t.Errorf("with a control plane: %+v", status.Fallback)
	}

	// What changed long before the control plane was lost does not count.
	// The Service of the view is not one of the cluster, so it counts as deleted there.
	plane.stop()
	eventually(t, "the cluster's Service", func() bool { return served(a, "of-the-cluster") && !served(a, "of-the-view") })
	if status := (agentState{a}).Status(); !status.Fallback.Direct || status.Fallback.Alone.IsZero() || status.View.Connected {
		t.Errorf("without a control plane: %+v", status.Fallback)
	}
	cluster.serviceWith("new")
	eventually(t, "a new Service of the cluster", func() bool { return served(a, "new") })
}

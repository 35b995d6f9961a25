package app

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// programmed is the condition of that name of a policy.
func (p *plane) programmed(d *resource.Descriptor, name string) string {
	p.t.Helper()
	obj, err := p.cp.api.client.Get(p.t.Context(), d, resource.Key{Namespace: "default", Name: name})
	if err != nil {
		p.t.Fatal(err)
	}
	c := meta.FindStatusCondition(policystatus.StatusOf(obj).Conditions, meshv1alpha1.PolicyProgrammed)
	if c == nil {
		return ""
	}
	return fmt.Sprint(c.Status, " ", c.Message)
}

// testProgrammed: the instance that leads says what a proxy has taken whose stream is at the other
// instance, which has its port for proxies at address: what it takes, what it refuses, and that it has gone.
func testProgrammed(t *testing.T, leads *plane, address string) {
	cfg, err := clientcmd.BuildConfigFromFlags("", leads.cfg.DataDir+"/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	leads.create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "api"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "api"}, Ports: []corev1.ServicePort{{Name: "x", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
	d := workloadAt("acked", "10.1.0.4")
	d.Labels = map[string]string{"app": "acked"}
	d.Annotations = map[string]string{build.AnnotationBackends: "api"}
	leads.create(kind.Dataplane, d)
	target := meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Group: meshv1alpha1.GroupName, Kind: "Dataplane", Name: "acked"}}}
	own := map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	leads.create(kind.WorkloadPolicy, &meshv1alpha1.WorkloadPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limits", Labels: own},
		Spec:       meshv1alpha1.WorkloadPolicySpec{PolicyTarget: target, Limits: &meshv1alpha1.PolicyLimits{Connections: new(int32(10))}},
	})
	leads.create(kind.BackendPolicy, &meshv1alpha1.BackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "api", Labels: own},
		Spec: meshv1alpha1.BackendPolicySpec{
			PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Name: "api"}}},
			Timeout:      &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("1s"))},
		},
	})
	f := (&proxyPlane{t: t, rest: cfg, address: address}).follow("default/default/acked")
	until(t, "the policy that the proxy takes is programmed", func() bool {
		return leads.programmed(kind.WorkloadPolicy, "limits") == "True acknowledged by 1 of 1 workloads"
	})
	until(t, "the one that it refuses is not, and the proxy and the resource are named", func() bool {
		return strings.HasPrefix(leads.programmed(kind.BackendPolicy, "api"),
			"False acknowledged by 0 of 1 workloads; behind: default/acked: it refuses Cluster default/api:80: ")
	})
	f.stop()
	until(t, "a proxy that is not connected is behind", func() bool {
		return leads.programmed(kind.WorkloadPolicy, "limits") == "False acknowledged by 0 of 1 workloads; behind: default/acked: its proxy is not connected"
	})
}

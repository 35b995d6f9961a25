package topology

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestWhatIsWrittenIsValid: the API's own rules take conditions, hints and events.
func TestWhatIsWrittenIsValid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := &rig{t: t, client: resourcetest.New(kind.All()...), demand: &fakeDemand{rates: map[string]float64{}}}
		service := adaptive(AnnotationOverload, "no number")
		service.Spec.SessionAffinity, service.Spec.InternalTrafficPolicy = corev1.ServiceAffinityNone, new(
			corev1.ServiceInternalTrafficPolicyCluster)
		r.client.Seed(all(equalNodes("abc"), workloads("aaaabbbbccc"), one(service))...)
		r.start(nil)
		for _, typ := range []string{ConditionPlan, ConditionParameters} {
			if r.condition(typ) == "" {
				t.Errorf("condition %s is missing", typ)
			}
		}
		r.wantHints("planned", "a1:a a2:a a3:a a4:a b1:b b2:b b3:b b4:b c1:c c2:c c3:c")
		r.annotate(mode, "Auto", AnnotationOverload, "")
		if got := r.events(); len(got) != 2 || !strings.HasPrefix(got[0], "Warning TopologyParametersInvalid: ") || !strings.HasPrefix(got[1], disabled) {
			t.Errorf("events %q", got)
		}
	})
}

// TestNoZoneAnywhere: a machine of its own has none, and nothing is wrong with that.
func TestNoZoneAnywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(one(node("node-", "", zoneless), adaptive()), []resource.Object{workload("w", "", 1, false)})...)
		r.wantCondition("not ready", ConditionPlan, "False NoEndpoints: http IPv4: there is no ready endpoint")
		r.wantCondition("not ready", ConditionParameters, "")
		r.seed(workload("w", "", 1, true))
		if got := r.condition(ConditionPlan); !strings.HasPrefix(got, "True Planned: http IPv4: 1 endpoint in 1 zone") {
			t.Error(got)
		}
		r.wantPercents("ready", "", " 100.0")
	})
}

// TestConditionsOfOthersStay, and a foreign edit of ours is repaired.
func TestConditionsOfOthersStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		service := adaptive()
		service.Status.Conditions = []metav1.Condition{{Type: "example.com/Mine", Status: metav1.ConditionTrue, Reason: "Mine"}}
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(service))...)
		ours := r.condition(ConditionPlan)
		s := r.service()
		meta.FindStatusCondition(s.Status.Conditions, ConditionPlan).Message = "nonsense"
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		if _, err := r.client.UpdateStatus(t.Context(), kind.Service, s); err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.wantCondition("edited", ConditionPlan, ours)
		r.wantCondition("edited", "example.com/Mine", "True Mine: ")
		if len(r.service().Status.LoadBalancer.Ingress) != 1 {
			t.Error("the load balancer's address is lost")
		}
		r.annotate(mode, "")
		r.wantCondition("off", ConditionPlan, "")
		r.wantCondition("off", "example.com/Mine", "True Mine: ")
	})
}

// TestPlansArePerPort: ports that share slices are planned as one, others apart, and
// families too.
func TestPlansArePerPort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		service := adaptive()
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		named := service.Spec.Ports[0]
		named.Name, named.Port, named.TargetPort.Type, named.TargetPort.StrVal = "admin", 81, 1, "admin"
		service.Spec.Ports = append(service.Spec.Ports, named)
		objects := workloads("aabbcc")
		for i, o := range objects {
			w := o.(*meshv1alpha1.Dataplane)
			w.Spec.Addresses = append(w.Spec.Addresses, "fd00::"+string(rune('1'+i)))
			if i%2 == 0 {
				w.Spec.Ports = append(w.Spec.Ports, meshv1alpha1.DataplanePort{Name: "admin", Port: int32(9000 + i)})
			}
		}
		r := newRig(t, nil, all(equalNodes("abc"), objects, one(service))...)
		if n := len(list[*discoveryv1.EndpointSlice](r, "EndpointSlice")); n != 8 {
			t.Fatalf("%d slices", n) // of both families: 3 admin ports, and without
		}
		e := r.c.entries[webKey]
		if len(e.units) != 2 {
			t.Errorf("units %v", sortedUnits(e))
		}
		for _, u := range e.units {
			if u.name.Ports != "admin,http" || u.group.Zones[0].Endpoints != 2 || u.group.Zones[2].Endpoints != 2 {
				t.Errorf("%+v", u)
			}
		}
		r.wantPercents("both groups of slices", "a", "a 100.0")
	})
}

func sortedUnits(e *entry) (out []string) {
	for _, u := range e.units {
		out = append(out, fmt.Sprint(u.name))
	}
	return out
}

package app

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/external"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// policyUses says what of this zone depends on a policy.
type policyUses struct {
	catalog *catalog.Catalog
	// mode is the default topology mode of the control plane.
	mode string
}

// of a policy: a sentence for each kind of user, and what becomes of it without the policy.
func (u policyUses) of(obj resource.Object) []string {
	s := u.catalog.Snapshot()
	modes := topology.ModesOf(s, u.mode)
	switch o := obj.(type) {
	case *meshv1alpha1.Mesh:
		return meshUses(s, o.Name)
	case *meshv1alpha1.ZoneCosts:
		instead := "the costs named " + topology.DefaultCosts + " would hold for them"
		if o.Name == topology.DefaultCosts {
			instead = "the built-in costs would hold for them"
		}
		var users usage
		for key, service := range s.Services.All() {
			users.add(key, modes.Costs(service) == o.Name)
		}
		return users.say("Services planned with it", instead)
	case *meshv1alpha1.TopologyHeuristic:
		var users usage
		for key, service := range s.Services.All() {
			users.add(key, modes.Heuristic(service) == o.Name)
		}
		return users.say("Services that have chosen it", "their hints and weights would stay as they are")
	case *meshv1alpha1.TrafficPermission, *meshv1alpha1.BackendPolicy, *meshv1alpha1.WorkloadPolicy, *meshv1alpha1.ProxyPatch:
		if n := policystatus.StatusOf(o).Targets; n > 0 {
			return []string{fmt.Sprintf("what it concerns: %d: other policies, or the defaults, would hold for them", n)}
		}
	case *meshv1alpha1.ExternalService:
		if len(o.Status.VirtualIPs) == 0 {
			return nil
		}
		return []string{fmt.Sprintf("the name %s.%s.svc and the virtual IPs %s would end", o.Name, o.Namespace, strings.Join(o.Status.VirtualIPs, ", "))}
	}
	return nil
}

func meshUses(s *catalog.Snapshot, mesh string) []string {
	namespace := func(name string) *corev1.Namespace {
		ns, _ := s.Namespaces.Get(catalog.Key{Name: name})
		return ns
	}
	var workloads, externals usage
	for key, d := range s.Dataplanes.All() {
		workloads.add(key, kind.DataplaneMesh(d, namespace(key.Namespace)) == mesh)
	}
	for key, e := range s.ExternalServices.All() {
		externals.add(key, external.MeshOf(e, namespace(key.Namespace)) == mesh)
	}
	return append(workloads.say("workloads of it", "they would have no identity any more"),
		externals.say("ExternalServices reached from it", "connections to them would be refused")...)
}

// usage counts the users of a policy.
type usage struct {
	n     int
	first string
}

func (u *usage) add(key resource.Key, uses bool) {
	if !uses {
		return
	}
	if u.n++; u.first == "" || key.String() < u.first {
		u.first = key.String()
	}
}

func (u *usage) say(what, instead string) []string {
	if u.n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d, first %s: %s", what, u.n, u.first, instead)}
}

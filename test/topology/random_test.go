package topology

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

func zoneName(k int) string { return "zone-" + string(rune('a'+k)) }

// randomNodes are mostly complete, as one that is not switches all off.
func randomNodes(r *rand.Rand, zones int) []*corev1.Node {
	var nodes []*corev1.Node
	cpus := []string{"1", "2", "4", "8", "500m", "3500m", "1950m", "100u", "1n", "0.3"}
	rare := 150
	if r.IntN(2) == 0 {
		cpus = []string{"4"} // a cluster of one kind of machine
	}
	for k := range zones + r.IntN(3*zones+1) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + strconv.Itoa(k), Labels: map[string]string{}}}
		z := k
		if z >= zones {
			z = r.IntN(zones)
		}
		n.Labels[corev1.LabelTopologyZone] = zoneName(z)
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus[r.IntN(len(cpus))])}
		ready := corev1.ConditionTrue
		switch r.IntN(rare) {
		case 0:
			delete(n.Labels, corev1.LabelTopologyZone)
		case 1:
			n.Labels[corev1.LabelTopologyZone] = ""
		case 2:
			n.Status.Allocatable = nil
		case 3, 4, 5, 6:
			ready = corev1.ConditionFalse
		case 7, 8:
			ready = corev1.ConditionUnknown
		case 9, 10:
			n.Labels["node-role.kubernetes.io/control-plane"] = ""
		case 11:
			n.Labels["node-role.kubernetes.io/master"] = "false"
		case 12: // not ready, and incomplete
			delete(n.Labels, corev1.LabelTopologyZone)
			ready = corev1.ConditionFalse
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse}}
		if r.IntN(rare) > 0 {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: ready})
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func randomEndpoint(r *rand.Rand, zones int) discovery.Endpoint {
	ready, node, zone := r.IntN(12) > 0, fmt.Sprint("node-", r.IntN(9)), zoneName(r.IntN(zones))
	e := discovery.Endpoint{Conditions: discovery.EndpointConditions{Ready: &ready}, Zone: &zone}
	if r.IntN(8) > 0 {
		e.NodeName = &node
	}
	switch r.IntN(80) {
	case 0:
		e.Zone = nil
	case 1:
		zone = zoneName(zones) // has no node
	case 2:
		e.Conditions.Ready = nil
	}
	return e
}

func randomHints(r *rand.Rand, zones int, own *string) *discovery.EndpointHints {
	zone := zoneName(r.IntN(zones + 1))
	switch r.IntN(40) {
	case 0:
		return nil
	case 1:
		return &discovery.EndpointHints{}
	case 2:
		return &discovery.EndpointHints{ForNodes: []discovery.ForNode{{Name: "node-1"}}}
	case 3:
		return &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: zone}, {Name: zoneName(0)}}}
	case 4, 5, 6:
		return &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: zone}}}
	}
	if own == nil {
		return nil
	}
	return &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: *own}}}
}

// randomSlices favour endpoints that are spread evenly: others are mostly refused.
func randomSlices(r *rand.Rand, zones int) situation {
	var s situation
	even := r.IntN(3) > 0
	count := 0
	for k := range 1 + r.IntN(4) {
		slice := newSlice(k)
		for range r.IntN(3 * zones) {
			e := randomEndpoint(r, zones)
			if even && e.Zone != nil && *e.Zone != zoneName(zones) {
				*e.Zone = zoneName(count % zones)
			}
			count++
			if r.IntN(3) > 0 {
				e.Hints = randomHints(r, zones, e.Zone)
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		s.slices = append(s.slices, slice)
		s.states = append(s.states, []auto.State{auto.Create, auto.Update, auto.Unchanged, auto.Unchanged}[r.IntN(4)])
	}
	return s
}

// evolve is the next moment: some endpoints change, some slices are rewritten.
func (s situation) evolve(r *rand.Rand, zones int) situation {
	next := situation{}
	for _, slice := range s.slices {
		state := auto.Unchanged
		if r.IntN(3) == 0 && len(slice.Endpoints) > 0 {
			state = auto.Update
			k := r.IntN(len(slice.Endpoints))
			slice.Endpoints[k] = randomEndpoint(r, zones)
		}
		next.slices, next.states = append(next.slices, slice), append(next.states, state)
	}
	if r.IntN(4) == 0 {
		slice := newSlice(len(s.slices))
		for range 1 + r.IntN(zones) {
			slice.Endpoints = append(slice.Endpoints, randomEndpoint(r, zones))
		}
		next.slices, next.states = append(next.slices, slice), append(next.states, auto.Create)
	}
	return next
}

package multicluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
)

// Reasons of the condition Conflict, as the Multi-Cluster Services API has them.
const (
	ReasonNoConflicts             = "NoConflicts"
	ReasonTypeConflict            = "TypeConflict"
	ReasonPortConflict            = "PortConflict"
	ReasonSessionAffinityConflict = "SessionAffinityConflict"
	ReasonLabelsConflict          = "LabelsConflict"
	ReasonAnnotationsConflict     = "AnnotationsConflict"

	ReasonInternalTrafficPolicyConflict = "InternalTrafficPolicyConflict"
	ReasonTrafficDistributionConflict   = "TrafficDistributionConflict"
)

// Conflict is one thing that zones disagree about.
type Conflict struct{ Reason, Message string }

// Merged is what zones export under one name together.
type Merged struct {
	Spec                mcs.ServiceImportSpec // without IPs
	Labels, Annotations map[string]string
	// Zones that export it, sorted.
	Zones []string
	// Conflicts between the oldest offer and the others. The oldest one decides.
	Conflicts []Conflict
}

// Merge merges offers, of which the oldest is the first. There must be one at least.
//
// The ports are the union of all offers'. All else is that of the oldest offer.
func Merge(offers []Offer) Merged {
	first := offers[0]
	m := Merged{
		Spec: mcs.ServiceImportSpec{
			Type: first.Type, Ports: slices.Clone(first.Ports),
			SessionAffinity: first.SessionAffinity, SessionAffinityConfig: first.SessionAffinityConfig.DeepCopy(),
			IPFamilies: first.IPFamilies, InternalTrafficPolicy: first.InternalTrafficPolicy, TrafficDistribution: first.TrafficDistribution,
		},
		Labels: first.Labels, Annotations: first.Annotations, Zones: []string{first.Zone},
	}
	disagree := func(reason, what string, o Offer) {
		m.Conflicts = append(m.Conflicts, Conflict{reason,
			fmt.Sprintf("zone %s exports another %s than zone %s, whose export is the oldest and decides", o.Zone, what, first.Zone)})
	}
	for _, o := range offers[1:] {
		m.Zones = append(m.Zones, o.Zone)
		if o.Type != first.Type {
			disagree(ReasonTypeConflict, "type", o)
		}
		m.addPorts(o, first, disagree)
		if o.SessionAffinity != first.SessionAffinity ||
			!equality.Semantic.DeepEqual(o.SessionAffinityConfig, first.SessionAffinityConfig) {
			disagree(ReasonSessionAffinityConflict, "session affinity", o)
		}
		if !sameOrUnset(o.InternalTrafficPolicy, first.InternalTrafficPolicy) {
			disagree(ReasonInternalTrafficPolicyConflict, "internal traffic policy", o)
		}
		if !sameOrUnset(o.TrafficDistribution, first.TrafficDistribution) {
			disagree(ReasonTrafficDistributionConflict, "traffic distribution", o)
		}
		if !maps.Equal(o.Labels, first.Labels) {
			disagree(ReasonLabelsConflict, "set of labels", o)
		}
		if !maps.Equal(o.Annotations, first.Annotations) {
			disagree(ReasonAnnotationsConflict, "set of annotations", o)
		}
	}
	slices.Sort(m.Zones)
	m.Zones = slices.Compact(m.Zones)
	return m
}

// addPorts adds the ports of an offer to the union. Ports that only one of both has are a
// conflict too: a client finds them in some zones only (KEP-1645, "Service Port").
func (m *Merged) addPorts(o, first Offer, disagree func(reason, what string, o Offer)) {
	before := len(m.Conflicts)
	for _, p := range o.Ports {
		if !m.addPort(p) {
			disagree(ReasonPortConflict, "port "+portName(p), o)
		}
	}
	if len(m.Conflicts) == before && !samePorts(o.Ports, first.Ports) {
		disagree(ReasonPortConflict, "set of ports", o)
	}
}

// samePorts: both have the same names, numbers and protocols, in any order.
func samePorts(a, b []mcs.ServicePort) bool {
	names := func(all []mcs.ServicePort) []string {
		out := make([]string, 0, len(all))
		for _, p := range all {
			out = append(out, portName(p))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(names(a), names(b))
}

// sameOrUnset: a zone of an earlier version does not say what it has.
func sameOrUnset[T comparable](a, b *T) bool { return a == nil || b == nil || *a == *b }

// addPort adds a port to the union. It returns false if one of the same name is another
// port, or the same port has another name or application protocol.
func (m *Merged) addPort(p mcs.ServicePort) bool {
	for _, have := range m.Spec.Ports {
		sameName := have.Name == p.Name
		samePort := have.Port == p.Port && protocolOf(have.Protocol) == protocolOf(p.Protocol)
		switch {
		case sameName && samePort:
			return equality.Semantic.DeepEqual(have.AppProtocol, p.AppProtocol)
		case sameName || samePort:
			return false
		}
	}
	m.Spec.Ports = append(m.Spec.Ports, p)
	return true
}

func portName(p mcs.ServicePort) string {
	text := fmt.Sprintf("%d/%s", p.Port, protocolOf(p.Protocol))
	if p.Name != "" {
		text = p.Name + " (" + text + ")"
	}
	return text
}

// portsOf a Service, as they are exported.
func portsOf(s *corev1.Service) []mcs.ServicePort {
	out := make([]mcs.ServicePort, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		out = append(out, mcs.ServicePort{Name: p.Name, Protocol: protocolOf(p.Protocol), AppProtocol: p.AppProtocol, Port: p.Port})
	}
	return out
}

// describe joins conflicts as the reason and message of a condition: several reasons are
// joined with commas.
func describe(conflicts []Conflict) (reason, message string) {
	var reasons, messages []string
	for _, c := range conflicts {
		if !slices.Contains(reasons, c.Reason) {
			reasons = append(reasons, c.Reason)
		}
		messages = append(messages, c.Message)
	}
	return strings.Join(reasons, ","), strings.Join(messages, "; ")
}

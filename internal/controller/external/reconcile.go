// Package external gives ExternalServices a name and virtual IPs, and says in their status
// what holds of them.
//
// Reconcile derives, from an ExternalService, a Service of the same name: it has no
// endpoints, as agents reach what is outside every mesh through their own tunnel.
// Controller is its driver. The package connects to nothing.
package external

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Input is what there is of one name. Reconcile changes none of it.
type Input struct {
	// Site is the name of this zone.
	Site string
	// External; nil: there is none.
	External *meshv1alpha1.ExternalService
	// Namespace of it; nil: there is none.
	Namespace *corev1.Namespace
	// Service of the same name; nil: there is none.
	Service *corev1.Service
	// Mesh that it is reached from; nil: there is none.
	Mesh *meshv1alpha1.Mesh
	// Rivals have hosts of it in its place: the names of ExternalServices by host.
	Rivals map[string]string
	// Secrets is why the certificates and keys of its TLS cannot be used; nil: they can, or
	// are not in Secrets.
	Secrets error
	// Egresses of this site, and sites that have an ingress.
	Egresses  []string
	Ingresses map[string]bool
	Now       metav1.Time
}

// Plan is what there should be. Objects that are as they should be are those of the input.
type Plan struct {
	// Service to have; nil: none of ours.
	Service *corev1.Service
	// Status of the ExternalService but for what Observed adds.
	Status meshv1alpha1.ExternalServiceStatus
}

// MeshOf an ExternalService: the one that it names, else that of its namespace.
func MeshOf(e *meshv1alpha1.ExternalService, namespace *corev1.Namespace) string {
	if e.Spec.Mesh != "" || namespace == nil {
		return cmp.Or(e.Spec.Mesh, meshv1alpha1.DefaultMesh)
	}
	return kind.MeshOf(namespace)
}

// Owned reports whether a Service has the virtual IPs of an ExternalService.
func Owned(s *corev1.Service) bool {
	return s != nil && s.Labels[meshv1alpha1.LabelExternalService] == s.Name
}

// Reconcile derives the Service of an ExternalService, and its status.
func Reconcile(in Input) Plan {
	e := in.External
	if e == nil || !e.DeletionTimestamp.IsZero() || in.Namespace == nil || !in.Namespace.DeletionTimestamp.IsZero() {
		return Plan{}
	}
	p := Plan{Status: *e.Status.DeepCopy()}
	p.Status.ObservedGeneration = e.Generation
	taken := in.Service != nil && !Owned(in.Service)
	if !taken {
		p.Service = in.service()
	}
	p.Status.VirtualIPs = virtualIPs(p.Service)
	for _, c := range []metav1.Condition{in.addressed(taken, p.Status.VirtualIPs), in.hosts(p.Status.VirtualIPs), in.tls(), in.zoneEgress()} {
		c.ObservedGeneration, c.LastTransitionTime = e.Generation, in.Now
		meta.SetStatusCondition(&p.Status.Conditions, c)
	}
	return p
}

func virtualIPs(s *corev1.Service) []string {
	if s == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Spec.ClusterIPs), func(ip string) bool { return ip == "" || ip == corev1.ClusterIPNone })
}

func (in Input) service() *corev1.Service {
	e := in.External
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
	if in.Service != nil {
		s = in.Service.DeepCopy()
	} else {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	}
	s.Labels = map[string]string{
		meshv1alpha1.LabelExternalService: e.Name, meshv1alpha1.LabelMesh: MeshOf(e, in.Namespace),
	}
	s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(e, kind.ExternalService.GVK)}
	s.Spec.Type, s.Spec.Selector = corev1.ServiceTypeClusterIP, nil
	s.Spec.Ports = make([]corev1.ServicePort, 0, len(e.Spec.Ports))
	for _, p := range e.Spec.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Port: p.Port, TargetPort: intstr.FromInt32(p.Port), AppProtocol: p.AppProtocol,
			Protocol: corev1.Protocol(cmp.Or(p.Protocol, meshv1alpha1.ProtocolTCP)),
		})
	}
	if in.Service != nil && equality.Semantic.DeepEqual(s, in.Service) {
		return in.Service
	}
	return s
}

const (
	enforced    = "Enforced"
	notEnforced = "NotEnforced"
	notAsked    = "NotAskedFor"
)

func condition(typ string, status bool, reason, message string) metav1.Condition {
	c := metav1.Condition{Type: typ, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func (in Input) addressed(taken bool, ips []string) metav1.Condition {
	const typ = meshv1alpha1.ExternalServiceAddressed
	e := in.External
	var ways []string
	for _, zone := range e.Spec.Zones {
		if in.Ingresses[zone] {
			ways = append(ways, zone)
		}
	}
	var udp []string
	for _, p := range e.Spec.Ports {
		if p.Protocol == meshv1alpha1.ProtocolUDP {
			udp = append(udp, fmt.Sprint(p.Port))
		}
	}
	switch {
	case taken:
		return condition(typ, false, "NameTaken", fmt.Sprintf("there is a Service %s/%s, which has the name: rename one of them", e.Namespace, e.Name))
	case len(ips) == 0:
		return condition(typ, false, "NoAddress", "the control plane has not given it virtual IPs yet")
	case !sites.ReachedFrom(e, in.Site) && len(ways) == 0:
		return condition(typ, false, "NoIngress", fmt.Sprintf("zone %s is not among spec.zones, and none of those has an ingress", in.Site))
	case len(udp) > 0:
		return condition(typ, false, "UDP", "UDP ports are not carried, connections to them are refused: "+strings.Join(udp, ", "))
	case !sites.ReachedFrom(e, in.Site):
		return condition(typ, true, "ByOtherZones", "connections go through the ingresses of zones "+strings.Join(ways, ", "))
	}
	return condition(typ, true, "Reached", "this zone connects to it by itself")
}

func (in Input) tls() metav1.Condition {
	const typ = meshv1alpha1.ExternalServiceTLSEnforced
	switch t := in.External.Spec.TLS; {
	case t == nil:
		return condition(typ, true, notAsked, "spec.tls is not set: bytes pass as they are")
	case in.Secrets != nil:
		return condition(typ, false, notEnforced, "connections are refused: "+in.Secrets.Error())
	case sites.NeedsSecrets(t):
		return condition(typ, true, enforced, "whoever connects begins TLS, with what is in the Secrets, and refuses what does not verify")
	}
	return condition(typ, true, enforced, "whoever connects begins TLS, and refuses what does not verify")
}

func (in Input) zoneEgress() metav1.Condition {
	const typ = meshv1alpha1.ExternalServiceZoneEgressEnforced
	m := in.Mesh
	switch {
	case m == nil || m.Spec.Routing == nil || m.Spec.Routing.ZoneEgress == nil || !*m.Spec.Routing.ZoneEgress:
		return condition(typ, true, notAsked, "the mesh does not set spec.routing.zoneEgress")
	case len(in.Egresses) == 0:
		return condition(typ, true, "NoEgress", "this zone has no egress: connections to the virtual IPs are reset")
	case m.Spec.MTLS == nil || m.Spec.MTLS.EnabledBackend == "":
		return condition(typ, true, "NoCertificates", "the egress asks for certificates, and the mesh has no spec.mtls: connections are reset")
	}
	return condition(typ, true, enforced, "connections to the virtual IPs go through "+strings.Join(in.Egresses, ", "))
}

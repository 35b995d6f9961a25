package multicluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// ImportInput is what there is of one name. ReconcileImport changes none of it.
type ImportInput struct {
	Key  resource.Key
	Site string
	// Namespace; nil: there is none, and so nothing is imported.
	Namespace *corev1.Namespace
	// Exports of the name, of all zones.
	Exports []*mcs.ServiceExport
	// Local Service of the name; nil: there is none.
	Local *corev1.Service
	// Import and Derived Service as they are; nil: there is none.
	Import  *mcs.ServiceImport
	Derived *corev1.Service
}

// ImportPlan is what there should be. Nil objects should not be there. Objects that are as
// they should be are those of the input.
type ImportPlan struct {
	// Derived is written first, as it is given the virtual IPs.
	Derived *corev1.Service
	// Import lacks the virtual IPs and families: see WithIPs.
	Import *mcs.ServiceImport
}

// ReconcileImport derives import and Service of a name from the exports of all zones.
func ReconcileImport(in ImportInput) ImportPlan {
	if in.Namespace == nil || !in.Namespace.DeletionTimestamp.IsZero() {
		return ImportPlan{}
	}
	offers := OffersOf(in.Site, meshOf(in.Namespace), in.Exports)
	if len(offers) == 0 {
		return ImportPlan{}
	}
	m := Merge(offers)
	exported := slices.ContainsFunc(offers, func(o Offer) bool { return o.Zone == in.Site })
	if _, ok := servicetag.HostOf(in.Local); ok {
		exported = true // one service, whichever zones export it
	}
	return ImportPlan{Derived: in.derived(m, exported, tagOf(in.Key, offers), registeredAs(offers)), Import: in.imported(m)}
}

// tagOf the service of a name, as zones export it; empty: it is no service of a tag. A tag that
// belongs to another name is no tag: a zone decides about its own names alone.
func tagOf(key resource.Key, offers []Offer) string {
	for _, o := range offers {
		if o.ServiceTag != "" && meshname.Valid(o.ServiceTag) && servicetag.Namespace(o.Mesh) == key.Namespace &&
			servicetag.ServiceName(o.ServiceTag) == key.Name {
			return o.ServiceTag
		}
	}
	return ""
}

// registeredAs is the name that clients of registries know a name by, as the oldest offer has it; empty:
// the name itself.
func registeredAs(offers []Offer) string {
	if r := offers[0].Registry; r != nil {
		return r.Service
	}
	return ""
}

// DerivedName is the name of the Service that has the virtual IP of an import.
func DerivedName(key resource.Key) string { return mcs.DerivedServiceName(key.Namespace, key.Name) }

// IsDerived reports whether a Service has the virtual IP of an import.
func IsDerived(s *corev1.Service) bool {
	return owned(s.Labels) && s.Labels[mcs.LabelServiceName] != ""
}

// derived is the Service that has the virtual IP. exported: this zone exports the name, so
// that the Service selects the workloads of this zone. tag is the service tag, registered the name for
// clients of registries; empty: none.
func (in ImportInput) derived(m Merged, exported bool, tag, registered string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: in.Key.Namespace, Name: DerivedName(in.Key)}}
	if in.Derived != nil {
		s = in.Derived.DeepCopy()
	}
	s.Labels = labelled(m.Labels, in.Key.Name)
	if delete(s.Labels, meshv1alpha1.LabelService); tag != "" {
		s.Labels[meshv1alpha1.LabelService] = tag
	}
	s.Annotations = map[string]string{}
	if registered != "" {
		s.Annotations[registry.AnnotationService] = registered
	}
	spec := &s.Spec
	local := in.Local
	if !exported {
		local = nil
	}
	spec.Type, spec.Selector = corev1.ServiceTypeClusterIP, nil
	if m.Spec.Type == mcs.Headless {
		spec.ClusterIP = corev1.ClusterIPNone
	}
	spec.SessionAffinity = cmp.Or(m.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	spec.SessionAffinityConfig = m.Spec.SessionAffinityConfig.DeepCopy()
	spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	if p := m.Spec.InternalTrafficPolicy; p != nil {
		spec.InternalTrafficPolicy = new(*p)
	}
	spec.TrafficDistribution, spec.PublishNotReadyAddresses = m.Spec.TrafficDistribution, false
	if local != nil {
		// The slices that the selector leads to have the labels of this Service. Those of
		// a headless one are copied, as hostnames are given below the local Service alone.
		if m.Spec.Type == mcs.ClusterSetIP {
			spec.Selector = maps.Clone(local.Spec.Selector)
			s.Labels[mcs.LabelSourceCluster] = in.Site
		}
		spec.TrafficDistribution = local.Spec.TrafficDistribution
		spec.PublishNotReadyAddresses = local.Spec.PublishNotReadyAddresses
		if mode, ok := local.Annotations[corev1.AnnotationTopologyMode]; ok {
			s.Annotations[corev1.AnnotationTopologyMode] = mode
		}
	}
	if in.Derived == nil {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	}
	spec.Ports = servicePorts(m.Spec.Ports, local)
	if in.Derived != nil && equality.Semantic.DeepEqual(s, in.Derived) {
		return in.Derived
	}
	return s
}

// labelled are the labels of an object of an import.
func labelled(exported map[string]string, name string) map[string]string {
	labels := maps.Clone(exported)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[mcs.LabelServiceName], labels[LabelManagedBy] = name, managedBy
	return labels
}

// notOffered is the target port of a port that the local Service does not have: it is no
// number, and no workload has a port of this name, so that none of its endpoints serve it.
const notOffered = "not-offered"

// servicePorts are the ports of the derived Service. Target ports are those of the local
// Service: those of other zones mean something in their zones alone.
func servicePorts(ports []mcs.ServicePort, local *corev1.Service) []corev1.ServicePort {
	out := make([]corev1.ServicePort, 0, len(ports))
	for _, p := range ports {
		port := corev1.ServicePort{
			Name: p.Name, Protocol: protocolOf(p.Protocol), AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: intstr.FromInt32(p.Port),
		}
		if port.Name == "" && len(ports) > 1 {
			port.Name = fmt.Sprintf("port-%d-%s", p.Port, strings.ToLower(string(port.Protocol)))
		}
		if local != nil && len(local.Spec.Selector) > 0 {
			port.TargetPort = intstr.FromString(notOffered)
		}
		if local != nil {
			for _, l := range local.Spec.Ports {
				if l.Port == p.Port && protocolOf(l.Protocol) == port.Protocol {
					port.TargetPort = l.TargetPort
				}
			}
		}
		out = append(out, port)
	}
	return out
}

// imported is the import without its virtual IPs, and with its status.
func (in ImportInput) imported(m Merged) *mcs.ServiceImport {
	i := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: in.Key.Namespace, Name: in.Key.Name}}
	if in.Import != nil {
		i = in.Import.DeepCopy()
	}
	i.Labels, i.Annotations = labelled(m.Labels, in.Key.Name), maps.Clone(m.Annotations)
	ips := i.Spec.IPs
	i.Spec = m.Spec
	i.Spec.IPs = ips
	i.Status.Clusters = nil
	for _, zone := range m.Zones {
		i.Status.Clusters = append(i.Status.Clusters, mcs.ClusterStatus{Cluster: zone})
	}
	return i
}

// WithIPs returns an import with the virtual IPs of its derived Service, and its families.
func WithIPs(i *mcs.ServiceImport, derived *corev1.Service) *mcs.ServiceImport {
	i.Spec.IPs = nil
	if i.Spec.Type == mcs.ClusterSetIP || len(i.Spec.IPFamilies) == 0 { // an earlier version does not say
		i.Spec.IPFamilies = slices.Clone(derived.Spec.IPFamilies)
	}
	if i.Spec.Type == mcs.ClusterSetIP {
		i.Spec.IPs = slices.DeleteFunc(slices.Clone(derived.Spec.ClusterIPs), func(ip string) bool {
			return ip == "" || ip == corev1.ClusterIPNone
		})
	}
	return i
}

package build

import (
	"iter"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

// appProtocolOf a port of a workload: its own, else that of the Services whose ports lead to it.
// Where they disagree it is none, as the port has to serve all of them.
func (b *Builder) appProtocolOf(key catalog.Key, d *meshv1alpha1.Dataplane, port *meshv1alpha1.DataplanePort) string {
	return AppProtocol(port, b.snapshot.ServicesSelecting(key.Namespace, d.Labels))
}

// AppProtocol is the protocol of a port of a workload that these Services select, as its proxy knows it.
func AppProtocol(port *meshv1alpha1.DataplanePort, services iter.Seq2[catalog.Key, *corev1.Service]) string {
	if port.AppProtocol != nil {
		return *port.AppProtocol
	}
	said, app := false, ""
	for _, service := range services {
		for i := range service.Spec.Ports {
			to := &service.Spec.Ports[i]
			if !leadsTo(to, port) {
				continue
			}
			own := ""
			if to.AppProtocol != nil {
				own = *to.AppProtocol
			}
			if said && !strings.EqualFold(app, own) {
				return ""
			}
			said, app = true, own
		}
	}
	return app
}

// leadsTo a port of a workload, by its number or its name.
func leadsTo(service *corev1.ServicePort, port *meshv1alpha1.DataplanePort) bool {
	if service.Protocol != "" && service.Protocol != corev1.ProtocolTCP {
		return false
	}
	switch target := service.TargetPort; {
	case target.Type == intstr.String:
		return target.StrVal == port.Name
	case target.IntVal == 0:
		return service.Port == port.Port
	default:
		return target.IntVal == port.Port
	}
}

// respoken are the proxies whose ports may speak another protocol, or have clients of other meshes,
// after a change of Services.
func (b *Builder) respoken(d *catalog.Delta) map[*Proxy]struct{} {
	out := map[*Proxy]struct{}{}
	if len(b.proxies) == 0 {
		return out
	}
	for _, c := range d.Services {
		if c.Old != nil && c.New != nil && reflect.DeepEqual(c.Old.Spec.Selector, c.New.Spec.Selector) &&
			slices.EqualFunc(c.Old.Spec.Ports, c.New.Spec.Ports, samePort) &&
			c.Old.Annotations[meshv1alpha1.AnnotationToMeshes] == c.New.Annotations[meshv1alpha1.AnnotationToMeshes] {
			continue
		}
		for _, service := range []*corev1.Service{c.Old, c.New} {
			if service == nil {
				continue
			}
			for key := range b.snapshot.DataplanesMatching(service.Namespace, service.Spec.Selector) {
				if p := b.proxies[key]; p != nil {
					out[p] = struct{}{}
				}
			}
		}
	}
	return out
}

func samePort(a, b corev1.ServicePort) bool { return reflect.DeepEqual(a, b) }

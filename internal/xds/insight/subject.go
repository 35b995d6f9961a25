package insight

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Role is what a proxy is to the mesh. The zero value is the proxy of a workload.
type Role uint8

// The roles.
const (
	OfWorkload Role = iota
	OfIngress
	OfEgress
)

func (r Role) String() string { return [...]string{"workload", "ingress", "egress"}[r] }

// roles are the kinds of objects and of insights of each role.
var roles = [...]struct {
	object, insight *resource.Descriptor
	subscriptions   int
}{
	OfWorkload: {kind.Dataplane, kind.DataplaneInsight, maxSubscriptions},
	OfIngress:  {kind.ZoneIngress, kind.ZoneIngressInsight, maxGatewaySubscriptions},
	OfEgress:   {kind.ZoneEgress, kind.ZoneEgressInsight, maxGatewaySubscriptions},
}

// Subject is whose proxy an insight is of: a Dataplane, or a ZoneIngress or ZoneEgress, which has no
// namespace.
type Subject struct {
	Role Role
	resource.Key
}

// Workload is the subject of a Dataplane.
func Workload(key resource.Key) Subject { return Subject{Key: key} }

// Gateway is the subject of the ZoneIngress or ZoneEgress of a name.
func Gateway(role Role, name string) Subject { return Subject{role, resource.Key{Name: name}} }

func (s Subject) String() string { return roles[s.Role].object.GVK.Kind + " " + s.Key.String() }

// newInsight of a subject, without any observation.
func (s Subject) newInsight() resource.Object {
	of := metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}
	switch s.Role {
	case OfIngress:
		return &meshv1alpha1.ZoneIngressInsight{ObjectMeta: of}
	case OfEgress:
		return &meshv1alpha1.ZoneEgressInsight{ObjectMeta: of}
	}
	return &meshv1alpha1.DataplaneInsight{ObjectMeta: of}
}

// statusOf an insight of any of the kinds.
func statusOf(insight resource.Object) *meshv1alpha1.ClientInsightStatus {
	switch i := insight.(type) {
	case *meshv1alpha1.ZoneIngressInsight:
		return &i.Status
	case *meshv1alpha1.ZoneEgressInsight:
		return &i.Status
	}
	return &insight.(*meshv1alpha1.DataplaneInsight).Status
}

package diag

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// External adds what is known of the ExternalService that a Service has the virtual IPs of.
// remote is nil where there is no way to it.
func (s *Service) External(e *meshv1alpha1.ExternalService, remote *sites.Remote) {
	if remote != nil {
		s.Hosts = remote.Hosts
	}
	for _, c := range e.Status.Conditions {
		if c.Status == metav1.ConditionFalse {
			s.NotEnforced = append(s.NotEnforced, c.Type+": "+c.Message)
		}
	}
}

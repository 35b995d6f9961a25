package authorities

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// wanted is what a Mesh asks for.
type wanted struct {
	mesh   *v1alpha1.Mesh
	domain mesh.Domain
	// enabled backend; empty: the mesh has no mTLS.
	enabled string
	// problem is why the mesh gets no certificates; nil: it may.
	problem error
}

// wantedOf reads Meshes. Of two with one trust domain, the older one has it.
func wantedOf(meshes []*v1alpha1.Mesh) map[string]*wanted {
	meshes = slices.SortedFunc(slices.Values(meshes), func(a, b *v1alpha1.Mesh) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	out, holders := map[string]*wanted{}, map[mesh.Domain]string{}
	for _, m := range meshes {
		w := &wanted{mesh: m}
		configured := ""
		if t := m.Spec.MTLS; t != nil {
			configured, w.enabled = t.TrustDomain, t.EnabledBackend
		}
		w.domain, w.problem = mesh.DomainOf(m.Name, configured)
		if holder, taken := holders[w.domain]; w.problem == nil && taken {
			w.problem = fmt.Errorf("mesh %s has the trust domain %s: give this one another in spec.mtls.trustDomain", holder, w.domain)
		}
		if w.problem == nil {
			holders[w.domain] = m.Name
		}
		out[m.Name] = w
	}
	return out
}

// backend of a name; nil: there is none.
func (w *wanted) backend(name string) *v1alpha1.MeshCertificateBackend {
	if w.mesh.Spec.MTLS == nil || name == "" {
		return nil
	}
	for i := range w.mesh.Spec.MTLS.Backends {
		if b := &w.mesh.Spec.MTLS.Backends[i]; b.Name == name {
			return b
		}
	}
	return nil
}

// life of the certificates that a backend signs; 0: the default.
func (w *wanted) life(backend string) time.Duration {
	b := w.backend(backend)
	if b == nil || b.WorkloadCertificate == nil || b.WorkloadCertificate.ValiditySeconds == nil {
		return 0
	}
	return time.Duration(*b.WorkloadCertificate.ValiditySeconds) * time.Second
}

// typeOf a backend.
func typeOf(b *v1alpha1.MeshCertificateBackend) string {
	return cmp.Or(b.Type, v1alpha1.BackendBuiltin)
}

package authorities

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// maxNamed is how many workloads or peers a status names.
const maxNamed = 10

// writeStatus of a Mesh, if it has changed: as this instance serves it.
func (l *Leader) writeStatus(ctx context.Context, r *running, p progress) error {
	m, w, state := r.wanted.mesh, r.wanted, rotation.State{}
	if r.state != nil {
		state = *r.state
	}
	next := m.DeepCopy()
	conditions := l.isolated(w)
	next.Status.ObservedGeneration = m.Generation
	next.Status.MTLS = mtlsStatus(w, state, p)
	for _, typ := range []string{v1alpha1.MeshIsolationEnforced, v1alpha1.MeshPassthroughEnforced} {
		if !slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == typ }) {
			meta.RemoveStatusCondition(&next.Status.Conditions, typ)
		}
	}
	if m.Spec.MTLS != nil || state.Generation > 0 || meta.FindStatusCondition(m.Status.Conditions, v1alpha1.MeshCertificatesReady) != nil {
		conditions = append([]metav1.Condition{certificatesReady(w, state, p), l.enforced(w)}, conditions...)
	}
	if len(conditions) == 0 && len(m.Status.Conditions) == 0 {
		return nil // there never was anything to say
	}
	for _, c := range conditions {
		c.ObservedGeneration = m.Generation
		c.LastTransitionTime = metav1.NewTime(l.config.Now().UTC().Truncate(1e9))
		meta.SetStatusCondition(&next.Status.Conditions, c)
	}
	if equality.Semantic.DeepEqual(next.Status, m.Status) {
		return nil
	}
	_, err := l.config.Client.UpdateStatus(ctx, kind.Mesh, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the Mesh was written meanwhile, which is seen soon
	}
	return err
}

func mtlsStatus(w *wanted, state rotation.State, p progress) *v1alpha1.MeshMTLSStatus {
	if state.Generation == 0 || state.Phase == rotation.Stable && state.Issuer == rotation.None {
		return nil
	}
	out := &v1alpha1.MeshMTLSStatus{
		TrustDomain: w.domain.Name(), Phase: string(state.Phase), Generation: int64(state.Generation),
		WaitingFor: first(p.Waiting),
	}
	for _, t := range state.Trusted {
		if t.ID == rotation.None {
			continue
		}
		a := v1alpha1.MeshAuthorityStatus{Backend: t.Backend, ID: t.ID, Issuing: t.ID == state.Issuer}
		if certs, err := certpem.ParseCertificates(t.Roots); err == nil {
			for _, c := range certs {
				if a.NotAfter.IsZero() || c.NotAfter.Before(a.NotAfter.Time) {
					a.NotAfter = metav1.NewTime(c.NotAfter.Local())
				}
			}
		}
		out.Authorities = append(out.Authorities, a)
	}
	return out
}

func certificatesReady(w *wanted, state rotation.State, p progress) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.MeshCertificatesReady, Status: metav1.ConditionFalse}
	issuing := state.Generation > 0 && state.Issuer != rotation.None
	switch {
	case p.problem != nil:
		c.Reason, c.Message = "CannotSign", p.problem.Error()
		if issuing && p.unable == nil {
			c.Message += "; the authority from before issues"
		}
	case p.unable != nil:
		c.Reason, c.Message = "CannotSign", p.unable.Error()
	case p.Blocked != nil:
		c.Reason, c.Message = "CannotSign", p.Blocked.Error()
	case len(p.elsewhere) > 0:
		c.Reason, c.Message = "CannotSign", strings.Join(first(p.elsewhere), "; ")
	case len(p.Waiting) > 0:
		c.Reason = "Rotating"
		c.Message = fmt.Sprintf("phase %s waits for %d: %s", state.Phase, len(p.Waiting), strings.Join(first(p.Waiting), ", "))
	case p.Behind != nil:
		c.Reason, c.Message = "Rotating", fmt.Sprintf("phase %s waits for global: %v", state.Phase, p.Behind)
	case w.enabled == "" && !issuing:
		c.Reason, c.Message = "Disabled", "no backend is enabled in spec.mtls"
	case state.Generation == 0 || state.Phase != rotation.Stable:
		c.Reason, c.Message = "Rotating", "the change of authorities is under way"
	default:
		c.Reason, c.Message = "Issuing", "backend "+w.enabled+" signs the certificates of workloads"
	}
	if issuing && p.problem == nil && p.unable == nil && len(p.elsewhere) == 0 {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// enforced says who does not encrypt and authenticate all traffic of the mesh. In a site
// no workload is made to: kernels forward their traffic as it is.
func (l *Leader) enforced(w *wanted) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.MeshMTLSEnforced, Status: metav1.ConditionFalse}
	if w.enabled == "" {
		c.Reason, c.Message = "Disabled", "no backend is enabled in spec.mtls"
		return c
	}
	members := l.config.Members(w.mesh.Name)
	if len(members) == 0 {
		c.Reason, c.Message = "NoWorkloads", "the mesh has no workloads"
		return c
	}
	c.Reason = "NotInsideSites"
	c.Message = fmt.Sprintf("traffic inside a site is forwarded as workloads send it, and plain connections are accepted; not enforced by %d: %s",
		len(members), strings.Join(first(members), ", "))
	if len(members) > maxNamed {
		c.Message += " and others"
	}
	return c
}

// isolated says for whom the mesh is not kept apart from others, and from what it does not
// know. There is nothing to say of a mesh that is alone and has passthrough.
func (l *Leader) isolated(w *wanted) []metav1.Condition {
	if l.config.Unenforced == nil {
		return nil
	}
	un := l.config.Unenforced(w.mesh)
	var out []metav1.Condition
	if un.Apart {
		out = append(out, enforcement(v1alpha1.MeshIsolationEnforced, un.Isolation,
			"workloads of other meshes do not resolve its names, and are refused at its virtual IPs, and by agents, egresses and ingresses of other zones"))
	}
	if !kind.MeshPassthrough(w.mesh) {
		out = append(out, enforcement(v1alpha1.MeshPassthroughEnforced, un.Passthrough, "its workloads reach what the mesh knows, and nothing else"))
	}
	return out
}

// enforcement is the condition of what holds but for some, each with the reason.
func enforcement(typ string, unenforced []string, holds string) metav1.Condition {
	if len(unenforced) == 0 {
		return metav1.Condition{Type: typ, Status: metav1.ConditionTrue, Reason: "Enforced", Message: holds}
	}
	c := metav1.Condition{
		Type: typ, Status: metav1.ConditionFalse, Reason: "NotEnforced",
		Message: fmt.Sprintf("not enforced for %d: %s", len(unenforced), strings.Join(first(unenforced), "; ")),
	}
	if len(unenforced) > maxNamed {
		c.Message += "; and others"
	}
	return c
}

func first(names []string) []string { return names[:min(len(names), maxNamed)] }

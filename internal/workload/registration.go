package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// registration keeps the Dataplane in step with the process. Its methods may be
// called from several goroutines; writes happen one at a time.
type registration struct {
	cfg Config

	mu sync.Mutex
	// current is the Dataplane as the server last gave it; nil: not registered.
	current *v1alpha1.Dataplane
	// ready is what the status should say.
	ready condition
	// unproxied: an earlier run had a sidecar, and this one has none.
	unproxied bool
	// gone: the Dataplane was deleted by this run, and is left alone.
	gone bool
}

// condition is the Ready condition, as wanted.
type condition struct {
	ready           bool
	reason, message string
}

// asCondition is what the status of a Dataplane says then.
func (c condition) asCondition(now time.Time) metav1.Condition {
	status := metav1.ConditionFalse
	if c.ready {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{
		Type: v1alpha1.DataplaneReady, Status: status, Reason: c.reason, Message: c.message,
		LastTransitionTime: metav1.NewTime(now),
	}
}

func newRegistration(cfg Config) *registration {
	if cfg.Lease == 0 {
		cfg.Lease = LeaseDuration
	}
	return &registration{
		cfg:   cfg,
		ready: condition{reason: "Starting", message: "the command was just started"},
	}
}

// announce tries once to create the Dataplane, not ready yet, so that mistakes
// in it are returned before anything is started. Errors are those that trying again
// would not mend; that the node is drained ends by itself.
func (r *registration) announce(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.write(ctx)
	var foreign *foreignError
	switch {
	case err == nil:
		return nil
	case apierrors.HasStatusCause(err, v1alpha1.CauseNodeDrained):
		// The machine was rebooted while it is drained, or is about to be: the workload is
		// registered when that is over.
		r.cfg.Logger.Warn("not registered yet, the command is started all the same", "error", err)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsNotFound(err):
		return fmt.Errorf("register dataplane %s: %w", resource.KeyOf(r.cfg.Dataplane), err)
	case asForeign(err, &foreign):
		return err
	}
	r.cfg.Logger.Warn("not registered yet, the command is started all the same", "error", err)
	return nil
}

// keep follows the readiness and renews the lease until ctx ends. What could
// not be written is tried again, with growing pauses.
func (r *registration) keep(ctx context.Context, readiness <-chan condition) {
	ticker := r.cfg.Clock.NewTicker(r.cfg.Lease / renewals)
	defer ticker.Stop()
	pauses := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: r.cfg.Lease / renewals}}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-readiness:
			r.mu.Lock()
			changed := c.ready != r.ready.ready
			r.ready = c
			r.mu.Unlock()
			if changed {
				r.cfg.Logger.Info("readiness", "ready", c.ready, "reason", c.reason, "message", c.message)
			}
		case <-ticker.C():
		case <-retry:
		}
		r.mu.Lock()
		err := r.write(ctx)
		r.mu.Unlock()
		if err == nil {
			retry = nil
			pauses.Reset()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		pause := pauses.Next()
		retry = r.cfg.Clock.After(pause)
		r.cfg.Logger.Warn("catalogue not up to date", "error", err, "retry_in", pause.String())
	}
}

// drain says that no new connections are wanted any more: the Dataplane becomes
// terminating, and open connections may finish. It waits for the catalogue, but
// not long: the process is to hear of its signal.
func (r *registration) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	r.gone = true
	r.delete(drainCall, false)
}

// withdraw removes the Dataplane, if it is still this run's.
func (r *registration) withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	r.delete(apiTimeout, true)
}

func (r *registration) delete(timeout time.Duration, now bool) {
	if r.current == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	key := resource.KeyOf(r.current)
	err := r.cfg.Client.Delete(ctx, kind.Dataplane, key, resource.Preconditions{UID: r.current.UID, Now: now})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		r.cfg.Logger.Warn("the end could not be written to the catalogue; the dataplane is not ready once its lease has run out",
			"dataplane", key.String(), "error", err, "lease", r.cfg.Lease)
	}
}

// write makes the catalogue say what the registration says. It registers again
// if the Dataplane is missing: the workload is there.
func (r *registration) write(ctx context.Context) error {
	if r.gone {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if r.current == nil {
		if err := r.register(ctx); err != nil {
			return err
		}
	}
	next := r.current.DeepCopy()
	r.fillStatus(&next.Status)
	out, err := r.cfg.Client.UpdateStatus(ctx, kind.Dataplane, next)
	switch {
	case err == nil:
		r.current = out.(*v1alpha1.Dataplane)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Another client wrote or deleted it meanwhile: read it again, once.
		r.current = nil
		if err := r.register(ctx); err != nil {
			return err
		}
		next := r.current.DeepCopy()
		r.fillStatus(&next.Status)
		if out, err = r.cfg.Client.UpdateStatus(ctx, kind.Dataplane, next); err != nil {
			return err
		}
		r.current = out.(*v1alpha1.Dataplane)
		return nil
	}
	return err
}

// register creates the Dataplane, or takes over one of the same name whose
// holder is gone. Its spec and labels become this run's.
func (r *registration) register(ctx context.Context) error {
	want := r.cfg.Dataplane
	if r.cfg.Proxy != nil {
		want = want.DeepCopy()
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, v1alpha1.AnnotationSidecar, v1alpha1.SidecarOfRun)
	}
	out, err := r.cfg.Client.Create(ctx, kind.Dataplane, want)
	if err == nil {
		r.current = out.(*v1alpha1.Dataplane)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) && !refusedByNode(err) {
		return err
	}
	// A node that takes no new workloads keeps those that it has, such as the one that an
	// earlier run left when its machine lost power: it is taken over, and is not ready.
	refused := err
	got, err := r.cfg.Client.Get(ctx, kind.Dataplane, resource.KeyOf(want))
	if apierrors.IsNotFound(err) {
		return refused
	}
	if err != nil {
		return err
	}
	have := got.(*v1alpha1.Dataplane)
	if l := have.Status.Lease; l != nil && l.Holder != r.cfg.Holder {
		age := r.cfg.Clock.Since(l.RenewTime.Time)
		if age < time.Duration(l.DurationSeconds)*time.Second {
			return &foreignError{key: resource.KeyOf(want), holder: l.Holder, age: age}
		}
	}
	have = have.DeepCopy()
	have.Labels = want.Labels
	if path := want.Annotations[v1alpha1.AnnotationCgroup]; path != "" {
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, v1alpha1.AnnotationCgroup, path)
	} else {
		delete(have.Annotations, v1alpha1.AnnotationCgroup)
	}
	r.noteProxy(have)
	spec := want.Spec.DeepCopy()
	// What an operator set on the workload outlives a restart of its command.
	if spec.Enabled == nil {
		spec.Enabled = have.Spec.Enabled
	}
	if spec.Weight == nil {
		spec.Weight = have.Spec.Weight
	}
	have.Spec = *spec
	if out, err = r.cfg.Client.Update(ctx, kind.Dataplane, have); err != nil {
		return err
	}
	r.current = out.(*v1alpha1.Dataplane)
	return nil
}

// refusedByNode: the node takes no new workloads.
func refusedByNode(err error) bool {
	return apierrors.HasStatusCause(err, v1alpha1.CauseNodeDrained) || apierrors.HasStatusCause(err, v1alpha1.CauseNodeCordoned)
}

// noteProxy notes whether this run has a sidecar, and that one of an earlier run has ended with it.
func (r *registration) noteProxy(have *v1alpha1.Dataplane) {
	if r.cfg.Proxy != nil {
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, v1alpha1.AnnotationSidecar, v1alpha1.SidecarOfRun)
		return
	}
	if have.Annotations[v1alpha1.AnnotationSidecar] == v1alpha1.SidecarOfRun {
		delete(have.Annotations, v1alpha1.AnnotationSidecar)
		r.unproxied = true
	}
}

// proxyGone takes back what was said of the sidecar of an earlier run, of which the control plane may
// notice only later that it has ended. Programs that follow for their own calls are not of concern.
func (r *registration) proxyGone(s *v1alpha1.DataplaneStatus) {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.DataplaneProxyConnected)
	if !r.unproxied || c == nil || c.Reason == v1alpha1.ReasonProgram {
		return
	}
	for _, typ := range []string{
		v1alpha1.DataplaneProxyConnected, v1alpha1.DataplaneConfigAccepted, v1alpha1.DataplaneProxyReady, v1alpha1.DataplaneCertificateValid,
	} {
		meta.RemoveStatusCondition(&s.Conditions, typ)
	}
}

func (r *registration) fillStatus(s *v1alpha1.DataplaneStatus) {
	r.proxyGone(s)
	meta.SetStatusCondition(&s.Conditions, r.ready.asCondition(r.cfg.Clock.Now()))
	s.Lease = &v1alpha1.DataplaneLease{
		Holder: r.cfg.Holder, RenewTime: metav1.NewMicroTime(r.cfg.Clock.Now()), DurationSeconds: int32(r.cfg.Lease / time.Second),
	}
}

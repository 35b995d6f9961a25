package apiserver

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// reaper ends deletions whose grace period is over. In Kubernetes the kubelet
// confirms that a workload has ended; here the grace period decides, unless the
// agent of the workload deletes the object earlier.
type reaper struct {
	client *Client
	kind   *resource.Descriptor
	fail   func(key resource.Key, err error)

	mu     sync.Mutex
	timers map[types.UID]*time.Timer
	ended  bool
}

// reap follows a kind until ctx ends.
func (s *Server) reap(ctx context.Context, kind *resource.Descriptor) {
	r := &reaper{
		client: s.Client("system:apiserver"),
		kind:   kind,
		timers: map[types.UID]*time.Timer{},
		fail: func(key resource.Key, err error) {
			s.cfg.Logger.Warn("could not end a deletion, will try again", "kind", kind.GVK.Kind, "object", key.String(), "error", err)
		},
	}
	defer r.end()
	s.reflect(ctx, kind.GVK, func() {}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Replace, reflector.Set:
			for _, obj := range e.Objects {
				r.see(ctx, obj)
			}
		case reflector.Delete:
			r.forget(e.Object().GetUID())
		}
		return nil
	})
}

// see sets or moves the end of an object that is being deleted.
func (r *reaper) see(ctx context.Context, obj resource.Object) {
	at, grace := obj.GetDeletionTimestamp(), obj.GetDeletionGracePeriodSeconds()
	if at.IsZero() || grace == nil || *grace == 0 {
		return // not being deleted, or held by finalizers alone
	}
	r.after(ctx, time.Until(at.Time), resource.KeyOf(obj), obj.GetUID())
}

func (r *reaper) after(ctx context.Context, wait time.Duration, key resource.Key, uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if t := r.timers[uid]; t != nil {
		t.Stop()
	}
	r.timers[uid] = time.AfterFunc(wait, func() {
		err := r.client.Delete(ctx, r.kind, key, resource.Preconditions{UID: uid, Now: true})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil {
			r.forget(uid)
			return
		}
		r.fail(key, err)
		r.after(ctx, watchRetry, key, uid)
	})
}

func (r *reaper) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.timers[uid]; t != nil {
		t.Stop()
		delete(r.timers, uid)
	}
}

func (r *reaper) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, t := range r.timers {
		t.Stop()
	}
}

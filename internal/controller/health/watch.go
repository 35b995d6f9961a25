package health

import (
	"context"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// notice is what a watch has to tell. synced is false when it broke.
type notice struct {
	kind    *resource.Descriptor
	synced  bool
	all     map[resource.Key]bool // set at the end of a fresh list
	changed []resource.Object
	deleted resource.Object
}

// watch follows one kind until ctx ends, from a fresh list each time it breaks.
func (h *Controller) watch(ctx context.Context, d *resource.Descriptor, notices chan<- notice) {
	send := func(n notice) {
		n.kind = d
		select {
		case notices <- n:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := h.watchOnce(ctx, d, send)
		if ctx.Err() != nil {
			return
		}
		send(notice{})
		h.log.Warn("watch broke; taking it up again", "of", d.Resource, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

func (h *Controller) watchOnce(ctx context.Context, d *resource.Descriptor, send func(notice)) error {
	w, err := h.client.Watch(ctx, d, resource.WatchOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	initial := notice{synced: true, all: map[resource.Key]bool{}}
	complete := false
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open = <-w.ResultChan():
		}
		if !open {
			return fmt.Errorf("watch of %s ended", d.Resource)
		}
		obj, ok := event.Object.(resource.Object)
		switch {
		case event.Type == watch.Error:
			return apierrors.FromObject(event.Object)
		case !ok:
			return fmt.Errorf("watch of %s delivered a %T", d.Resource, event.Object)
		case event.Type == watch.Bookmark:
			if !complete && obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				complete = true
				send(initial)
				initial = notice{}
			}
		case !complete:
			initial.all[resource.KeyOf(obj)] = true
			initial.changed = append(initial.changed, obj)
		case event.Type == watch.Deleted:
			send(notice{synced: true, deleted: obj})
		default:
			send(notice{synced: true, changed: []resource.Object{obj}})
		}
	}
}

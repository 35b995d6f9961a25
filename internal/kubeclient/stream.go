package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Streamed is a Client that lists by a watch which begins with all objects (KEP-3157,
// WatchList), so that neither end ever holds a whole list as one message. An API server that
// does not know such watches is listed page by page. Every object is stripped when it arrives.
type Streamed struct {
	*Client
	strip func(resource.Object)
	// paged: the server refused a watch that begins with all objects.
	paged atomic.Bool
}

var _ resource.Client = (*Streamed)(nil)

// NewStreamed makes a client of another one. strip takes from an object what nobody reads; it
// may be called by several goroutines at a time, for different objects.
func NewStreamed(client *Client, strip func(resource.Object)) *Streamed {
	return &Streamed{Client: client, strip: strip}
}

// Get implements resource.Client.
func (s *Streamed) Get(ctx context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	obj, err := s.Client.Get(ctx, d, key)
	if err == nil {
		s.strip(obj)
	}
	return obj, err
}

// List implements resource.Client.
func (s *Streamed) List(ctx context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	if !s.paged.Load() {
		objects, version, err := s.stream(ctx, d, opts)
		if !refused(err) {
			return objects, version, err
		}
		s.paged.Store(true)
	}
	var objects []resource.Object
	page := PageOptions{ListOptions: opts, Limit: pageSize}
	for {
		got, err := s.Page(ctx, d, page)
		if err != nil {
			return nil, "", err
		}
		for _, obj := range got.Objects {
			s.strip(obj)
		}
		objects = append(objects, got.Objects...)
		if page.Continue = got.Continue; page.Continue == "" {
			return objects, got.ResourceVersion, nil
		}
	}
}

// refused: the server does not know the options of the watch. Those before 1.27 forbid
// resourceVersionMatch with watches; those that have the feature off, sendInitialEvents.
func refused(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

// stream lists by a watch.
func (s *Streamed) stream(ctx context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.Client.Watch(ctx, d, resource.WatchOptions{ListOptions: opts})
	if err != nil {
		return nil, "", err
	}
	defer w.Stop()
	var objects []resource.Object
	for {
		var event watch.Event
		var open bool
		select {
		case event, open = <-w.ResultChan():
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
		if !open {
			return nil, "", errors.New("list of " + d.Resource + ": the stream was cut before its end")
		}
		if event.Type == watch.Error {
			return nil, "", apierrors.FromObject(event.Object)
		}
		obj, ok := event.Object.(resource.Object)
		switch {
		case !ok:
			return nil, "", fmt.Errorf("list of %s: the stream holds a %T", d.Resource, event.Object)
		case event.Type == watch.Bookmark && obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
			return objects, obj.GetResourceVersion(), nil
		case event.Type == watch.Added:
			s.strip(obj)
			objects = append(objects, obj)
		case event.Type != watch.Bookmark:
			// A change before the mark: the version of the mark is not older than it.
			objects = changed(objects, event.Type, obj)
			s.strip(obj)
		}
	}
}

// changed is a list after a change of one of its objects.
func changed(objects []resource.Object, event watch.EventType, obj resource.Object) []resource.Object {
	key := resource.KeyOf(obj)
	for i, o := range objects {
		if resource.KeyOf(o) != key {
			continue
		}
		if event == watch.Deleted {
			return append(objects[:i], objects[i+1:]...)
		}
		objects[i] = obj
		return objects
	}
	if event == watch.Deleted {
		return objects
	}
	return append(objects, obj)
}

// Watch implements resource.Client.
func (s *Streamed) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	w, err := s.Client.Watch(ctx, d, opts)
	if err != nil {
		return nil, err
	}
	return resource.MapWatch(w, func(event watch.Event) (watch.Event, bool) {
		if obj, ok := event.Object.(resource.Object); ok && event.Type != watch.Bookmark && event.Type != watch.Error {
			s.strip(obj)
		}
		return event, true
	}), nil
}

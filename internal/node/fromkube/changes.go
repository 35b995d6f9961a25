package fromkube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/node"
)

// clockMargin is how far the clock of an API server may be behind this machine's, and how
// late a view may have been when its control plane was lost.
const clockMargin = 30 * time.Second

// Changed returns nil once a Service or EndpointSlice of the API has changed since a moment,
// or one of a state is not there any more. It reads metadata only: a list, from the memory of
// the API server, and a watch. It blocks until there is a change, or ctx ends; an error says
// that the API does not tell. Changes up to 30 s before the moment count, too.
func Changed(ctx context.Context, cfg *rest.Config, names bool, since time.Time, state node.Update) error {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("client of the cluster's API: %w", err)
	}
	services, slices := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	for name, s := range state.Services {
		services[types.NamespacedName(name)] = s != nil
	}
	for name, s := range state.Slices {
		slices[types.NamespacedName(name)] = s != nil
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	first := make(chan error, 2)
	for _, k := range []struct {
		resource schema.GroupVersionResource
		selector string
		known    map[types.NamespacedName]bool
	}{
		{corev1.SchemeGroupVersion.WithResource("services"), serviceSelector, services},
		{discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), sliceSelector, slices},
	} {
		o := metav1.ListOptions{LabelSelector: k.selector}
		if names {
			o.LabelSelector = ""
		}
		go func() {
			err := awaitChange(ctx, client.Resource(k.resource), o, since.Add(-clockMargin), k.known)
			if err != nil {
				err = fmt.Errorf("changes of %s: %w", k.resource.Resource, err)
			}
			first <- err
		}()
	}
	return <-first
}

// awaitChange of one kind.
func awaitChange(ctx context.Context, client metadata.ResourceInterface, o metav1.ListOptions, since time.Time, known map[types.NamespacedName]bool) error {
	for {
		o.ResourceVersion, o.AllowWatchBookmarks = "0", false
		list, err := client.List(ctx, o)
		if err != nil {
			return err
		}
		if differs(list, since, known) {
			return nil
		}
		o.ResourceVersion, o.AllowWatchBookmarks = list.ResourceVersion, true
		changed, err := watchChange(ctx, client, o)
		if changed || err != nil {
			return err
		}
	}
}

// differs reports whether a list has what changed since a moment, or lacks what is known.
func differs(list *metav1.PartialObjectMetadataList, since time.Time, known map[types.NamespacedName]bool) bool {
	left := len(known)
	for i := range list.Items {
		o := &list.Items[i].ObjectMeta
		if known[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] {
			left--
		}
		if !o.CreationTimestamp.Time.Before(since) || o.DeletionTimestamp != nil && !o.DeletionTimestamp.Time.Before(since) {
			return true
		}
		for _, f := range o.ManagedFields {
			if f.Time != nil && !f.Time.Time.Before(since) {
				return true
			}
		}
	}
	return left > 0
}

// watchChange returns true for the first change, and false where the API ended the watch.
func watchChange(ctx context.Context, client metadata.ResourceInterface, o metav1.ListOptions) (bool, error) {
	w, err := client.Watch(ctx, o)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case e, open := <-w.ResultChan():
			switch {
			case !open || e.Type == watch.Error:
				return false, ctx.Err()
			case e.Type != watch.Bookmark:
				return true, nil
			}
		}
	}
}
